"""Which tests run in which process, where ``--dist`` has several of them run the tests: one has all
that share a Ray, and the others take the rest, a file at a time; files of few tests come last,
among them those that start a Ray of their own."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
ON_A_CLUSTER = re.compile(r"\bmark\.(ray|ray_up)\b")
"""Markers of tests on Ray."""
OWN_RAY = re.compile(r"\bmark\.own_ray\b")
"""Marker of files whose tests need nothing of the Ray that the others share."""
ALSO = ("tests/actors/task_executor/test_process_watch.py",)
"""Looks for processes that others have left behind, so nobody may leave any meanwhile."""


class ByPlace(LoadScopeScheduling):  # type: ignore[misc]
    """The process that hands tests out knows their ids, and nothing else of them."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "on a cluster" if "[ray" in nodeid or _needs_ray(path) else path


@cache
def _needs_ray(path: str) -> bool:
    if path in ALSO:
        return True
    text = (ROOT / path).read_text("utf-8")
    return ON_A_CLUSTER.search(text) is not None and OWN_RAY.search(text) is None


@pytest.hookimpl(optionalhook=True)  # as there may be no pytest-xdist, or it is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByPlace:
    return ByPlace(config, log)
