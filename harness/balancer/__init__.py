"""The reference balancer: pure state machines, no clock, no socket. ARCHITECTURE.md says which shell runs it where."""
