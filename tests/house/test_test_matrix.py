"""The matrix of versions is that of pyproject.toml, and its oldest row has the lowest of each."""

from __future__ import annotations

import re
from pathlib import Path

from tools import test_matrix as matrix

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")


def test_oldest_versions_in_the_matrix_are_the_lower_bounds_of_the_requirements() -> None:
    required = ["ray[default]>=2.52,<2.61", "raydp==1.6.5", "numpy>=1.24", "setuptools<81"]
    assert list(matrix.oldest(required)) == ["ray==2.52", "numpy==1.24"]


def test_test_matrix_runs_the_oldest_python_with_the_oldest_dependencies() -> None:
    allowed = re.search(r'^requires-python = ">=(.*)"$', PROJECT, re.M)
    assert allowed is not None
    assert [row.python for row in matrix.ROWS if row.oldest] == [allowed[1]]


def test_folders_of_the_test_matrix_exist() -> None:
    root = Path(__file__).parents[2]
    assert [folder for folder in matrix.chosen() if not (root / folder).is_dir()] == []
    assert (root / matrix.ON_RAY.partition("::")[0]).is_file()
