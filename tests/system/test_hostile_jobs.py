"""What the code of a job does to its process ends with that process, and harms that job alone."""

from __future__ import annotations

import builtins
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.client.ray_runtime import cluster_namespace
from flinkray.core.errors import JobExecutionError
from flinkray.scheduler.graph.job_graph import NoRestart
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.task_jobs import TaskAttempt, task_job, waits
from flinkray.testing.waiting import wait_until
from tests.system.observer import kill, live_actors

pytestmark = [pytest.mark.ray, pytest.mark.kill]

CLUSTER_ID = "hostile"
SECONDS = 300.0
"""Within which a job has ended, on a machine under load."""
AT_ONCE = 3
"""Harmful jobs, that wait for others most of their time."""


@pytest.fixture(scope="module")
def client(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID) as client:
        yield client


def exits(task: TaskAttempt) -> None:
    os._exit(7)


def kills_itself(task: TaskAttempt) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def reads_nowhere(task: TaskAttempt) -> None:
    ctypes.string_at(0)


def closes_all_files(task: TaskAttempt) -> Iterator[None]:
    os.closerange(3, 10_000)
    yield from waits(task)


def closes_all_files_and_returns(task: TaskAttempt) -> None:
    os.closerange(3, 10_000)


def has_no_streams(task: TaskAttempt) -> None:
    sys.stdout = sys.stderr = None
    raise ValueError("in silence")


def opens_nothing(task: TaskAttempt) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    with open("/dev/null"):
        pass


def recurses_hardly(task: TaskAttempt) -> Iterator[None]:
    sys.setrecursionlimit(60)
    yield
    raise ValueError("not deep")


def breaks_modules(task: TaskAttempt) -> Iterator[None]:
    socket.socket.send = None  # type: ignore[method-assign,assignment]
    builtins.isinstance = None  # type: ignore[assignment]
    time.monotonic = None  # type: ignore[assignment]
    yield from waits(task)


def prints_half_a_character(task: TaskAttempt) -> None:
    print("\ud800", flush=True)  # noqa: T201 - as user code does


def raises_half_a_character(task: TaskAttempt) -> None:
    raise ValueError("half: \ud800")


def prints_a_flood(task: TaskAttempt) -> None:
    for number in range(200_000):
        print(f"{number:>100}")  # noqa: T201
    print("x" * 5_000_000, flush=True)  # noqa: T201
    raise ValueError("after the flood")


HARM: dict[Callable[[Any], Any], str] = {
    exits: "died",
    kills_itself: "died",
    reads_nowhere: "died",
    closes_all_files: "died",
    closes_all_files_and_returns: "died",
    has_no_streams: "ValueError: in silence",
    opens_nothing: "Too many open files",
    recurses_hardly: "",
    breaks_modules: "",
    prints_half_a_character: "UnicodeEncodeError",
    raises_half_a_character: "ValueError: half: ",
    prints_a_flood: "ValueError: after the flood",
}


def kill_task_executors() -> None:
    namespace = cluster_namespace(CLUSTER_ID)
    for actor in live_actors():
        if (actor.namespace, actor.kind) == (namespace, "TaskExecutor"):
            kill(actor.pid)


def run(client: ClusterClient, code: Callable[[Any], Any]) -> str:
    """What the job has failed with; empty: nothing."""
    return outcome(client.submit(task_job(code, restart_strategy=NoRestart())))


def outcome(handle: JobHandle) -> str:
    status = handle.wait(timeout=SECONDS)
    if status is JobStatus.FINISHED:
        return ""
    with pytest.raises(JobExecutionError) as failed:
        handle.result(timeout=SECONDS)
    return str(failed.value)


@pytest.fixture(scope="module")
def texts(client: ClusterClient) -> dict[Callable[[Any], Any], str]:
    """What the jobs have failed with, some of them at a time: one that runs beside them all is not
    harmed, nor one after them."""

    def finishes(task: TaskAttempt) -> None:
        with tempfile.TemporaryFile():
            pass

    found: dict[Callable[[Any], Any], str] = {}
    beside = client.submit(task_job(waits, restart_strategy=NoRestart()))
    for place in range(0, len(HARM), AT_ONCE):
        codes = list(HARM)[place : place + AT_ONCE]
        handles = [client.submit(task_job(c, restart_strategy=NoRestart())) for c in codes]
        found.update(zip(codes, map(outcome, handles), strict=True))
        assert run(client, finishes) == "", codes
    assert beside.status() is JobStatus.RUNNING
    beside.cancel()
    assert beside.wait(timeout=SECONDS) is JobStatus.CANCELED
    return found


@pytest.mark.parametrize(("code", "cause"), HARM.items(), ids=[code.__name__ for code in HARM])
def test_job_that_harms_its_process_fails_with_the_cause_and_harms_no_other_job(
    texts: dict[Callable[[Any], Any], str], code: Callable[[Any], Any], cause: str
) -> None:
    assert texts[code]
    assert cause in texts[code]


def test_next_job_does_not_see_what_a_job_changed_in_its_process(
    client: ClusterClient, tmp_path: Path
) -> None:
    """Once, five jobs in a row failed because a job had lowered the open files limit of its
    process."""
    note = tmp_path / "pid"

    def changes_all(task: TaskAttempt) -> None:
        os.chdir("/")
        os.environ["OF_ANOTHER_JOB"] = "1"
        os.umask(0o777)
        tempfile.mkstemp = None  # type: ignore[assignment]
        threading.Thread(target=time.sleep, args=(3600,), daemon=True, name="left").start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    def finds_nothing(task: TaskAttempt) -> None:
        assert os.getcwd() != "/"
        assert "OF_ANOTHER_JOB" not in os.environ
        assert os.umask(0o022) != 0o777
        assert callable(tempfile.mkstemp)
        assert "left" not in [thread.name for thread in threading.enumerate()]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64
        note.write_text(str(os.getpid()))

    assert run(client, changes_all) == ""
    for _ in range(3):
        assert run(client, finds_nothing) == ""
    wait_until(lambda: not psutil.pid_exists(int(note.read_text())), 100, "the end of its process")


@pytest.mark.parametrize("how", ["returns", "exits", "is cancelled", "dies with its TaskExecutor"])
def test_child_processes_of_a_job_end_with_its_task_process(
    client: ClusterClient, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / how

    def starts_processes(task: TaskAttempt) -> Iterator[None]:
        folder.mkdir()
        child = subprocess.Popen(["sleep", "3600"])
        apart = subprocess.Popen(["sleep", "3601"], start_new_session=True)
        forked = os.fork()
        if not forked:
            time.sleep(3602)
            os._exit(0)
        for pid in (child.pid, apart.pid, forked):
            (folder / str(pid)).touch()
        (folder / "part").write_text(str(os.getpid()))
        (folder / "part").rename(folder / "all")
        if how == "exits":
            os._exit(1)
        elif how != "returns":
            yield from waits(task)

    handle = client.submit(task_job(starts_processes, restart_strategy=NoRestart()))
    wait_until((folder / "all").exists, SECONDS, "three processes")
    if how == "is cancelled":
        handle.cancel()
    elif how == "dies with its TaskExecutor":
        kill_task_executors()
        kill(int((folder / "all").read_text()))
    handle.wait(timeout=SECONDS)
    if how == "dies with its TaskExecutor":
        assert run(client, lambda task: None) == "", "in the next one"
    pids = [int(path.name) for path in folder.iterdir() if path.name != "all"]
    assert len(pids) == 3

    def is_there(pid: int) -> bool:
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    wait_until(lambda: not any(map(is_there, pids)), 100, "the end of all three")
