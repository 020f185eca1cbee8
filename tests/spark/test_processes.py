"""Processes of a stage are found by their marker and ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from flinkray.core.ids import JobID
from flinkray.spark.processes import (
    end_leftovers,
    end_processes,
    leftover_processes,
    marker_environment,
    marker_options,
    note_application,
    remove_scratch,
    stage_name,
)

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"
IGNORES_SIGTERM = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); sys.stdin.read()"
)


class Starter:
    """Starts processes, and sees to their end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(
        self, environment: dict[str, str], program: str = WAITS, *arguments: str
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._stack.callback(process.communicate)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process


@pytest.fixture
def start() -> Iterator[Starter]:
    with ExitStack() as stack:
        yield Starter(stack)


def test_search_finds_only_processes_of_the_given_job(start: Starter) -> None:
    job, other = JobID.generate(), JobID.generate()
    mine = start(marker_environment(job, "v-m-0"))
    start(marker_environment(other, "v-m-0"))
    start({})

    assert [process.pid for process in leftover_processes(job)] == [mine.pid]


def test_search_for_processes_of_an_attempt_finds_none_of_the_next_attempt(start: Starter) -> None:
    job = JobID.generate()
    first = start(marker_environment(job, "v-m-0"))
    second = start(marker_environment(job, "v-m-1"))

    assert [process.pid for process in leftover_processes(job, "v-m-0")] == [first.pid]
    assert {process.pid for process in leftover_processes(job)} == {first.pid, second.pid}


def test_process_is_found_by_the_marker_in_its_command_line(start: Starter) -> None:
    job = JobID.generate()
    process = start({}, WAITS, *marker_options(job, "v-m-0"))

    assert [found.pid for found in leftover_processes(job)] == [process.pid]
    assert [found.pid for found in leftover_processes(job, "v-m-0")] == [process.pid]
    assert leftover_processes(job, "v-m-1") == []


def test_processes_left_over_by_a_stage_are_ended_with_their_child_processes(
    start: Starter,
) -> None:
    job = JobID.generate()
    parent = start(
        marker_environment(job, "v-m-0"),
        "import subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {WAITS!r}], stdin=subprocess.PIPE);"
        "sys.stdin.read()",
    )
    assert len(leftover_processes(job)) == 2

    assert end_leftovers(job) == 2

    assert leftover_processes(job) == []
    assert not psutil.pid_exists(parent.pid)


def test_leftover_process_that_ignores_sigterm_is_killed(start: Starter) -> None:
    job = JobID.generate()
    process = start(marker_environment(job, "v-m-0"), IGNORES_SIGTERM)

    assert end_processes(leftover_processes(job), grace=0.2) == []

    assert not psutil.pid_exists(process.pid)


def test_ending_a_process_that_has_already_ended_raises_no_error(start: Starter) -> None:
    process = start({})
    known = psutil.Process(process.pid)
    process.kill()
    process.wait(timeout=150)

    assert end_processes([known]) == []


def test_cleanup_of_a_job_removes_its_files_and_no_files_of_other_jobs(tmp_path: Path) -> None:
    job, other = JobID.generate(), JobID.generate()
    (tmp_path / "app-1").mkdir()
    for name in (stage_name(job, "v-m-0"), stage_name(job, "v-m-1"), stage_name(other, "v-m-0")):
        (tmp_path / name / "blockmgr").mkdir(parents=True)

    note_application(str(tmp_path), job, "v-m-0", "app-1")

    remove_scratch(str(tmp_path), job, "v-m-0")
    assert not (tmp_path / "app-1").exists()
    assert not (tmp_path / stage_name(job, "v-m-0")).exists()
    assert (tmp_path / stage_name(job, "v-m-1")).exists()

    remove_scratch(str(tmp_path), job)
    assert [path.name for path in tmp_path.iterdir()] == [stage_name(other, "v-m-0")]
