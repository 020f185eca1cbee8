"""Redis's real server, on a loopback port of its own, for as long as tests need it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from flinkray.testing.waiting import wait_until
from tests.ray_client_server import free_port

LONGEST_START = 60.0
"""Seconds."""


def why_not() -> str:
    """Why the server cannot run here; empty: it can."""
    if shutil.which("redis-server") is None:
        return "Redis's server is not installed (Debian's package redis-server)"
    return ""


class RedisServer:
    """Keeps everything in memory: the machine does not fail while tests run."""

    def __init__(self) -> None:
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="fr-redis-", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it can be used."""
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._directory),
            "save": "",
            "appendonly": "no",
        }
        arguments = [part for key, value in options.items() for part in (f"--{key}", value)]
        with (self._directory / "log").open("ab") as output:
            self._process = subprocess.Popen(
                ["redis-server", *arguments], stdout=output, stderr=output, cwd=self._directory
            )
        wait_until(self._answers, LONGEST_START, "Redis")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def close(self) -> None:
        """End it, and leave nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(300)
        shutil.rmtree(self._directory)
