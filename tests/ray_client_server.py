"""A Ray of its own with a Ray Client server, for drivers from outside the cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flinkray.client.ray_runtime import free_ports

# a client has to send Ray's token, as Ray's own commands have to; workers import our endpoints
ENVIRONMENT = {
    **os.environ,
    "RAY_AUTH_MODE": "token",
    "PYTHONPATH": str(Path(__file__).parents[1]),
    # its proxy forks for each client, and gRPC may abort the child: docs/clusters.md
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}

RAY = [sys.executable, str(Path(__file__).with_name("ray_command.py"))]
"""The command ``ray``, as a list of arguments."""


def free_port() -> int:
    """Return a port that stays free until a server of the test binds the port."""
    [port] = free_ports(1)
    return port


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def is_recorded(folder: str) -> bool:
    """Whether ``ray start`` has written down where it runs: only then it is ``auto``, which comes
    after it serves clients."""
    record = Path(folder, "ray", "ray_current_cluster")
    return record.exists() and record.read_text() != ""


@dataclass(frozen=True)
class RayWithClients:
    """Its addresses."""

    head: str
    clients: str
    folder: str
    """Where it is recorded: drivers with this ``RAY_TMPDIR`` find it as ``auto``."""


@contextmanager
def ray_with_clients() -> Iterator[RayWithClients]:
    """Ends with the context."""
    subprocess.run([*RAY, "get-auth-token", "--generate"], check=True, stdout=subprocess.DEVNULL)
    # pytest's own folders make paths that are too long for Ray's sockets
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "start.log"
        try:
            head, ray = _started(folder, log)
        except _NotStartedError:  # a busy machine takes too long for a raylet, which gives up
            head, ray = _started(folder, log)
        try:
            yield ray
        finally:
            _end(head)


class _NotStartedError(Exception):
    """What Ray has said."""


def _started(folder: str, log: Path) -> tuple[subprocess.Popen[bytes], RayWithClients]:
    port, head_port = free_port(), free_port()
    with log.open("wb") as output:
        head = subprocess.Popen(
            [
                *RAY, "start", "--head", "--block",
                f"--port={head_port}", "--node-ip-address=127.0.0.1",
                f"--ray-client-server-port={port}", "--num-cpus=2",
                "--include-dashboard=false", "--disable-usage-stats",
            ],
            env={**ENVIRONMENT, "RAY_TMPDIR": folder},
            stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        while not (accepts(port) and is_recorded(folder)):
            if head.poll() is not None:
                raise _NotStartedError(log.read_text())
    except BaseException:
        _end(head)
        raise
    return head, RayWithClients(f"127.0.0.1:{head_port}", f"ray://127.0.0.1:{port}", folder)


def _end(head: subprocess.Popen[bytes]) -> None:
    head.send_signal(signal.SIGTERM)
    head.wait(300)
