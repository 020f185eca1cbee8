"""What user code prints in an embedded cluster, at its client."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flinkray.client.embedded_output import EmbeddedOutput
from flinkray.core.captured_output import files_of_job, last_lines
from flinkray.core.ids import JobID

JOB = JobID(b"a job of a test.")
RAYS = ":job_id:01000000\n:actor_name:TaskProcess-1\n"


def process(logs: Path, name: str, text: str, job_id: JobID = JOB) -> Path:
    """The file of its standard output."""
    file = logs / f"worker-{name}-01000000-7.out"
    file.write_text(text)
    (logs / f"flinkray-{job_id}-{name}.out").symlink_to(file.name)
    return file


def test_job_output_is_shown_once_in_whole_lines_without_lines_of_ray(tmp_path: Path) -> None:
    shown: list[str] = []
    output = EmbeddedOutput(str(tmp_path), shown.append)
    file = process(tmp_path, "TaskProcess-1", f"{RAYS}one\ntw")
    (tmp_path / "worker-of-nobody.out").write_text("not a job's\n")
    (tmp_path / f"flinkray-{JOB}-TaskProcess-1.err").write_text("a log line\n")
    output.show()
    assert shown == ["one\n"]
    with file.open("a") as more:
        more.write("o\nthree")
    output.show()
    output.show()
    assert shown == ["one\n", "two\n"]
    output.start()
    output.close()
    assert shown == ["one\n", "two\n", "three"]


def test_progress_line_is_cleared_only_before_job_output_is_shown(tmp_path: Path) -> None:
    happened: list[str] = []
    output = EmbeddedOutput(str(tmp_path), happened.append)
    output.clear_before(lambda: happened.append("clear"))
    output.show()
    process(tmp_path, "TaskProcess-1", RAYS)
    output.show()
    process(tmp_path, "TaskProcess-2", "two\n")
    output.show()
    assert happened == ["clear", "two\n"]


def test_closed_output_pipe_causes_one_warning_and_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError("nobody reads")

    caplog.set_level(logging.WARNING)
    output = EmbeddedOutput(str(tmp_path), broken)
    for name in ("1", "2"):
        process(tmp_path, name, "a line\n")
        output.show()
    assert [record.getMessage() for record in caplog.records] == [
        "what jobs print is not shown any more: nobody reads"
    ]


def test_output_files_of_a_job_are_found_by_the_job_id(tmp_path: Path) -> None:
    process(tmp_path, "TaskProcess-1", "one\n")
    process(tmp_path, "TaskProcess-2", "another's\n", JobID(b"b job of a test."))
    (tmp_path / f"flinkray-{JOB}-gone.out").symlink_to("worker-that-is-gone.out")
    stage = tmp_path / f"flinkray-spark-{JOB}-0-executors.log"
    stage.write_text("printed by an executor\n")
    assert files_of_job(str(tmp_path), JOB) == [
        tmp_path / f"flinkray-{JOB}-TaskProcess-1.out",
        stage,
    ]


@pytest.mark.parametrize(
    ("lines", "most_bytes", "text"),
    [
        (2, 1000, b"three\nfour\n"),
        (9, 1000, b"one\nthree\nfour\n"),
        (0, 1000, b""),
        (9, 10, b"four\n"),
        (9, 11, b"three\nfour\n"),
        (9, 4, b"our\n"),
    ],
)
def test_last_lines_of_an_output_file_respect_the_limits_of_lines_and_bytes(
    tmp_path: Path, lines: int, most_bytes: int, text: bytes
) -> None:
    file = tmp_path / "worker.out"
    file.write_text(":job_id:1\none\n:task_name:two\nthree\nfour\n")
    assert last_lines(file, lines, most_bytes) == text


def test_progress_bar_in_an_output_file_counts_as_one_line(tmp_path: Path) -> None:
    """A progress bar must not push other lines out of the last lines of a file."""
    file = tmp_path / "worker.err"
    file.write_bytes(b"one\n 10 %\r 20 %\r 30 %\ntwo\n")
    assert last_lines(file, 2) == b" 10 %\r 20 %\r 30 %\ntwo\n"


def test_output_of_a_replacing_process_is_shown_from_its_beginning(
    tmp_path: Path,
) -> None:
    """The last lines of the replaced process, which has the same name, are shown before."""
    shown: list[str] = []
    output = EmbeddedOutput(str(tmp_path), shown.append)
    first = process(tmp_path, "coordinator", "a long line of the first\n")
    output.show()
    with first.open("a") as more:
        more.write("its last words\n")
    second = tmp_path / "worker-second-01000000-8.out"
    second.write_text("second\n")
    link = tmp_path / f"flinkray-{JOB}-coordinator.out"
    link.unlink()
    link.symlink_to(second.name)
    output.show()
    output.show()
    assert shown == ["a long line of the first\n", "its last words\n", "second\n"]
