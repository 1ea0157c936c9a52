"""Handling of a request around its first attempt: limits before it, retries and hedges after it."""
