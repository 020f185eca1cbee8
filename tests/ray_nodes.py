"""Ray nodes on this machine, each by a ``ray start`` of its own, whose processes can be killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from flinkray.testing.waiting import wait_until
from tests.ray_client_server import ENVIRONMENT, RAY, free_port

_MARK = "FLINKRAY_TEST_NODE"
"""In the environment of every process of a node: which one."""
_LONGEST_START = 120.0
_LONGEST_END = 30.0
"""Seconds."""


class RayNode:
    """All processes that one ``ray start`` has started, and those that these have."""

    def __init__(self, options: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._mark = uuid.uuid4().hex
        for last in (False, True):  # a free port may be taken by another process meanwhile
            done = subprocess.run(
                [
                    *RAY, "start", *options, "--node-ip-address=127.0.0.1",
                    "--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0",
                ],
                env={**ENVIRONMENT, **environment, _MARK: self._mark},
                check=last,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                timeout=_LONGEST_START,
            )  # fmt: skip
            if done.returncode == 0:
                return
            self.kill()

    def processes(self) -> dict[int, str]:
        """The living ones by their process id: the names of their programs."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if f"{_MARK}={self._mark}".encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
        return found

    def kill(self, *programs: str) -> None:
        """SIGKILL for the processes of these programs, or for all; returns when they are gone."""
        victims = {
            pid for pid, name in self.processes().items() if not programs or name in programs
        }
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: not victims & self.processes().keys(),
            _LONGEST_END,
            "the end of what was killed",
        )


class RayNodes:
    """A Ray of several nodes on this machine, whose head can be started again."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """*environment*: for all nodes."""
        self.folder = Path(tempfile.mkdtemp(prefix="fr-ray-", dir="/tmp"))  # sockets: short paths
        self.port = free_port()
        self._environment = environment or {}
        self._started: list[RayNode] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start_head(self, environment: Mapping[str, str], *options: str) -> RayNode:
        """At the same address each time."""
        # else Ray takes what it says for the head, because a raylet on this machine names it, too
        (self.folder / "ray_current_cluster").unlink(missing_ok=True)
        return self._start(
            (
                "--head",
                f"--port={self.port}",
                f"--temp-dir={self.folder}",
                "--include-dashboard=false",
                f"--ray-client-server-port={free_port()}",
                *options,
            ),
            environment,
        )

    def start_worker(self, *options: str) -> RayNode:
        return self._start((f"--address={self.address}", *options), {})

    def _start(self, options: tuple[str, ...], environment: Mapping[str, str]) -> RayNode:
        node = RayNode(options, {**self._environment, **environment})
        self._started.append(node)
        return node

    def logs(self, pattern: str) -> list[Path]:
        """Those of that name; all nodes have one folder for them."""
        return sorted(self.folder.glob(f"session_2*/logs/{pattern}"))

    def close(self) -> None:
        """End all nodes, and leave nothing."""
        for node in self._started:
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def ray_nodes(environment: Mapping[str, str] | None = None) -> Iterator[RayNodes]:
    nodes = RayNodes(environment)
    try:
        yield nodes
    finally:
        nodes.close()
