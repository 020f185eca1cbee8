"""The program in the README does what a reader expects of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
@pytest.mark.spark
@pytest.mark.slow
def test_program_of_the_readme_prints_the_sums_of_squares(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert program is not None
    script = tmp_path / "squares.py"
    script.write_text(program[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    printed = {tuple(map(int, row)) for row in re.findall(r"^\d+ +(\d) +(\d+)$", done.stdout, re.M)}
    expected = {(digit, sum(n * n for n in range(digit, 1_000_000, 10))) for digit in range(10)}
    assert printed == expected
