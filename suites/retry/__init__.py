"""Retries: what is tried again, where, how often, by which deadline."""
