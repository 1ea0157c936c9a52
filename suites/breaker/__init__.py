"""Circuit breakers: trip, open, half-open, backoff, recovery."""
