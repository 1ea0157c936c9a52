"""Whole-system runs under fault plans."""
