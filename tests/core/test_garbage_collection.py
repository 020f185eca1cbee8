"""How often a process of an endpoint searches for cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from flinkray.core.garbage_collection import YOUNG, spare_what_is_there


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
