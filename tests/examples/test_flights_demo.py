"""The demo as its user runs it: a script in a process of its own, with a cluster of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import flights_demo
import pandas as pd
import psutil
import pytest

from flinkray.testing.postgres_server import why_not
from tests.examples.flights_expected import assert_same_statistics, expected_statistics

# 270 s of processor time: beside other tests one demo has taken 14 minutes
pytestmark = [
    pytest.mark.ray,
    pytest.mark.own_ray,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
]

MARK = "FLIGHTS_DEMO_TEST"
END_LIMIT = 10.0
"""Seconds after the demo's end within which every process of it must be gone."""


class Demo:
    """A running demo, and all processes that come from it: they inherit a variable."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.mark = uuid.uuid4().hex
        environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        self.process = subprocess.Popen(
            [sys.executable, flights_demo.__file__, "--output", str(folder / "output"), *options],
            cwd=folder,
            env=environment | {MARK: self.mark, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        self.lines: list[str] = []

    def read_until(self, text: str) -> None:
        if not any(text in line for line in self._read()):
            pytest.fail(f"the demo ended without {text!r}")

    def wait(self) -> int:
        """Read the demo's output to its end and return its exit status."""
        for _ in self._read():
            pass
        return self.process.wait()

    def _read(self) -> Iterator[str]:
        """Yield the demo's lines, and print them, so that a failed test shows how far it came."""
        for line in self.output:
            sys.stdout.write(f"{time.strftime('%X')} {line}")
            self.lines.append(line.rstrip())
            yield line

    def press_ctrl_c(self) -> None:
        """As a terminal does: the whole foreground process group is interrupted."""
        os.killpg(self.process.pid, signal.SIGINT)

    def processes(self) -> list[psutil.Process]:
        mine = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    mine.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
        return mine

    def processes_left(self) -> list[str]:
        """Command lines of what is not gone `END_LIMIT` after the demo's end."""
        _, alive = psutil.wait_procs(self.processes(), timeout=END_LIMIT)
        return [" ".join(process.cmdline()[:6]) for process in alive]

    def end(self) -> None:
        for process in self.processes():
            process.kill()
        self.process.wait()
        self.output.close()


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.end()


def test_demo_writes_the_numbers_that_pandas_computes_and_leaves_no_process(
    tmp_path: Path, demos: list[Demo]
) -> None:
    demo = Demo(tmp_path)
    demos.append(demo)

    assert demo.wait() == 0

    output = "\n".join(demo.lines)
    assert_same_statistics(
        pd.read_parquet(tmp_path / "output" / "flights.parquet"), expected_statistics()
    )
    assert (tmp_path / "output" / "flights.png").read_bytes().startswith(b"\x89PNG")
    assert "336,776 flights, 328,521 departed 12.6 min late on average" in output
    assert "ExpressJet Airlines        EWR-DTW   19:00" in output
    for slot in (0, 1):
        assert f"slot {slot}: RUNNING in TaskExecutor-" in output
    assert "/#/actors" in output
    assert "worst so far: 08 Mar  LaGuardia  105.7 min late on average" in output
    assert len(re.findall(r"half way: kill -9 \d+, which was TaskProcess-\S+", output)) == 2
    assert "the job noticed: " in output
    (latest,) = re.findall(r"checkpoints are complete; number (\d+) took", output)
    (restored,) = re.findall(r"the job goes on from checkpoint (\d+), not from the beg", output)
    assert int(restored) >= int(latest) > 0
    assert "336,776 flights in 1,095 airports' days: the same as without a kill" in output
    assert re.findall(r"queried: after \d+ days, JFK is usually \d+ ± \d+ min late", output)
    assert re.findall(r"the job went on from checkpoint \d+, and is finished", output)
    hours = f"19,486 hours in Parquet files in {tmp_path / 'output' / 'hours'}"
    assert f"{hours}, 616 alerts in {where_alerts_go(tmp_path)}: what pandas computes" in output
    assert "EWR  09 Feb 10:00   269.0 min late on average, usual: 8.0 ± 9.3" in output
    assert demo.processes_left() == []


def where_alerts_go(folder: Path) -> str:
    if why_not():
        return f"Parquet files in {folder / 'output' / 'alerts'}"
    return "table flights_alerts of PostgreSQL"


def test_ctrl_c_while_spark_works_cancels_the_job_and_leaves_no_process(
    tmp_path: Path, demos: list[Demo]
) -> None:
    demo = Demo(tmp_path)
    demos.append(demo)
    demo.read_until("Spark: ")

    demo.press_ctrl_c()

    assert demo.wait() == flights_demo.INTERRUPTED
    output = "\n".join(demo.lines)
    assert "interrupted: cancelling the job" in output
    assert "Traceback" not in output
    assert not (tmp_path / "output").exists()
    assert demo.processes_left() == []


def test_parallelism_0_is_refused_with_one_line_and_exit_status_1(
    tmp_path: Path, demos: list[Demo]
) -> None:
    demo = Demo(tmp_path, "--parallelism", "0")
    demos.append(demo)

    assert demo.wait() == 1

    errors = [line for line in demo.lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert "parallelism" in errors[0]
    assert "Traceback" not in "\n".join(demo.lines)
    assert demo.processes_left() == []
