"""How processes load modules and search for garbage."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import flinkray
import flinkray.client
import flinkray.file_results
import flinkray.state
import flinkray.streaming.network
import flinkray.testing
from flinkray.client.job_handle import JobHandle
from flinkray.core.garbage_collection import YOUNG, spare_what_is_there
from flinkray.core.lazy_door import lazy_door


@pytest.mark.parametrize(
    "package",
    [
        flinkray,
        flinkray.client,
        flinkray.errors,
        flinkray.file_results,
        flinkray.state,
        flinkray.streaming.network,
        flinkray.testing,
    ],
)
def test_every_name_that_a_package_exports_can_be_imported(package: ModuleType) -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_lazily_imported_name_is_cached_and_unknown_name_is_refused() -> None:
    load = lazy_door("flinkray.client")
    vars(flinkray.client).pop("JobHandle", None)
    assert load("JobHandle") is JobHandle
    assert vars(flinkray.client)["JobHandle"] is JobHandle
    with pytest.raises(AttributeError, match=r"module 'flinkray\.client' has no attribute 'Job'"):
        load("Job")


def test_importing_a_package_does_not_import_its_modules() -> None:
    code = (
        "import sys, flinkray.state; flinkray.errors.FlinkRayError; "
        "print({'flinkray.state.heap', 'flinkray.client', 'flinkray.datastream', 'ray', 'pyarrow'}"
        " & sys.modules.keys() or False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


@pytest.fixture
def spared() -> Iterator[None]:
    thresholds = gc.get_threshold()
    spare_what_is_there()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("spared")
def test_garbage_collection_examines_only_objects_made_after_the_start() -> None:
    searches: list[int] = []

    def searched(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            searches.append(len(gc.get_objects()))

    assert gc.get_freeze_count() > 10_000
    gc.callbacks.append(searched)
    try:
        kept = [[number] for number in range(YOUNG + 10_000)]
    finally:
        gc.callbacks.remove(searched)
    assert len(searches) == 1
    assert searches[0] < 2 * YOUNG
    assert len(kept) == YOUNG + 10_000


@pytest.mark.usefixtures("spared")
def test_cyclic_garbage_is_collected() -> None:
    class Node:
        def __init__(self) -> None:
            self.me = self

    for _ in range(3 * YOUNG):
        Node()
    assert sum(isinstance(thing, Node) for thing in gc.get_objects()) <= YOUNG
