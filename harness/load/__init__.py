"""The load process of live runs: Locust in a process of its own, fed one job for each run.

`python -m harness.load` is that process (`__main__`), `job` the file that tells it what to do and the only module
that the rest of the harness imports, `wire` the pure HTTP form of a request, `client` one exchange over a socket, and
`play` one job under Locust. Only `__main__`, `client` and `play` import gevent or Locust, because doing so patches the
whole interpreter.
"""
