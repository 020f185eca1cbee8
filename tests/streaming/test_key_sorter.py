"""Records sorted by key and time, in bounded memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.key_sorter import KeySorter


@pytest.mark.parametrize("memory", [1, 3_000, 1 << 30])
def test_records_are_sorted_by_key_and_time_with_any_memory_size(memory: int) -> None:
    chance = random.Random(3)
    sorter = KeySorter(memory)
    given: dict[str, list[Any]] = {}
    for number in range(40):
        keys = [chance.choice("abcdef") for _ in range(5)]
        times = [chance.randrange(10) for _ in range(5)]
        values = [(number, place) for place in range(5)]
        sorter.add(0, Block(values, times), keys)
        for record in zip(keys, times, values, strict=True):
            given.setdefault(record[0], []).append(record[1:])
    assert {1: 40, 1 << 30: 0}.get(memory, sorter.number_of_runs) == sorter.number_of_runs
    assert memory != 3_000 or 5 < sorter.number_of_runs < 40
    found = {key: [(e[1], e[4]) for e in entries] for key, entries in sorter.by_key()}
    assert found == {key: sorted(records) for key, records in given.items()}
    sorter.close()
    assert sorter.number_of_runs == 0


def test_different_keys_with_equal_hashes_are_separate_groups() -> None:
    """ "Aa" and "BB" have the same hash in Java."""
    sorter = KeySorter()
    sorter.add(0, Block([1, 2, 3, 4, 5]), ["Aa", "BB", "Aa", "C#", "BB"])
    found = [(key, [e[4] for e in entries]) for key, entries in sorter.by_key()]
    assert sorted(found) == [("Aa", [1, 3]), ("BB", [2, 5]), ("C#", [4])]
