"""Interface between a balancer without I/O and the worlds that run it: events, actions and the policy protocol."""
