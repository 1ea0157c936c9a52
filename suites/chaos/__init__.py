"""Chaos: whole-system runs under a named fault plan, one module for each plan.

Node crash, blackhole and grey failure run live too. The other plans run in virtual time only;
`steelyard chaos --plan NAME --world live` runs them live.
"""
