"""aiohttp as the load generator: the same jobs and records as Locust's engine."""
