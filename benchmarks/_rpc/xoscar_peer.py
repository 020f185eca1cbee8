"""xoscar in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from _peers import PEERS, PeersUnavailableError, interpreter


class XoscarPeer:
    """The process that measures xoscar; one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> XoscarPeer:
        python = await asyncio.get_running_loop().run_in_executor(None, interpreter)
        process = await asyncio.create_subprocess_exec(
            str(python),
            str(PEERS / "xoscar_calls.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(PEERS)},  # its processes import the actors
        )
        return cls(process)

    async def ask(self, measure: str, **arguments: int) -> dict[str, float]:
        """Let it measure something; see ``benchmarks/peers/xoscar_calls.py``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"measure": measure, **arguments}).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise PeersUnavailableError("xoscar's process ended; its error is above (--no-peers)")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
