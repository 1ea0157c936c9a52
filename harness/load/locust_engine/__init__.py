"""Locust as the load generator, in processes of its own."""
