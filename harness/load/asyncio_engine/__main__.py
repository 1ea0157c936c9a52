"""`python -m harness.load.asyncio_engine`: the aiohttp engine as a process, with the messages of Locust's."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from harness.load.asyncio_engine.engine import AsyncioEngine
from harness.load.job import LoadJob, message_in, not_a_message
from harness.load.results.progress import LoadProgress
from harness.scenario.model import SteelyardError


class AsyncioJobLoop:
    """Reads jobs, writes answers; one job at a time, in order."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._jobs: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._engine: AsyncioEngine | None = None
        self._abandoned = 0
        """Number of queued jobs abandoned before they began."""

    async def run(self) -> None:
        """Run jobs until the end of input or a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        reading = asyncio.create_task(self._read(reader))
        self._answer({"ready": True, "pid": os.getpid()})
        while (message := await self._jobs.get()) is not None:
            self._answer(await self._run_job(message))
        reading.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = message_in(line)
            if message is None:
                self._answer(not_a_message(line))
            elif message.get("stop"):
                self._abandon()
            else:
                self._jobs.put_nowait(message)
        self._leave()

    def _leave(self) -> None:
        self._abandon()
        self._jobs.put_nowait(None)

    def _abandon(self) -> None:
        self._abandoned = self._jobs.qsize()
        if self._engine is not None:
            self._engine.stop()

    async def _run_job(self, message: dict[str, Any]) -> dict[str, Any]:
        name = message.get("job")
        stopped, self._abandoned = self._abandoned > 0, max(0, self._abandoned - 1)
        if not isinstance(name, str) or not isinstance(message.get("file"), str):
            return {"job": None, "error": f'expected {{"job": NAME, "file": PATH}}, saw {json.dumps(message)[:80]}'}
        reporting = None
        try:
            self._engine = engine = AsyncioEngine(LoadJob.read(Path(message["file"])))
            if stopped:
                engine.stop()
            # Freeze present objects; collecting them during the run would stall for 20 ms.
            gc.collect()
            gc.freeze()
            if message.get("news_s"):
                reporting = asyncio.create_task(self._report_progress(name, engine, float(message["news_s"])))
            return {"job": name, "done": True, **await engine.run()}
        except SteelyardError as error:
            reason = str(error)
        except Exception as error:  # the process continues with the next job
            reason = f"{type(error).__name__}: {error}"
        finally:
            self._engine = None
            if reporting is not None:
                reporting.cancel()
            gc.unfreeze()
        return {"job": name, "error": " ".join(reason.split())}

    async def _report_progress(self, name: str, engine: AsyncioEngine, every_s: float) -> None:
        progress = LoadProgress(engine)
        while True:
            await asyncio.sleep(every_s)
            self._answer({"job": name, "news": progress.since_last(monotonic())})

    def _answer(self, answer: dict[str, Any]) -> None:
        os.write(self._answers, json.dumps(answer).encode() + b"\n")


def main() -> int:
    """Run the process; the exit status is 0 unless it crashes."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    answers = os.dup(1)
    os.dup2(2, 1)  # other output must not mix with the answers
    asyncio.run(AsyncioJobLoop(answers).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
