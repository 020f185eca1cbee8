"""Who reads which partitions, and which part of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.scheduler.graph import distribution
from flinkray.scheduler.graph.job_graph import DistributionPattern
from tests.scheduler.graphs import ALL_TO_ALL, POINTWISE

SIZES = st.integers(1, 60)


def read_by(
    producers: int, consumers: int, pattern: DistributionPattern = POINTWISE
) -> list[list[int]]:
    """Per consumer the partitions it reads."""
    sizes = (pattern, producers, consumers)
    return [
        list(
            distribution.partitions_of_group(*sizes, distribution.group_of_consumer(*sizes, number))
        )
        for number in range(consumers)
    ]


@pytest.mark.parametrize(
    ("producers", "consumers", "table"),
    [
        (3, 5, "0 0 1 1 2"),
        (3, 10, "0 0 0 0 1 1 1 2 2 2"),
        (4, 6, "0 0 1 2 2 3"),
        (6, 10, "0 0 1 1 2 3 3 4 4 5"),
        (5, 3, "0 12 34"),
        (10, 3, "012 345 6789"),
        (6, 4, "0 12 3 45"),
        (10, 6, "0 12 34 5 67 89"),
        (14, 16, None),
    ],
)
def test_pointwise_consumers_read_the_partitions_of_flinks_tables(
    producers: int, consumers: int, table: str | None
) -> None:
    """EG-05."""
    expected = (
        [[0], [0], [1], [2], [3], [4], [5], [6], [7], [7], [8], [9], [10], [11], [12], [13]]
        if table is None
        else [[int(digit) for digit in word] for word in table.split()]
    )
    assert read_by(producers, consumers) == expected


@pytest.mark.parametrize("factor", [1, 2, 3, 7])
def test_pointwise_edge_with_an_integral_ratio_divides_partitions_evenly(factor: int) -> None:
    """EG-06."""
    narrow = 5
    wide = narrow * factor
    assert read_by(wide, narrow) == [
        list(range(factor * i, factor * (i + 1))) for i in range(narrow)
    ]
    assert read_by(narrow, wide) == [[i // factor] for i in range(wide)]


def test_all_to_all_consumer_reads_its_subpartition_of_every_partition() -> None:
    """EG-04."""
    assert read_by(3, 2, ALL_TO_ALL) == [[0, 1, 2], [0, 1, 2]]
    assert [distribution.subpartition_of(ALL_TO_ALL, 3, 2, i) for i in range(2)] == [0, 1]
    assert distribution.number_of_subpartitions(ALL_TO_ALL, 3, 2, 2) == 2


def test_partition_has_as_many_subpartitions_as_it_has_pointwise_consumers() -> None:
    """EG-08."""
    assert [distribution.number_of_subpartitions(POINTWISE, 2, 3, p) for p in range(2)] == [2, 1]
    pairs = [
        (read_by(2, 3)[i][0], distribution.subpartition_of(POINTWISE, 2, 3, i)) for i in range(3)
    ]
    assert pairs == [(0, 0), (0, 1), (1, 0)]
    assert {distribution.subpartition_of(POINTWISE, 5, 3, i) for i in range(3)} == {0}


def test_pointwise_edge_from_2_to_4_or_4_to_2_connects_neighbouring_subtasks() -> None:
    """EG-10."""
    assert read_by(2, 4) == [[0], [0], [1], [1]]
    assert read_by(4, 2) == [[0, 1], [2, 3]]


@given(producers=SIZES, consumers=SIZES, pattern=st.sampled_from(DistributionPattern))
def test_every_partition_and_every_consumer_is_in_exactly_one_group(
    producers: int, consumers: int, pattern: DistributionPattern
) -> None:
    sizes = (pattern, producers, consumers)
    partitions: list[int] = []
    readers: list[int] = []
    for group in range(distribution.number_of_groups(*sizes)):
        own = distribution.partitions_of_group(*sizes, group)
        read = distribution.consumers_of_group(*sizes, group)
        assert own
        assert read
        assert {distribution.group_of_partition(*sizes, p) for p in own} == {group}
        assert {distribution.group_of_consumer(*sizes, c) for c in read} == {group}
        parts = [distribution.subpartition_of(*sizes, c) for c in read]
        assert parts == list(range(len(read)))
        partitions += own
        readers += read
    assert partitions == list(range(producers))
    assert readers == list(range(consumers))
