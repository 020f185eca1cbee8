"""How often a process searches for cyclic garbage while programs run in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from flinkray.core.garbage_collection import YOUNG
from flinkray.streaming.local.local_job import rare_searches


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_garbage_collection_is_rare_until_the_last_running_program_has_ended(
    thresholds: tuple[int, int, int],
) -> None:
    first, second = rare_searches(), rare_searches()
    first.__enter__()
    second.__enter__()
    assert gc.get_threshold()[0] == YOUNG
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == YOUNG
    second.__exit__(None, None, None)
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("chosen", [0, 2 * YOUNG])
@pytest.mark.usefixtures("thresholds")
def test_garbage_collection_is_not_changed_if_it_is_off_or_already_rarer(chosen: int) -> None:
    gc.set_threshold(chosen)
    with rare_searches():
        assert gc.get_threshold()[0] == chosen
    assert gc.get_threshold()[0] == chosen


@pytest.mark.usefixtures("thresholds")
def test_garbage_collection_thresholds_set_by_a_program_stay_after_its_end() -> None:
    with rare_searches():
        gc.set_threshold(123)
    assert gc.get_threshold()[0] == 123
