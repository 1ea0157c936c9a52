"""Chaos: whole-system runs under a named fault plan. `properties.py` is a table of fault plans × checks."""
