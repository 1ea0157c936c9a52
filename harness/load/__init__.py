"""The load process of live runs: Locust in a process of its own, fed one job for each run.

`python -m harness.load` is that process (`__main__`), `job` the file that tells it what to do, `wire` the pure
HTTP form of a request, `client` one exchange over a socket, and `play` one job under Locust. The rest of the harness
imports `job` and `wire` alone: the others import gevent or Locust, and doing so patches the whole interpreter.
"""
