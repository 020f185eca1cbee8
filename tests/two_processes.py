"""Which tests run in which process, where ``--dist`` has several of them run the tests: those that
share a Ray are in one, and come first; the rest goes to whoever has nothing else, a file at a time,
those of many tests first.  Files that start a Ray of their own take longer than their few tests
say, and come when there is still something for the other process."""

from __future__ import annotations

import re
from collections import Counter
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
OF_A_PARAMETER = re.compile(r"\[(.*-)?ray\b")
"""In the id of a test on Ray of which another one is without Ray."""
ON_A_SHARED_RAY = "on a shared Ray"
OF_OWN_RAY = 12
"""As if a file that starts its own Ray had so many tests: some 250 files have fewer."""
ALSO = ("tests/actors/task_executor/test_process_watch.py",)
"""Looks for processes that others have left behind, so nobody may leave any meanwhile."""


class ByPlace(LoadScopeScheduling):  # type: ignore[misc]
    """The process that hands tests out knows their ids, and nothing else of them."""

    def _split_scope(self, nodeid: str) -> str:
        return _place(nodeid)


def _place(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    return ON_A_SHARED_RAY if OF_A_PARAMETER.search(nodeid) or _needs_ray(path) else path


@cache
def _needs_ray(path: str) -> bool:
    return path in ALSO or (_has(ON_A_CLUSTER, path) and not _has(OWN_RAY, path))


@cache
def _has(marker: re.Pattern[str], path: str) -> bool:
    return marker.search((ROOT / path).read_text("utf-8")) is not None


@pytest.hookimpl(optionalhook=True)  # as there may be no pytest-xdist, or it is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByPlace:
    config.option.loadscopereorder = False  # see pytest_collection_modifyitems
    return ByPlace(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(_place(item.nodeid) for item in items)

    def order(item: pytest.Item) -> tuple[int, bool]:
        place = _place(item.nodeid)
        is_own = place != ON_A_SHARED_RAY and _has(OWN_RAY, place)
        return -(OF_OWN_RAY if is_own else tests[place]), is_own

    items.sort(key=order)
