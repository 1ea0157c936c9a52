"""Scenarios as frozen data: backends, load, faults and membership changes. Pure."""
