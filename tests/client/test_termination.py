"""SIGTERM, by which containers and services are ended, does what Ctrl-C does."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest
import ray

import flinkray
from flinkray.client.cli import execute

FOREVER = """
from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.connectors import DataGeneratorSource

env = StreamExecutionEnvironment.get_execution_environment()
source = DataGeneratorSource(lambda n: n, 10_000_000, records_per_second=10)
numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
numbers.map(lambda n: n).print()
env.execute("forever")
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "flinkray", *arguments]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def lines_until(stream: IO[str] | None, beginning: str) -> list[str]:
    """All those up to the first one that begins so."""
    assert stream is not None
    lines: list[str] = []
    while not (lines and lines[-1].startswith(beginning)):
        line = stream.readline()
        assert line, f"no line begins with {beginning!r}: {lines}"
        lines.append(line)
    return lines


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of something that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    held.append(server.accept())

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection, _ in held:
            connection.close()


def test_sigterm_ends_a_run_at_once_while_it_joins_a_cluster(deaf: str, tmp_path: Path) -> None:
    program = tmp_path / "forever.py"
    program.write_text(FOREVER)
    with started("run", "--address", deaf, "--python", str(program)) as process:
        lines_until(process.stderr, "joining Ray")
        process.send_signal(signal.SIGTERM)
        assert process.wait(4) == 143  # Ray is given up after 5 s
        assert process.stderr is not None
        assert process.stderr.read() == "terminated\n"


@pytest.mark.ray
def test_sigterm_makes_run_cancel_its_job_and_wait_for_the_end(
    ray_cluster: None, tmp_path: Path
) -> None:
    """Kubernetes ends pods with SIGTERM. Ray's own handler would print stacks and leave the job
    running."""
    named = ["--cluster-id", "terminated"]
    assert execute(["cluster", "up", *named, "-D", f"storage.dir={tmp_path}"]) == 0
    try:
        address = ray.get_runtime_context().gcs_address
        program = tmp_path / "forever.py"
        program.write_text(FOREVER)
        run = ("run", "--address", address, *named, "--python", str(program))
        with started(*run) as process:
            lines_until(process.stderr, "submitted job")
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143
            assert process.stderr is not None
            told = process.stderr.read()
        assert "ended: CANCELED" in told
        assert "SIGTERM received" not in told
        with flinkray.connect("auto", cluster_id="terminated") as client:
            (job,) = client.list_jobs()
        assert job.status.name == "CANCELED"
    finally:
        assert execute(["cluster", "down", *named]) == 0
