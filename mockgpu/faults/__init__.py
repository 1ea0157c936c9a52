"""Request and report faults of a backend: their kinds, and the decision for each request. Pure: no clock, no socket."""
