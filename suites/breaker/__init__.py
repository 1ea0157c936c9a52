"""Circuit breakers: one module for each situation; `membership` holds the properties `breaker.return.*`."""
