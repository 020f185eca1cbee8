"""Partitioners: which channels records go to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.core.key_group_ranges import owner_of
from flinkray.state.key_group_assignment import key_group_of
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
    StreamPartitioner,
)


def ready(partitioner: Any, channels: int, seed: int = 0) -> Any:
    partitioner.setup(channels, 128, seed)
    return partitioner


def channels_of(partitioner: StreamPartitioner, *blocks: Block) -> dict[int, list[Any]]:
    result: dict[int, list[Any]] = {}
    for block in blocks:
        for channel, part in partitioner.split_block(block):
            result.setdefault(channel, []).extend(part.values)
    return result


def test_rebalance_sends_records_round_robin_from_a_random_first_channel() -> None:
    """ST-22"""
    starts = set()
    for seed in range(30):
        parts = channels_of(ready(RebalancePartitioner(), 3, seed), Block(range(4)), Block([4, 5]))
        start = next(channel for channel, values in parts.items() if 0 in values)
        starts.add(start)
        assert [parts[(start + step) % 3] for step in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert starts == {0, 1, 2}


def test_rescale_sends_round_robin_from_the_first_channel() -> None:
    """ST-22"""
    for seed in range(5):
        partitioner = ready(RescalePartitioner(), 2, seed)
        assert channels_of(partitioner, Block([0, 1, 2])) == {0: [0, 2], 1: [1]}
        assert channels_of(partitioner, Block([3])) == {1: [3]}


def test_broadcast_sends_records_to_all_channels() -> None:
    """ST-22"""
    partitioner = ready(BroadcastPartitioner(), 3)
    assert channels_of(partitioner, Block([1, 2])) == {0: [1, 2], 1: [1, 2], 2: [1, 2]}
    with pytest.raises(StreamError, match="no single channel"):
        partitioner.select_channel()


@pytest.mark.parametrize("channels", [1, 2, 1024])
def test_records_with_equal_keys_go_to_the_same_channel(channels: int) -> None:
    """ST-22"""
    keys = [f"key-{number % 50}" for number in range(500)]
    partitioner = KeyGroupPartitioner(Keys(lambda value: value))
    partitioner.setup(channels, 1024, 0)
    parts = channels_of(partitioner, Block(keys))
    for channel, values in parts.items():
        for key in set(values):
            assert owner_of(key_group_of(key, 1024), 1024, channels) == channel
    assert Counter(v for values in parts.values() for v in values) == Counter(keys)


def test_columns_go_to_the_same_channels_as_their_rows() -> None:
    batch = pa.record_batch({"k": [f"key-{n % 7}" for n in range(40)], "v": list(range(40))})
    times = np.arange(40)
    partitioner = ready(KeyGroupPartitioner(Keys("k")), 3)
    columns = Columns(batch, times)
    by_columns = dict(partitioner.split_columns(columns))
    by_rows = dict(partitioner.split_block(columns.to_block()))
    assert by_columns.keys() == by_rows.keys()
    for channel, part in by_columns.items():
        block = part.to_block()
        assert block.values == by_rows[channel].values
        assert block.timestamps == by_rows[channel].timestamps


@pytest.mark.parametrize(
    "batches",
    [
        [
            pa.array([5, 900, -3, 5]),
            pa.array([40_000, -9000]),
            pa.array([7, 1 << 40]),
            pa.array([6]),
        ],
        [pa.array([-(1 << 63), (1 << 63) - 1, 0])],
        [pa.array([(1 << 63) - 1, (1 << 63) - 2])],
        [pa.array([-(1 << 63), 1 - (1 << 63)])],
        [pa.array([3, None, 4]), pa.array([3, 4])],
        [pa.array([1, 2], pa.uint64()), pa.array([250], pa.uint8()), pa.array([], pa.int64())],
        [pa.array(["a", None, "b"]), pa.array(["c", "a"]).dictionary_encode()],
        [pa.array([1.5, 2.0, None, 1.5])],
    ],
    ids=["near and far", "extremes", "greatest", "least", "nulls", "unsigned", "texts", "floats"],
)
def test_columns_are_sent_to_the_owners_of_the_key_groups_of_their_keys(
    batches: list[pa.Array],
) -> None:
    """ST-22: one partitioner for several batches."""
    partitioner = ready(KeyGroupPartitioner(Keys("k")), 3)
    for keys in batches:
        chosen = partitioner.choose_columns(Columns(pa.record_batch({"k": keys})))
        expected = [owner_of(key_group_of(key, 128), 128, 3) for key in keys.to_pylist()]
        assert chosen.tolist() == expected


def test_records_sent_to_channels_keep_their_timestamps_and_keys() -> None:
    partitioner = ready(KeyGroupPartitioner(Keys(lambda v: v % 5)), 2)
    for _, part in partitioner.split_block(Block(list(range(20)), [100 + n for n in range(20)])):
        assert part.timestamps == [100 + value for value in part.values]
        assert part.keys == [value % 5 for value in part.values]


def test_forward_and_global_send_whole_batches_to_the_first_channel() -> None:
    block = Block([1, 2, 3])
    for partitioner in (ForwardPartitioner(), GlobalPartitioner()):
        assert list(ready(partitioner, 1).split_block(block)) == [(0, block)]


def test_shuffle_sends_to_all_channels_and_repeats_with_its_seed() -> None:
    def parts(seed: int) -> dict[int, list[Any]]:
        return channels_of(ready(ShufflePartitioner(), 4, seed), Block(range(200)))

    assert set(parts(1)) == {0, 1, 2, 3}
    assert parts(1) == parts(1)
    assert parts(1) != parts(2)


def test_custom_partitioner_gets_key_and_number_of_channels() -> None:
    partitioner = ready(CustomPartitioner(lambda key, n: key % n, Keys(lambda v: v[1])), 3)
    assert channels_of(partitioner, Block([("a", 4), ("b", 3), ("c", 5)])) == {
        1: [("a", 4)],
        0: [("b", 3)],
        2: [("c", 5)],
    }


def test_custom_partitioner_may_return_a_numpy_integer() -> None:
    partitioner = ready(CustomPartitioner(lambda key, n: np.int64(key), Keys(lambda v: v)), 2)
    assert channels_of(partitioner, Block([1, 0])) == {1: [1], 0: [0]}
    for wrong in (-1, 2):
        with pytest.raises(StreamError, match="there are channels 0 to 1"):
            channels_of(partitioner, Block([wrong]))


def test_custom_partitioner_that_chooses_a_missing_channel_is_refused() -> None:
    partitioner = ready(CustomPartitioner(lambda key, n: n, Keys(lambda v: v)), 2)
    with pytest.raises(StreamError, match="channel 2 for key 'x': there are channels 0 to 1"):
        channels_of(partitioner, Block(["x"]))
