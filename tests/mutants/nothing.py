"""The settings that mutants of one mechanism begin with."""

from harness.balancer.settings import Settings

NOTHING_ON = Settings(bounded_load=None, checks=None, breaker=None, health=None, hedge=None, retry=None, sessions=None)
"""The reference with all off that has a switch in its settings, but for the policy of updates."""
