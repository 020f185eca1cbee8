"""Progress on a terminal and elsewhere; Ctrl-C once and twice."""

from __future__ import annotations

import io
import signal
import threading
from dataclasses import replace

import pytest

from flinkray.client.attached_run import LeftRunning, ProgressDisplay, wait_attached
from flinkray.client.cluster_client import ClusterClient
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.execution_info import ExecutionInfo
from flinkray.scheduler.job_info import JobDetails, StageProgressInfo, VertexInfo
from flinkray.scheduler.states import ExecutionState, JobStatus
from tests.client.scripted_cluster import World, job_graph

JOB = JobID(b"a job of a test.")
CREATED = JobDetails(JOB, "flights", JobStatus.CREATED, 10.0, None, {}, 0)
WAITING = replace(CREATED, pending_reason="2 slots of 4 CPU are missing")
VERTEX = VertexInfo(
    JobVertexID(bytes(16)),
    "flights",
    2,
    (
        ExecutionInfo(0, 0, ExecutionState.RUNNING, "TE-1 bundle 0 on 10.0.0.1"),
        ExecutionInfo(1, 0, ExecutionState.DEPLOYING, None),
    ),
    (StageProgressInfo(3, "count", 40, 2, 5, 0),),
    2,
    80,
)
RUNNING = replace(CREATED, status=JobStatus.RUNNING, vertices=(VERTEX,), restarts=1)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_elsewhere_each_change_of_state_is_a_line() -> None:
    stream = io.StringIO()
    display = ProgressDisplay(stream, lambda: 100.0)
    for details in (CREATED, CREATED, WAITING, WAITING, RUNNING):
        display.show(details)
    display.clear()
    assert stream.getvalue().splitlines() == [
        "CREATED",
        "CREATED | waiting for slots: 2 slots of 4 CPU are missing",
        "RUNNING | restart 1 | 1/2 executors | stage 3: 5/40 tasks | 2 stages, 80 tasks done",
    ]


def test_elsewhere_mere_progress_is_a_line_now_and_then() -> None:
    stream = io.StringIO()
    now = [100.0]
    display = ProgressDisplay(stream, lambda: now[0])
    for second in range(12):
        now[0] = 100.0 + second
        vertex = replace(VERTEX, completed_tasks=second)
        display.show(replace(RUNNING, vertices=(vertex,)))
    shown = [line.rsplit(", ", 1)[1] for line in stream.getvalue().splitlines()]
    assert shown == ["0 tasks done", "5 tasks done", "10 tasks done"]


def test_a_terminal_has_one_line_that_is_overwritten_and_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    display = ProgressDisplay(stream, lambda: 100.0)
    for details in (CREATED, CREATED, WAITING):
        display.show(details)
    display.message("note")
    assert stream.getvalue() == "\rCREATED\x1b[K\rCREATED | waiting f\x1b[K\r\x1b[Knote\n"


def interrupt_main_thread() -> None:
    """As Ctrl-C does."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_job_that_ends_by_itself_was_not_interrupted(world: World, client: ClusterClient) -> None:
    handle = client.submit(job_graph())
    world.end(handle.job_id)
    display = ProgressDisplay(io.StringIO(), lambda: 0.0)
    assert wait_attached(handle, display) == (JobStatus.FINISHED, False)


def test_ctrl_c_cancels_the_job_and_waits_for_its_end(world: World, client: ClusterClient) -> None:
    handle = client.submit(job_graph())

    async def interrupt_then_end() -> None:
        if not world.cancelled:
            interrupt_main_thread()
        else:
            world.end_on_loop(handle.job_id, JobStatus.CANCELED)

    world.on_result_request = interrupt_then_end
    stream = io.StringIO()
    display = ProgressDisplay(stream, lambda: 0.0)
    assert wait_attached(handle, display) == (JobStatus.CANCELED, True)
    assert world.cancelled == [handle.job_id]
    assert f"cancelling job {handle.job_id} (Ctrl-C again leaves at once)" in stream.getvalue()


def test_second_ctrl_c_leaves_the_job_as_it_is(world: World, client: ClusterClient) -> None:
    handle = client.submit(job_graph())

    async def interrupt() -> None:
        interrupt_main_thread()

    world.on_result_request = interrupt
    with pytest.raises(LeftRunning):
        wait_attached(handle, ProgressDisplay(io.StringIO(), lambda: 0.0))
    assert world.cancelled == [handle.job_id]


def test_ctrl_c_at_the_moment_the_job_finished_tells_how_it_ended(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(job_graph())
    asked: list[None] = []

    async def end_and_interrupt() -> None:
        asked.append(None)
        if len(asked) == 1:
            world.jobs[handle.job_id] = replace(
                world.jobs[handle.job_id], status=JobStatus.FINISHED
            )
            interrupt_main_thread()
        else:
            world.end_on_loop(handle.job_id)

    world.on_result_request = end_and_interrupt
    display = ProgressDisplay(io.StringIO(), lambda: 0.0)
    assert wait_attached(handle, display) == (JobStatus.FINISHED, True)
