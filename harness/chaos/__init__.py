"""Chaos experiments: named and random fault plans, shrinking, and saved scenarios. Pure."""
