"""Hedged requests: when a second attempt starts, who wins, what it costs."""
