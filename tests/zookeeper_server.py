"""ZooKeeper's real server, on loopback ports of its own, for as long as tests need it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from flinkray.core.errors import FlinkRayError
from flinkray.spark.environment import find_java
from flinkray.testing.waiting import wait_until
from tests.ray_client_server import free_port

JAR = Path("/usr/share/java/zookeeper.jar")
"""Debian's; names what it needs beside it."""
LONGEST_START = 60.0
"""Seconds."""
TICK = 200
"""Milliseconds; sessions end after 2 ticks at the earliest."""
LONGEST_SESSION = 60_000
"""Milliseconds."""


def why_not() -> str:
    """Why the server cannot run here; empty: it can."""
    if not JAR.exists():
        return "ZooKeeper's server is not installed (Debian's package zookeeper)"
    try:
        find_java()
    except FlinkRayError as error:
        return f"ZooKeeper needs Java: {error}"
    return ""


class ZooKeeperServer:
    """One server, alone or of an ensemble.  Not durable: the machine does not fail meanwhile.

    Args:
        ensemble: port for clients, for followers and for elections of each server; None: alone.
        number: which of them this one is, from 0 on.
    """

    def __init__(self, ensemble: list[tuple[int, int, int]] | None = None, number: int = 0) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fr-zk-", dir="/tmp"))
        self.port = free_port() if ensemble is None else ensemble[number][0]
        lines = [
            f"tickTime={TICK}",
            f"dataDir={self.directory}",
            "clientPortAddress=127.0.0.1",
            f"clientPort={self.port}",
            f"minSessionTimeout={2 * TICK}",
            f"maxSessionTimeout={LONGEST_SESSION}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,srvr",
            "initLimit=50",
            "syncLimit=25",
        ]
        for place, (_, follower, election) in enumerate(ensemble or ()):
            lines.append(f"server.{place + 1}=127.0.0.1:{follower}:{election}")
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n")
        (self.directory / "myid").write_text(f"{number + 1}\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Returns before it can be used."""
        java = find_java().home / "bin" / "java"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no"]
        with (self.directory / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [java, *options, "-cp", str(JAR), main, str(self.directory / "zoo.cfg")],
                stdout=output,
                stderr=output,
                cwd=self.directory,
            )

    def start(self) -> None:
        """Returns when it can be used."""
        self.launch()
        self.await_service()

    def await_service(self) -> None:
        wait_until(lambda: "Mode:" in self.ask("srvr"), LONGEST_START, "ZooKeeper")

    def ask(self, word: str) -> str:
        """The answer to one of the four-letter words; empty: it does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(word.encode())
                answer = b""
                while received := connection.recv(4096):
                    answer += received
                return answer.decode()
        except OSError:
            return ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def suspend(self) -> None:
        """It stands still until :meth:`resume`: it takes connections, and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """As after a failure of the machine."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(300)

    def close(self) -> None:
        """End it, and leave nothing."""
        self.stop()
        shutil.rmtree(self.directory)


class ZooKeeperEnsemble:
    """Three servers, of which any two go on without the third."""

    def __init__(self) -> None:
        ports = [(free_port(), free_port(), free_port()) for _ in range(3)]
        self.servers = [ZooKeeperServer(ports, number) for number in range(3)]

    @property
    def hosts(self) -> str:
        return ",".join(server.hosts for server in self.servers)

    def start(self) -> None:
        """Returns when it can be used."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.await_service()

    def leader(self) -> ZooKeeperServer:
        """The one that the others follow."""
        return next(server for server in self.servers if "Mode: leader" in server.ask("srvr"))

    def close(self) -> None:
        for server in self.servers:
            server.close()


Server = TypeVar("Server", ZooKeeperServer, ZooKeeperEnsemble)


@contextmanager
def running() -> Iterator[ZooKeeperServer]:
    """One that ends with the context; where none can be started, the test is skipped."""
    with _running(ZooKeeperServer) as server:
        yield server


@contextmanager
def running_ensemble() -> Iterator[ZooKeeperEnsemble]:
    """The same of three."""
    with _running(ZooKeeperEnsemble) as ensemble:
        yield ensemble


@contextmanager
def _running(make: Callable[[], Server]) -> Iterator[Server]:
    if reason := why_not():
        pytest.skip(reason)
    server = make()
    try:
        server.start()
        yield server
    finally:
        server.close()
