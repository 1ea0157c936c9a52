"""Faults of single requests and reports: their kinds, and which request they apply to. Pure."""
