"""Eligibility and weight of backends: breakers, ejection, readiness, health scores, slow start, draining."""
