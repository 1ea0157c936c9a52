"""Affinity: equal keys reach the same backend, and a membership change moves few of them."""
