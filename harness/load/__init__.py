"""The load: requests with fixed times, sent by Locust or asyncio in processes of their own.

`job` is the input of a load process, `wire` the HTTP form of a request (both pure). `workloads` has named profiles and
traces. `locust_engine` and `asyncio_engine` send a job and write the records of `results.answer`; `results` turns them
into figures. Only `locust_engine` imports gevent and Locust, which patch the whole interpreter.
"""
