"""What may happen to one request beyond its first attempt: retries, hedges, and the limits before it."""
