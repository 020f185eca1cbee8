"""The stores that tests of them are held to: in memory, in local files and behind pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from flinkray.ha import Directory, MemoryDirectory, StandaloneHaServices, open_directory
from flinkray.ha.arrow_directory import ArrowDirectory


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture(params=["memory", "local", "pyarrow"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    if request.param == "memory":
        return MemoryDirectory()
    if request.param == "local":
        return open_directory(str(tmp_path / "not yet there"))
    return ArrowDirectory.from_uri((tmp_path / "by-arrow").as_uri())


@pytest.fixture
def services(directory: Directory, executor: Executor) -> StandaloneHaServices:
    return StandaloneHaServices(directory, executor)
