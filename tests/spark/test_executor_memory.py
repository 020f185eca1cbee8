"""How the memory of a slot is split into an executor's heap and overhead."""

from __future__ import annotations

import pytest

from flinkray.core.errors import ConfigurationError
from flinkray.core.resources import ResourceProfile
from flinkray.spark.executor_memory import MIB, split_memory


@pytest.mark.parametrize(
    ("total", "heap", "overhead"),
    [(683, 513, 170), (1024, 768, 256), (2048, 1664, 384), (10240, 9216, 1024)],
)
def test_heap_and_memory_overhead_of_an_executor_make_up_the_memory_of_its_slot(
    total: int, heap: int, overhead: int
) -> None:
    profile = ResourceProfile(1.0, total * MIB)

    assert split_memory(profile) == (heap * MIB, overhead * MIB)
    assert heap + overhead == total


@pytest.mark.parametrize("memory", [0, 100 * MIB, 681 * MIB])
def test_a_slot_too_small_for_an_executor_is_refused_with_the_least_size(memory: int) -> None:
    with pytest.raises(ConfigurationError, match="at least 682m"):
        split_memory(ResourceProfile(1.0, memory))


def test_smallest_slot_allowed_has_room_for_the_smallest_executor_heap() -> None:
    heap, _ = split_memory(ResourceProfile(1.0, 682 * MIB))

    assert heap >= 512 * MIB


def test_overhead_that_is_no_memory_size_is_refused_and_named_in_the_error() -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.executor\.memoryOverhead.*much"):
        split_memory(ResourceProfile(1.0, 2048 * MIB), "much")
