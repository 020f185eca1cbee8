"""The programs in the README do what a reader expects of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def save_program(mark: str, path: Path) -> None:
    """Write the program of the README that contains *mark* to *path*."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    (program,) = (program for program in programs if mark in program)
    path.write_text(program, encoding="utf-8")


def output_of(*arguments: str, folder: Path) -> str:
    """Return what Python prints when it runs in *folder* with these arguments."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ray
@pytest.mark.own_ray
def test_stream_program_of_the_readme_counts_all_readings(tmp_path: Path) -> None:
    save_program("StreamExecutionEnvironment", tmp_path / "counts.py")
    run = ("-m", "flinkray", "run", "--address", "local", "--python", "counts.py")
    printed = output_of(*run, folder=tmp_path)
    counts: Counter[int] = Counter()
    for sensor, count in re.findall(r"^sensor (\d): (\d+) readings$", printed, re.M):
        counts[int(sensor)] += int(count)
    assert counts == dict.fromkeys(range(10), 10000)
    assert printed.count("5000 readings") == 20


@pytest.mark.ray
@pytest.mark.own_ray
@pytest.mark.spark
def test_program_of_the_readme_prints_the_sums_of_squares(tmp_path: Path) -> None:
    save_program("SparkSession", tmp_path / "squares.py")
    save_program("flinkray.spark_job", tmp_path / "program.py")
    printed = output_of("program.py", folder=tmp_path)
    found = {tuple(map(int, row)) for row in re.findall(r"^\d+ +(\d) +(\d+)$", printed, re.M)}
    expected = {(digit, sum(n * n for n in range(digit, 1_000_000, 10))) for digit in range(10)}
    assert found == expected
