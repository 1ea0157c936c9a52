"""Faults of a live run: injected through the fault proxy or the fleet, verified, and healed on schedule."""
