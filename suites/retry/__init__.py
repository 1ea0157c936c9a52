"""Retries: which failures are retried, where, how often, by which deadline."""
