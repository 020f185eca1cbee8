"""Drivers that have joined Ray by its client, from outside the cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# a client has to send Ray's token, as Ray's own commands have to; workers import our endpoints
ENVIRONMENT = {
    **os.environ,
    "RAY_AUTH_MODE": "token",
    "PYTHONPATH": str(Path(__file__).parents[2]),
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def client_server() -> Iterator[int]:
    """The port of the client server of a Ray of its own."""
    port = free_port()
    # pytest's own folders make paths that are too long for Ray's sockets
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "start.log"
        with log.open("wb") as output:
            head = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("ray")), "start", "--head", "--block",
                    "--port=0", f"--ray-client-server-port={port}", "--num-cpus=2",
                    "--include-dashboard=false", f"--temp-dir={folder}", "--disable-usage-stats",
                    f"--dashboard-agent-listen-port={free_port()}",
                    f"--dashboard-agent-grpc-port={free_port()}",
                    f"--metrics-export-port={free_port()}",
                ],
                env=ENVIRONMENT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            while not accepts(port):
                assert head.poll() is None, log.read_text()
            yield port
        finally:
            head.send_signal(signal.SIGTERM)
            head.wait(60)


def test_a_client_outside_the_cluster_can_do_what_a_driver_can(client_server: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.rpc.ray_client_driver", f"ray://127.0.0.1:{client_server}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
    assert "InvalidStateError" not in done.stderr
