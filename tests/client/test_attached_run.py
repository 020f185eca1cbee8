"""Progress on a terminal and elsewhere; Ctrl-C once and twice."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import signal
import struct
import termios
import threading
from dataclasses import replace

import pytest

from flinkray.client.attached_run import LeftRunning, ProgressDisplay, ProgressLog, run_attached
from flinkray.client.cli_output import progress_text
from flinkray.client.cluster_client import ClusterClient
from flinkray.core.errors import RpcTimeoutError
from flinkray.core.ids import JobID
from flinkray.scheduler.reports.job_info import JobProgress, StageProgressInfo, VertexProgress
from flinkray.scheduler.shared.states import JobStatus
from tests.client.scripted_cluster import World, job_graph

JOB = JobID(b"a job of a test.")
CREATED = JobProgress(JOB, "flights", JobStatus.CREATED, 0)
WAITING = replace(CREATED, pending_reason="2 slots of 4 CPU are missing")
VERTEX = VertexProgress(
    "flights",
    2,
    {"RUNNING": 1, "DEPLOYING": 1},
    True,
    (StageProgressInfo(3, "count", 40, 2, 5, 0),),
    2,
    80,
)
RUNNING = replace(CREATED, status=JobStatus.RUNNING, vertices=(VERTEX,), restarts=1)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_in_a_file_has_a_line_for_each_change_of_state() -> None:
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


def test_progress_in_a_file_without_a_change_of_state_has_a_line_every_5_s() -> None:
    stream = io.StringIO()
    now = [100.0]
    display = ProgressDisplay(stream, lambda: now[0])
    for second in range(12):
        now[0] = 100.0 + second
        vertex = replace(VERTEX, completed_tasks=second)
        display.show(replace(RUNNING, vertices=(vertex,)))
    shown = [line.rsplit(", ", 1)[1] for line in stream.getvalue().splitlines()]
    assert shown == ["0 tasks done", "5 tasks done", "10 tasks done"]


def test_progress_on_a_terminal_overwrites_one_line_and_clears_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    display = ProgressDisplay(stream, lambda: 100.0)
    for details in (CREATED, CREATED, WAITING):
        display.show(details)
    display.message("note")
    assert stream.getvalue() == "\rCREATED\x1b[K\rCREATED | waiting f\x1b[K\r\x1b[Knote\n"


def test_progress_line_is_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width is that of the stream with the progress. Standard output may be a file, which has
    no width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    master, slave = pty.openpty()
    with os.fdopen(master, "rb", 0) as terminal, os.fdopen(slave, "w", encoding="utf-8") as stream:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
        ProgressDisplay(stream, lambda: 100.0).show(WAITING)
        assert terminal.read(1000) == b"\rCREATED | waiting for slots: \x1b[K"


def test_progress_line_with_wide_characters_is_cut_to_the_terminal_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "36")
    stream = Terminal()
    ProgressDisplay(stream, lambda: 100.0).show(replace(CREATED, pending_reason="日本語語"))
    assert stream.getvalue() == "\rCREATED | waiting for slots: 日本語\x1b[K"


def test_control_characters_in_job_and_vertex_names_are_escaped_in_progress() -> None:
    name = "\x1b[2J\nflights"
    stream = io.StringIO()
    display = ProgressDisplay(stream, lambda: 100.0)
    display.submitted(JOB, name)
    vertex = replace(VERTEX, name=name, is_spark_stage=False)
    display.show(replace(RUNNING, vertices=(vertex,)))
    first, second = stream.getvalue().splitlines()
    assert first == f"submitted job {JOB} (\\x1b[2J\\nflights)"
    assert "1/2 tasks of \\x1b[2J\\nflights" in second


def test_each_warning_of_a_job_is_shown_once(caplog: pytest.LogCaptureFixture) -> None:
    warned = replace(RUNNING, warnings=("state is pickled",))
    stream = io.StringIO()
    shows: list[ProgressDisplay | ProgressLog] = [
        ProgressDisplay(stream, lambda: 100.0),
        ProgressLog(lambda: 100.0),
    ]
    for display in shows:
        display.show(warned)
        display.show(RUNNING)  # by a JobMaster that was not told yet
        display.show(replace(warned, warnings=("state is pickled", "another")))
    assert stream.getvalue().splitlines() == [
        "warning: state is pickled",
        progress_text(RUNNING),
        "warning: another",
    ]
    assert [record.getMessage() for record in caplog.records] == [
        f"job {JOB} (flights): state is pickled",
        f"job {JOB} (flights): another",
    ]


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_log_warns_of_missing_slots_only_after_5_s(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flinkray.client.attached_run")
    clock = Clock()
    progress = ProgressLog(clock)
    progress.submitted(JOB, "flights")
    other = replace(WAITING, pending_reason="1 slot of 4 CPU is missing")
    for second, details in ((0, WAITING), (4, WAITING), (5, WAITING), (6, other), (9, WAITING)):
        clock.now = 100.0 + second
        progress.show(details)
    for second, details in ((10, other), (11, RUNNING), (12, RUNNING), (13, WAITING)):
        clock.now = 100.0 + second
        progress.show(details)
    waits = f"job {JOB} (flights) waits for slots:"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", f"submitted job {JOB} (flights)"),
        ("INFO", f"{waits} 2 slots of 4 CPU are missing"),
        ("WARNING", f"{waits} 2 slots of 4 CPU are missing"),
        ("WARNING", f"{waits} 1 slot of 4 CPU is missing"),
        ("INFO", f"job {JOB} (flights): {progress_text(RUNNING)}"),
        ("INFO", f"{waits} 2 slots of 4 CPU are missing"),
    ]


def test_waiting_for_a_job_continues_when_a_progress_request_fails(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(job_graph())
    looks: list[None] = []

    async def fail_then_end() -> None:
        looks.append(None)
        if len(looks) == 2:
            world.end_on_loop(handle.job_id)
        raise RpcTimeoutError("the JobMaster does not answer")

    world.on_progress_request = fail_then_end
    assert handle.wait(on_progress=lambda _: None, interval=0.01) is JobStatus.FINISHED
    assert len(looks) >= 2


def interrupt_main_thread() -> None:
    """As Ctrl-C does."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_attached_run_reports_no_interruption_if_its_job_ends_without_ctrl_c(
    world: World, client: ClusterClient
) -> None:
    job = job_graph()

    async def end() -> None:
        world.end_on_loop(job.job_id)

    world.after_submission = end
    stream = io.StringIO()
    display = ProgressDisplay(stream, lambda: 0.0)
    ended, was_interrupted = run_attached(client, job, display)
    assert (ended.status, was_interrupted) == (JobStatus.FINISHED, False)
    assert stream.getvalue() == f"submitted job {job.job_id} (a job)\n"


