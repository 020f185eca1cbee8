"""SIGKILL of a program's own process: what goes on without it, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

import flinkray
from flinkray.client import ClusterClient
from flinkray.core.errors import JobCancelledError
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.kill]

CLUSTER_ID = "lost-client"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "3",
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory": "300m",
}

PROGRAM = f"""
import sys
import threading
from pathlib import Path

import flinkray
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink

times = {{"client.heartbeat.interval": "500 ms", "client.heartbeat.timeout": "5 s"}}
cluster = flinkray.connect(cluster_id={CLUSTER_ID!r}, configuration=times)


def program(setting="false"):
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.get_configuration().set_string("execution.shutdown-on-attached-exit", setting)
    return env, env.from_sequence(0, 10**15)


env, numbers = program()
numbers.sink_to(DiscardingSink())
env.execute_async("not waited for")
env, numbers = program("true")
numbers.sink_to(DiscardingSink())
threading.Thread(target=env.execute, args=["waited for"], daemon=True).start()
env, numbers = program()
results = numbers.execute_and_collect("collected")
next(results)
Path(sys.argv[1]).touch()
input()
"""


@pytest.fixture(scope="module")
def client(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


@pytest.fixture
def program(client: ClusterClient, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(path), str(tmp_path / "has read")],
        env={**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address},
        stdin=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def test_attached_programs_are_cancelled_when_their_client_is_killed(
    client: ClusterClient, program: subprocess.Popen[str], tmp_path: Path
) -> None:
    wait_until((tmp_path / "has read").exists, 300, "the program's first result")
    wait_until(
        lambda: [j.status for j in client.list_jobs()] == [JobStatus.RUNNING] * 3, 300, "three jobs"
    )
    jobs = {job.name: client.job(job.job_id) for job in client.list_jobs()}

    program.kill()

    for name, reason in (
        ("collected", "nobody else can read its results"),
        ("waited for", "execution.shutdown-on-attached-exit is true"),
    ):
        with pytest.raises(JobCancelledError) as cancelled:
            jobs[name].result(timeout=300)
        text = str(cancelled.value)
        assert f"its client, program.py, process {program.pid} on " in text
        assert "nothing was heard of it for 5 s (client.heartbeat.timeout)" in text
        assert text.endswith(reason)
        assert [e.text for e in jobs[name].exceptions()] == [text.partition("cancelled: ")[2]]
    alone = jobs["not waited for"]
    assert alone.status() is JobStatus.RUNNING
    alone.cancel()
    assert alone.wait(timeout=300) is JobStatus.CANCELED
