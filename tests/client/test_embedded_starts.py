"""Embedded clusters on a machine where others are in the way, and what they leave there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.own_ray]

PROGRAM = """
import os, sys
import flinkray
from flinkray.datastream import StreamExecutionEnvironment

options = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "dashboard_port": int(sys.argv[1])}
with flinkray.connect("local", ray_options=options) as client:
    print("dashboard", client.dashboard_url)
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.from_sequence(0, 1000).map(lambda v: v + 1).filter(lambda v: False).print()
    print(client.job(env.execute_async("job").get_job_id()).wait(timeout=150).name)
print("left", sorted(name for name in os.listdir(os.environ["TMPDIR"]) if name != "ray"))
"""

SLOW_AGENTS = """
import sys, threading

if any(argument.endswith(("dashboard/agent.py", "agent/main.py")) for argument in sys.orig_argv):
    threading.Event().wait(20)
"""
"""Makes Ray's agents wait before they start: a raylet waits 15 s for ports that they choose."""


def test_a_cluster_starts_at_once_although_agents_of_ray_take_20_seconds(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(SLOW_AGENTS)
    with TemporaryDirectory() as temporary:  # short, as paths of sockets are
        ended = subprocess.run(
            [sys.executable, str(program), "0"],
            env={**os.environ, "TMPDIR": temporary, "PYTHONPATH": str(modules)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert "FINISHED" in ended.stdout.splitlines(), ended.stderr
    assert "started again" not in ended.stderr


def test_cluster_runs_a_job_although_rays_dashboard_cannot_start(tmp_path: Path) -> None:
    """The dashboard's port is taken, which fails Ray's own start. No file is left at the end."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with (
        TemporaryDirectory() as temporary,  # short, as paths of sockets are
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        ended = subprocess.run(
            [sys.executable, str(program), str(taken.getsockname()[1])],
            env={**os.environ, "TMPDIR": temporary},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.stdout.splitlines() == ["dashboard None", "FINISHED", "left []"], ended.stderr
    (warning,) = [line for line in ended.stderr.splitlines() if "dashboard" in line]
    assert warning.startswith("Ray's dashboard has not started, and the cluster goes on without")
