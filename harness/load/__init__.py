"""The load process of live runs: Locust in a process of its own, fed one job for each run.

`python -m harness.load.locust_engine` is that process (`__main__`), `job` the file that tells it what to do, `wire`
the pure HTTP form of a request, `client` one exchange over a socket, `play` one job under Locust and `answer` its
records. The rest of the harness imports none but the pure ones of these: the others import gevent or Locust, and that
patches the whole interpreter.

`locustfile` is the same load by hand, on Locust's own command line and page, in one process or several: a `conductor`
in Locust's master tells the `player` of each worker what to play, and gathers the records (`messages`).

`engine` plays a job over aiohttp (`engine_client`) instead, at the times of a `timer`; `engine_worker` is its process,
in the words of `__main__`. Both wait for a `timerfd`, Locust in its `pacing`, tell the same `news` and have the same
cap of requests `in_flight`. What a load came to is for `figures`, `thresholds` and `search`, all pure.
"""
