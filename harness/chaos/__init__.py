"""Chaos experiments: named and drawn fault plans, shrinking, and kept scenarios. Pure."""