def test_ctrl_c_cancels_the_job_and_waits_for_its_end(world: World, client: ClusterClient) -> None:
    job = job_graph()

    async def interrupt_then_end() -> None:
        if not world.cancelled:
            interrupt_main_thread()
        else:
            world.end_on_loop(job.job_id, JobStatus.CANCELED)

    world.on_result_request = interrupt_then_end
    stream = io.StringIO()
    display = ProgressDisplay(stream, lambda: 0.0)
    ended, was_interrupted = run_attached(client, job, display)
    assert (ended.status, was_interrupted) == (JobStatus.CANCELED, True)
    assert world.cancelled == [job.job_id]
    assert f"cancelling job {job.job_id} (Ctrl-C again leaves at once)" in stream.getvalue()


def test_second_ctrl_c_stops_waiting_for_the_cancelled_job(
    world: World, client: ClusterClient
) -> None:
    job = job_graph()

    async def interrupt() -> None:
        interrupt_main_thread()

    world.on_result_request = interrupt
    with pytest.raises(LeftRunning):
        run_attached(client, job, ProgressDisplay(io.StringIO(), lambda: 0.0))
    assert world.cancelled == [job.job_id]


def test_ctrl_c_as_the_job_finishes_reports_the_job_as_finished(
    world: World, client: ClusterClient
) -> None:
    job = job_graph()
    asked: list[None] = []

    async def end_and_interrupt() -> None:
        asked.append(None)
        if len(asked) == 1:
            world.jobs[job.job_id] = replace(world.jobs[job.job_id], status=JobStatus.FINISHED)
            interrupt_main_thread()
        else:
            world.end_on_loop(job.job_id)

    world.on_result_request = end_and_interrupt
    display = ProgressDisplay(io.StringIO(), lambda: 0.0)
    ended, was_interrupted = run_attached(client, job, display)
    assert (ended.status, was_interrupted) == (JobStatus.FINISHED, True)


def test_each_restart_of_a_job_is_shown_as_a_warning_with_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    once = replace(RUNNING, restarts=3, restart_causes=("no topic", "a (1/2): KeyError: 'x'"))
    twice = replace(once, restarts=4, restart_causes=(*once.restart_causes, "gone\x1b[2J"))
    stream = io.StringIO()
    shows: list[ProgressDisplay | ProgressLog] = [
        ProgressDisplay(stream, lambda: 100.0),
        ProgressLog(lambda: 100.0),
    ]
    for display in shows:
        for progress in (RUNNING, once, once, twice):
            display.show(replace(progress, vertices=()))
    causes = ["no topic", "a (1/2): KeyError: 'x'"]
    assert [line for line in stream.getvalue().splitlines() if "warning" in line] == [
        *(
            f"warning: restart {n}, after a failure: {c}"
            for n, c in zip((2, 3), causes, strict=True)
        ),
        "warning: restart 4, after a failure: gone\\x1b[2J",
    ]
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    told = f"job {JOB} (flights): restart"
    assert warned == [
        f"{told} 2, after a failure: {causes[0]}",
        f"{told} 3, after a failure: {causes[1]}",
        f"{told} 4, after a failure: gone\x1b[2J",
    ]
