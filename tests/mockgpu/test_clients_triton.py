"""Triton's own client against the mock."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from mockgpu.gpu.catalogue import setup_of
from mockgpu.server.attempt_log import RowKind

SCRIPT = Path(__file__).parent / "triton_calls.py"


def test_all_its_calls(serve: Any) -> None:
    async def test(it: Any) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(it.port), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, output.decode()
        assert sum(row.kind is RowKind.INFERENCE for row in it.rows()) == 5

    serve(test, setup_of("tiny", "tiny"))
