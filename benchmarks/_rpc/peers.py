"""xoscar in an environment of its own, made on first use."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent.parent / "peers"
ENVIRONMENT = PEERS.parent.parent / ".venv-peers"


class PeersUnavailableError(Exception):
    """The peers' environment could not be made; the text says why and how to do without."""


def interpreter() -> Path:
    """The Python of the peers' environment, which is made when it is missing or out of date.

    Raises:
        PeersUnavailableError: it could not be made.
    """
    requirements = (PEERS / "requirements.txt").read_text()
    done = ENVIRONMENT / "installed.txt"
    python = ENVIRONMENT / "bin" / "python"
    if python.exists() and done.exists() and done.read_text() == requirements:
        return python
    print(f"making {ENVIRONMENT} with what is measured beside flinkray (--no-peers: without)")
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    uv = shutil.which("uv")
    if uv:
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(ENVIRONMENT)]
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        make = [sys.executable, "-m", "venv", str(ENVIRONMENT)]
        install = [str(python), "-m", "pip", "install", "--quiet"]
        install.append("--disable-pip-version-check")
    for command in (make, [*install, "-r", str(PEERS / "requirements.txt")]):
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            raise PeersUnavailableError(
                f"the peers' environment could not be made: {' '.join(command)} failed:\n"
                f"{run.stderr.strip()}\nRun with --no-peers to measure flinkray and Ray alone."
            )
    done.write_text(requirements)
    return python


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
