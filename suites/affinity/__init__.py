"""Affinity: equal keys reach the same backend, and a membership change moves few keys.

`leave_and_return` holds the properties `affinity.leave.*` and `affinity.return.*`; the other modules have the name of
their situation.
"""
