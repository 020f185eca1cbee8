"""What the command line prints: tables, details of jobs, durations."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from flinkray.client import cli_output
from flinkray.core.ids import JobID, JobVertexID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.reports.checkpoint_statistics import (
    CheckpointsOverview,
    CheckpointStatistics,
    CheckpointStatus,
)
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobProgress,
    ModelInfo,
    VertexInfo,
    VertexProgress,
)
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState, JobStatus

_VERTEX = VertexInfo(
    JobVertexID(bytes(16)),
    "flights",
    2,
    (
        ExecutionInfo(
            0, 1, ExecutionState.RUNNING, "TaskExecutor-0-0 bundle 0 on 10.0.0.1", "ac70", 42
        ),
        ExecutionInfo(1, 1, ExecutionState.SCHEDULED, None),
    ),
    (),
    2,
    80,
    1,
)
_DETAILS = JobDetails(
    JobID(bytes(16)),
    "flights",
    JobStatus.RUNNING,
    10.0,
    None,
    {"RUNNING": 11.0},
    1,
    (_VERTEX,),
    "1 slot of 4 CPU is missing",
    (ExceptionEntry(11.0, "it died\nbadly", "line 7", "flights (1/2)", "TE-1 on 10.0.0.1"),),
    WorkerGroupId("abc"),
)


def test_job_details_show_duration_executions_reason_for_waiting_and_failures() -> None:
    text = cli_output.job_details(_DETAILS, now=75.0)
    for line in (
        "duration    1 min 5 s",
        "restarts    1",
        "group       abc (placement group)",
        "waits       1 slot of 4 CPU is missing",
        "vertex flights (parallelism 2)",
        "  Spark: 2 stages and 80 tasks done, 1 tasks failed",
        "  SUBTASK  ATTEMPT  STATE      LOCATION                               EXECUTOR",
        "  0        1        RUNNING    TaskExecutor-0-0 bundle 0 on 10.0.0.1  actor ac70 pid 42",
        "  1        1        SCHEDULED  -                                      -",
        "  badly",
    ):
        assert line in text.splitlines()
    assert "flights (1/2) TE-1 on 10.0.0.1" in text


def test_job_details_show_concurrent_failures_grouped_by_cause() -> None:
    concurrent = tuple(
        ExceptionEntry(11.5, text, task=task)
        for text, task in [
            ("no disk\nat all", "flights (2/9)"),
            ("it died\nbadly", "flights (3/9)"),
            ("no disk\nat all", "flights (4/9)"),
            ("it died\nbadly", None),
        ]
    )
    failure = replace(_DETAILS.exceptions[0], concurrent=concurrent)
    text = cli_output.job_details(replace(_DETAILS, exceptions=(failure,)), now=75.0)
    assert [line for line in text.splitlines() if line.startswith("  and")] == [
        "  and flights (2/9), flights (4/9): no disk",
        "  and flights (3/9), the job: the same",
    ]


def test_job_details_show_a_traceback_with_verbose_and_otherwise_a_hint_at_verbose() -> None:
    short = cli_output.job_details(_DETAILS, now=75.0).splitlines()
    assert short[-1] == "  traceback: with --verbose"
    long = cli_output.job_details(_DETAILS, now=75.0, verbose=True).splitlines()
    assert long == [*short[:-1], "  line 7"]

    failure = replace(_DETAILS.exceptions[0], traceback=None)
    without = cli_output.job_details(replace(_DETAILS, exceptions=(failure,)), now=75.0)
    assert without.splitlines() == short[:-1]


def test_job_details_of_python_tasks_do_not_mention_spark() -> None:
    execution = ExecutionInfo(0, 0, ExecutionState.RUNNING, "TaskExecutor-0-0 bundle 0 on 10.0.0.1")
    vertex = VertexInfo(JobVertexID(bytes(16)), "words", 1, (execution,))
    details = replace(_DETAILS, vertices=(vertex,), pending_reason=None)
    assert "Spark" not in cli_output.job_details(details, now=75.0)
    far = VertexProgress("words", 1, {"RUNNING": 1})
    progress = replace(JobProgress.of(details), vertices=(far,))
    assert cli_output.progress_text(progress) == "RUNNING | restart 1 | 1/1 tasks of words"


@pytest.mark.parametrize(("failovers", "text"), [(1, "1 JobMaster lost"), (2, "2 JobMasters lost")])
def test_job_details_count_lost_job_masters_as_failovers_not_as_restarts(
    failovers: int, text: str
) -> None:
    details = replace(_DETAILS, restarts=0, failovers=failovers, pending_reason=None)
    assert f"failovers   {text}" in cli_output.job_details(details, now=75.0).splitlines()
    assert cli_output.progress_text(JobProgress.of(details)) == f"RUNNING | {text}"
    without = replace(details, failovers=0)
    assert "failovers" not in cli_output.job_details(without, now=75.0)
    assert cli_output.progress_text(JobProgress.of(without)) == "RUNNING"


def _checkpoint(
    checkpoint_id: int, status: CheckpointStatus, duration: float | None, **others: Any
) -> CheckpointStatistics:
    at = 1_700_000_000_000 + checkpoint_id
    return CheckpointStatistics(checkpoint_id, status, False, at, duration, 4, 3, **others)


def test_job_details_show_the_latest_checkpoints_of_each_kind() -> None:
    """Without --verbose the latest of each kind; with --verbose the newest few, one per line."""
    running = _checkpoint(9, CheckpointStatus.IN_PROGRESS, None)
    path = "/checkpoints/chk-8/_metadata"
    complete = _checkpoint(
        8, CheckpointStatus.COMPLETED, 0.25, state_size=2048, checkpointed_size=512, path=path
    )
    failed = _checkpoint(7, CheckpointStatus.FAILED, 61.0, failure="checkpoint 7: no room")
    saved = replace(complete, checkpoint_id=6, is_savepoint=True, path="/s/_metadata")
    told = CheckpointsOverview(
        1, 5, 2, 3, complete, saved, failed, 4, (running, complete, failed, saved)
    )
    details = replace(_DETAILS, checkpoints=told)
    at = cli_output.format_time(1_700_000_000)
    text = cli_output.job_details(details, now=75.0)
    for line in (
        "checkpoints 5 completed, 2 failed, 1 in progress, restored 3 times, last from 4",
        f"  latest    8 at {at}, took 0.2 s, 2k, 512b of it new: {path}",
        f"  savepoint 6 at {at}, took 0.2 s, 2k, 512b of it new: /s/_metadata",
        f"  failed    7 at {at}: checkpoint 7: no room",
    ):
        assert line in text.splitlines()
    once = replace(_DETAILS, checkpoints=replace(told, restored=1))
    assert ", restored once from 4\n" in cli_output.job_details(once, now=75.0)
    long = [
        line.split() for line in cli_output.job_details(details, 75.0, verbose=True).splitlines()
    ]
    time = at.split()
    for row in (
        ["9", "checkpoint", "IN_PROGRESS", *time, "-", "3/4", "-", "-"],
        ["8", "checkpoint", "COMPLETED", *time, "0.2", "s", "3/4", "2k", "512b"],
        ["7", "checkpoint", "FAILED", *time, "1", "min", "1", "s", "3/4", "-", "-"],
        ["6", "savepoint", "COMPLETED", *time, "0.2", "s", "3/4", "2k", "512b"],
    ):
        assert row in long
    progress = cli_output.progress_text(JobProgress.of(replace(details, pending_reason=None)))
    assert progress == "RUNNING | restart 1 | 5 checkpoints, 2 failed"
    deleted = replace(told, latest_completed=replace(complete, path=None))
    ended = replace(details, checkpoints=deleted, end_time=90.0)
    assert (
        f"  latest    8 at {at}, took 0.2 s, 2k, 512b of it new: deleted, as it was not to be "
        f"retained when the job ended ({cli_output.format_time(90.0)})"
    ) in cli_output.job_details(ended, now=95.0).splitlines()


def test_job_details_without_any_checkpoint_do_not_mention_checkpoints() -> None:
    assert "checkpoints" not in cli_output.job_details(_DETAILS, now=75.0)
    assert "checkpoints" not in cli_output.progress_text(JobProgress.of(_DETAILS))


_NUMBERS = VertexInfo(
    JobVertexID(bytes(16)),
    "Source: numbers that come from a file of numbers",
    1,
    (
        ExecutionInfo(
            0, 0, ExecutionState.RUNNING, None,
            io_metrics=IOMetrics(None, 3000, None, 24_576, 40, 150, 10),
        ),
    ),
    io_metrics=IOMetrics(None, 3000, None, 24_576, 40, 150, 10),
    measured=1,
)  # fmt: skip
_WORDS = VertexInfo(
    JobVertexID(bytes(16)),
    "words",
    2,
    (
        ExecutionInfo(
            0, 0, ExecutionState.RUNNING, "TE-1",
            io_metrics=IOMetrics(2999, None, 1_600_000, None, 0, 0, 0),
        ),
        ExecutionInfo(1, 0, ExecutionState.RUNNING, "TE-1"),
    ),
    io_metrics=IOMetrics(2999, None, 1_600_000, None, 0, 0, 0),
    measured=1,
)  # fmt: skip


def test_job_details_show_records_bytes_and_busy_time_of_each_vertex() -> None:
    text = cli_output.job_details(replace(_DETAILS, vertices=(_NUMBERS, _WORDS)), now=75.0)
    flow = text.partition("VERTEX")[1:]
    assert [line.split("  ") for line in map(_narrow, "".join(flow).splitlines()[:3])] == [
        ["VERTEX", "RECORDS IN", "BYTES IN", "RECORDS OUT", "BYTES OUT", "BUSY", "BACK-PRESSURED",
         "COUNTED"],
        ["Source: numbers that come from a file o…", "-", "-", "3000", "24k", "20%", "75%", "1/1"],
        ["words", "2999", "1.5m", "-", "-", "-", "-", "1/2"],
    ]  # fmt: skip
    assert text.count("RECORDS IN") == 1


def test_job_details_with_verbose_show_records_and_bytes_of_each_subtask() -> None:
    details = replace(_DETAILS, vertices=(_NUMBERS, _WORDS))
    text = cli_output.job_details(details, now=75.0, verbose=True)
    subtasks = text.partition("vertex words")[2].splitlines()[1:4]
    assert [_narrow(line.strip()).split("  ")[5:] for line in subtasks] == [
        ["RECORDS IN", "BYTES IN", "RECORDS OUT", "BYTES OUT", "BUSY", "BACK-PRESSURED"],
        ["2999", "1.5m", "-", "-", "-", "-"],
        ["?", "?", "?", "?", "?", "?"],
    ]


def _narrow(line: str) -> str:
    """With two spaces between columns."""
    return re.sub("  +", "  ", line)


def test_job_details_as_json_have_ids_as_hex_and_states_by_name() -> None:
    value = json.loads(cli_output.to_json(_DETAILS))
    assert value["job_id"] == "0" * 32
    assert value["worker_group"] == "abc"
    assert value["vertices"][0]["executions"][0]["state"] == "RUNNING"
    assert value["status_timestamps"] == {"RUNNING": 11.0}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-0.1, "0.0 s"), (2.54, "2.5 s"), (60, "1 min 0 s"), (3725, "1 h 2 min")],
)
def test_format_seconds_uses_the_units_that_suit_the_length_of_a_duration(
    seconds: float, text: str
) -> None:
    assert cli_output.format_seconds(seconds) == text


def test_shown_duration_of_an_ended_job_stops_at_its_end() -> None:
    details = replace(_DETAILS, end_time=12.5, status=JobStatus.FINISHED)
    assert "duration    2.5 s" in cli_output.job_details(details, now=1e6)


def test_job_details_escape_control_characters_in_names_and_failures() -> None:
    failure = ExceptionEntry(5.0, "boom\x1b]0;title\x07\nsecond")
    details = JobDetails(
        JobID(bytes(16)), "a\rb", JobStatus.FAILED, 1.0, 2.0, {}, 0, exceptions=(failure,)
    )
    lines = cli_output.job_details(details, 3.0).splitlines()
    assert lines[1] == "name        a\\rb"
    assert lines[-2:] == ["  boom\\x1b]0;title\\x07", "  second"]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (None, "0123456789abcdef  0123456789"),
        (24, "0123456789a…  0123456789"),
        (5, "0123456…  0123456…"),  # eight characters are left of each
    ],
)
def test_tables_are_cut_to_the_terminal_width_but_columns_keep_a_minimum_width(
    width: int | None, line: str
) -> None:
    text = cli_output.table(("A", "B"), [("0123456789abcdef", "0123456789")], width)
    assert text.splitlines()[1] == line


def test_tables_align_text_with_wide_characters_and_accents() -> None:
    """A Chinese character takes two columns of a terminal, a combining accent takes none."""
    rows = [("日本語のジョブ", "1"), ("cafe\u0301", "2"), ("plain", "3")]
    assert cli_output.table(("NAME", "N"), rows, None).splitlines() == [
        "NAME            N",
        "日本語のジョブ  1",
        "cafe\u0301            2",
        "plain           3",
    ]
    assert cli_output.table(("NAME", "N"), rows, 13).splitlines()[1] == "日本語の…   1"


def test_models_are_shown_with_their_replicas_and_users() -> None:
    profile = ResourceProfile(1.0, 2**30, {"GPU": 0.5})
    users = (JobID(b"the first job   "), JobID(b"the second job  "))
    model = ModelInfo(users[0], "Sentiment", JobStatus.RUNNING, 2, 1, 8, profile, users)
    header, line = cli_output.model_table([model]).splitlines()
    assert header.split() == ["MODEL", "JOB", "ID", "STATUS", "REPLICAS", "EACH", "USED", "BY"]
    assert line.split()[:3] == ["Sentiment", str(users[0]), "RUNNING"]
    assert f"2 of 1..8  {profile}  {users[0]}, {users[1]}" in line
    assert cli_output.model_table([]) == "no models"
