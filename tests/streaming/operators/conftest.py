"""Runs the tests of operators with keyed state on the heap and on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flinkray.state.backend import KeyedStateBackend
from flinkray.state.disk import DiskKeyedStateBackend
from flinkray.testing.operator_harness import OperatorHarness
from tests.state.every_backend import SMALL

ON_A_DISK = (
    "test_aligned_window_operator",
    "test_join_operators",
    "test_keyed_process_operator",
    "test_look_up_operator",
    "test_queryable_state_operator",
    "test_window_operator",
)
"""Modules about operators whose state and timers a backend keeps by key; columns lie in memory with
every backend."""

FORGETFUL = replace(SMALL, cache_bytes=1)
"""What was written is read again from the disk."""

_opened: list[KeyedStateBackend] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in ON_A_DISK:
        metafunc.fixturenames.append("keyed_backend")
        metafunc.parametrize("keyed_backend", ["heap", "disk"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def keyed_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of every harness; hypothesis calls a test many times within one of its own."""
    if request.param == "heap":
        yield
        return
    before = OperatorHarness.make_keyed_state
    OperatorHarness.make_keyed_state = staticmethod(_on_a_disk)
    yield
    OperatorHarness.make_keyed_state = staticmethod(before)


def _on_a_disk(
    max_parallelism: int, key_groups: Any, now: Any, schedule: Any, hash_of: Any
) -> KeyedStateBackend:
    backend = DiskKeyedStateBackend(
        max_parallelism, key_groups, now, schedule, hash_of, settings=FORGETFUL
    )
    _opened.append(backend)
    return backend


def pytest_runtest_teardown() -> None:
    """Tests do not close what they make, but for some."""
    while _opened:
        _opened.pop().close()
