"""One job on aiohttp: the schedule and records of Locust's engine, as a cross-check and for higher rates.

Open loop: requests are sent at their times, independent of earlier answers; virtual users wait for their answers.
`__main__` is its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp

from harness.evidence import records
from harness.load.asyncio_engine.client import BaseUrl
from harness.load.asyncio_engine.timer import Waiting, best_waiting
from harness.load.job import LoadJob
from harness.load.results.answer import ExchangeResult, spread
from harness.load.results.figures import gave_up, is_good
from harness.load.results.shard import Shard
from harness.load.wire import WireRequest
from harness.scenario.arrivals import Arrival
from harness.scenario.closed_loop import VirtualUser, answer_failed
from harness.scenario.model import HarnessError

GRACE_S = 1.0
"""Grace in seconds for requests in flight after a stop."""


class AsyncioEngine(Shard):
    """One job on aiohttp. ValueError for an impossible job, OSError for an unknown host."""

    def __init__(self, job: LoadJob, waiting: Callable[[], Waiting] = best_waiting) -> None:
        super().__init__(job)
        self.site = BaseUrl.of(job.url)
        self._waiting = waiting
        self._stopped = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Send every arrival at its time, wait for all answers, write the records; returns figures as Locust's engine.

        After `stop` no request is sent, and requests in flight are cancelled after `GRACE_S`. HarnessError if the load
        crashed, OSError if the records cannot be written.
        """
        waiting = self._waiting()
        kept, fresh = self.site.session(), self.site.session(force_close=True)
        lanes = {number: _Lane(self) for number in {arrival.connection for arrival in self.arrivals} if number >= 0}
        sending = asyncio.create_task(self._send_all(waiting, kept, fresh, lanes))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            left_s = self.ends_s - monotonic()
            await asyncio.wait({sending, stopped}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                await asyncio.wait({sending}, timeout=GRACE_S)
            if sending.done():
                sending.result()
        except ExceptionGroup as group:
            error = group.exceptions[0]
            raise HarnessError(f"the load crashed: {type(error).__name__}: {error}") from error
        finally:
            sending.cancel()
            stopped.cancel()
            await asyncio.gather(sending, stopped, return_exceptions=True)
            for client in (kept, fresh, *(lane.client for lane in lanes.values())):
                await client.close()
            waiting.close()
        sent = self.ledger.rows()
        self.add_unsent()
        about = {"backends": self.ledger.backends, "leaving": sorted(self.leaving)}
        records.write_requests(Path(self.job.out), self.ledger.rows(), about)
        return {
            "requests": self.ledger.count,
            "sent": len(sent),
            "failed": int((~is_good(sent) & ~gave_up(sent, self.leaving)).sum()),
            "dropped": self.dropped,
            "lateness_s": spread(self.ledger.delays_s),
        }

    @property
    def stopped(self) -> bool:
        """Whether sending has stopped."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Stop sending; requests in flight have `GRACE_S` to end."""
        self._stopped.set()

    async def send(
        self, client: aiohttp.ClientSession, arrival: Arrival, request: WireRequest, earliest_s: float
    ) -> ExchangeResult:
        """Send one request now, once, and record it. `earliest_s`: earliest possible send time."""
        answer = ExchangeResult()
        self.request_sent(arrival)
        try:
            await self.site.exchange(client, request, answer, arrival.patience_s)
        finally:  # also when it is cancelled
            answer.end_s = monotonic()
            self.request_ended(arrival, request.hex, answer, earliest_s)
        return answer

    async def _send_all(
        self, waiting: Waiting, kept: aiohttp.ClientSession, fresh: aiohttp.ClientSession, lanes: dict[int, _Lane]
    ) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in lanes.values():
                group.create_task(lane.work())
            for user in self.virtual_users.users:
                group.create_task(self._run_user(user, kept, fresh))
            schedule = group.create_task(self._follow_schedule(group, waiting, kept, fresh, lanes))
            stop = group.create_task(self._stopped.wait())
            await asyncio.wait({schedule, stop}, return_when=asyncio.FIRST_COMPLETED)
            schedule.cancel()  # it may be waiting
            stop.cancel()
            for lane in lanes.values():
                lane.end()

    async def _follow_schedule(
        self,
        group: asyncio.TaskGroup,
        waiting: Waiting,
        kept: aiohttp.ClientSession,
        fresh: aiohttp.ClientSession,
        lanes: dict[int, _Lane],
    ) -> None:
        for arrival in self.arrivals:
            request = self.request(arrival)  # before its time
            due_s = self.job.start_s + arrival.at_s
            await waiting.until(due_s)
            if arrival.connection >= 0:
                lanes[arrival.connection].queue.put_nowait((arrival, request, due_s))
            elif self.full:
                self.dropped += 1
            else:
                group.create_task(self.send(fresh if arrival.fresh else kept, arrival, request, due_s))

    async def _run_user(self, user: VirtualUser, kept: aiohttp.ClientSession, fresh: aiohttp.ClientSession) -> None:
        """One virtual user, until the end of its time or a stop of the job."""
        start_s = self.job.start_s
        free_s, failed = start_s + user.start_s, False
        while (due_s := user.due_s(free_s - start_s, failed)) is not None:
            while (left_s := start_s + due_s - monotonic()) > 0 and not self.stopped:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), left_s)
            if self.stopped:
                return
            arrival = user.next_request(due_s)
            client = fresh if arrival.fresh else kept
            answer = await self.send(client, arrival, self.request(arrival), start_s + due_s)
            free_s, failed = monotonic(), answer_failed(answer.failure, answer.status)


class _Lane:
    """A single kept connection: each request waits for the previous answer."""

    def __init__(self, engine: AsyncioEngine) -> None:
        self._engine = engine
        self.client = engine.site.session(limit=1)
        self.queue: asyncio.Queue[tuple[Arrival, WireRequest, float] | None] = asyncio.Queue()

    def end(self) -> None:
        """Let `work` return once all queued requests are sent."""
        self.queue.put_nowait(None)

    async def work(self) -> None:
        """Send queued requests one after the other, until `end` or a stop of the job."""
        free_s = -math.inf
        while (ready := await self.queue.get()) is not None and not self._engine.stopped:
            arrival, request, due_s = ready
            # Waiting for the previous answer is not generator delay.
            await self._engine.send(self.client, arrival, request, max(due_s, free_s))
            free_s = monotonic()
