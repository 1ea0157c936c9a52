"""Base settings of mutants with a single mechanism."""

from harness.balancer.settings import Settings

NOTHING_ON = Settings(bounded_load=None, checks=None, breaker=None, health=None, hedge=None, retry=None, sessions=None)
"""The reference with every optional setting off, except the policy of updates."""
