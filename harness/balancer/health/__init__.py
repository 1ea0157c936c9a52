"""Which backends may receive traffic and how much: breakers, ejection, readiness, scores, slow start, draining."""
