"""Partitioners: choose the channels of each record.

A partitioner splits a batch into one batch per channel. A partitioner that does not split passes
the batch on unchanged.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import index
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.core.key_group_ranges import owner_of
from flinkray.kernels.dividing import divided, divided_lists
from flinkray.kernels.keys import NumberedKeys, looked_up
from flinkray.state.key_group_assignment import (
    KeyGroupAssigner,
    hash_long,
    is_plain_integer,
    key_groups_of_array,
    key_groups_of_integers,
    owners_of_keys,
    stable_hash,
)
from flinkray.state.key_values import are_plain
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import Function
from flinkray.streaming.operator_errors import Reading, reading_at
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.keying import Keys

TABLE_LIMIT = 1 << 16
"""Largest range of integer keys for a lookup table. Keys in a wider range are hashed each time."""

_FEW_KEYS = 1 << 13
"""Up to this number, finding known texts in a table costs less than hashing as Java does."""


class StreamPartitioner(ABC):
    """Base class of all partitioners, which choose the channels of each record. A subtask has its
    own partitioner for each edge."""

    name: ClassVar[str]
    pointwise: ClassVar[bool] = False
    """Whether each producer is connected to only some of the consumers."""

    channels: int = 1

    @property
    def functions(self) -> Sequence[Any]:
        """User functions that are opened before the first batch and closed in the end."""
        return ()

    def setup(self, channels: int, max_parallelism: int, seed: int) -> None:
        """Set the number of channels, the number of key groups, and the seed of random choices.
        Called once, before the first batch."""
        self.channels = channels

    @abstractmethod
    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        """Yield (channel, block) for each channel that gets records."""

    @abstractmethod
    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        """Yield (channel, columns) for each channel that gets records."""


class _WholeBatch(StreamPartitioner):
    def next_channel(self) -> int:
        return 0

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        return ((self.next_channel(), block),)

    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        return ((self.next_channel(), columns),)


class ForwardPartitioner(_WholeBatch):
    """Sends all records to the consumer's subtask with the same index as the producer's subtask."""

    name = "FORWARD"
    pointwise = True


class GlobalPartitioner(_WholeBatch):
    """Sends all records to the first subtask of the consumer."""

    name = "GLOBAL"


class _RoundRobin(StreamPartitioner):
    _next = 0

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        if self.channels == 1:
            return ((0, block),)
        return self._deal(block)

    def _deal(self, block: Block) -> Iterable[tuple[int, Block]]:
        first, channels = self._next, self.channels
        self._next = (first + len(block)) % channels
        values, times = block.values, block.timestamps
        for place in range(min(channels, len(block))):
            part = Block(
                values[place::channels],
                None if times is None else times[place::channels],
                None,
                block.origin,
            )
            yield (first + place) % channels, part

    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        rows, channels = len(columns), self.channels
        first = self._next
        self._next = (first + rows) % channels
        bounds = [rows * part // channels for part in range(channels + 1)]
        for place, (start, end) in enumerate(pairwise(bounds)):
            if end > start:
                times = None if columns.timestamps is None else columns.timestamps[start:end]
                part = columns.batch.slice(start, end - start)
                yield (
                    (first + place) % channels,
                    Columns(part, times, columns.origin, columns.scalar),
                )


class RebalancePartitioner(_RoundRobin):
    """Sends records to all subtasks of the consumer in turn; a random subtask is the first."""

    name = "REBALANCE"

    def setup(self, channels: int, max_parallelism: int, seed: int) -> None:
        super().setup(channels, max_parallelism, seed)
        self._next = random.Random(seed).randrange(channels)


class RescalePartitioner(_RoundRobin):
    """Sends records in turn to the subtasks of the consumer that this subtask is connected to."""

    name = "RESCALE"
    pointwise = True


class _ByChannel(StreamPartitioner):
    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        if self.channels == 1:
            return ((0, block),)
        return self._distribute(block)

    def _distribute(self, block: Block) -> Iterable[tuple[int, Block]]:
        chosen, keys = self.choose(block)
        lists = (block.values, block.timestamps, keys)
        for channel, (values, times, its_keys) in divided_lists(lists, chosen, self.channels):
            assert values is not None
            yield channel, Block(values, times, its_keys, block.origin)

    @abstractmethod
    def choose(self, block: Block) -> tuple[list[int], Any]:
        """Return (channel of each record, key of each record).
        The receivers get the keys with the records, so that they need not compute them. The second
        item is None if there are no keys, or if user code could change the keys."""

    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        if self.channels == 1:
            return ((0, columns),)
        return self._distribute_columns(columns, self.choose_columns(columns))

    def _distribute_columns(
        self, columns: Columns, chosen: npt.NDArray[Any]
    ) -> Iterable[tuple[int, Columns]]:
        parts = divided(columns.batch, columns.timestamps, chosen, self.channels)
        for channel, batch, times in parts:
            yield channel, Columns(batch, times, columns.origin, columns.scalar)

    def choose_columns(self, columns: Columns) -> npt.NDArray[Any]:
        chosen, _ = self.choose(columns.to_block())
        return np.fromiter(chosen, np.int32, len(columns))


class _ChannelsOfIntegers:
    """Computes the channels of integer keys. While all keys so far lie in a narrow range, a lookup
    table is used, which costs a tenth of hashing."""

    def __init__(self, owners: npt.NDArray[Any], max_parallelism: int) -> None:
        self._owners = owners
        self._max_parallelism = max_parallelism
        self._low = self._end = 0
        self._table = np.empty(0, np.int32)

    def of(self, column: pa.Array) -> npt.NDArray[Any]:
        """Return the channel of each key of a column of integers without nulls."""
        keys = column.to_numpy(zero_copy_only=False)
        found = looked_up(keys, self._table, self._low)
        if found is not None or not len(column):
            return np.empty(0, np.int32) if found is None else found
        low, end = int(keys.min()), int(keys.max()) + 1
        if low < self._low or end > self._end:
            if self._end > self._low:
                low, end = min(low, self._low), max(end, self._end)
            if end - low > TABLE_LIMIT:
                owners = owners_of_keys(column, self._owners)
                return self._hashed(keys) if owners is None else owners
            # Not arange(low, end): *end* may exceed the largest long.
            self._table = self._hashed(np.arange(end - low, dtype=np.int64) + low)
            self._low, self._end = low, end
        places = keys.astype(np.int64, copy=False)
        channels: npt.NDArray[Any] = self._table.take(places - self._low if self._low else places)
        return channels

    def _hashed(self, keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._owners[key_groups_of_integers(keys, self._max_parallelism)]


class _ChannelsOfKeys(dict[Any, int]):
    """Cache of the channels of keys, with bounded size. Missing channels are computed."""

    def __init__(self, group_of: KeyGroupAssigner, owners: Sequence[int]) -> None:
        super().__init__()
        self._group_of = group_of
        self._owners = owners

    def __missing__(self, key: Any) -> int:
        channel = self._owners[self._group_of(key)]
        if self._group_of.remembers(key):
            if len(self) >= TABLE_LIMIT:
                self.clear()
            self[key] = channel
        return channel


class KeyGroupPartitioner(_ByChannel):
    """Sends records to the subtask that owns the key's key group.
    *always*: compute keys even for a single channel, so that a failing selector is noticed."""

    name = "HASH"

    def __init__(self, keys: Keys, always: bool = False) -> None:
        self.keys = keys
        self._always = always

    @property
    def functions(self) -> Sequence[Any]:
        return self.keys.functions

    def setup(self, channels: int, max_parallelism: int, seed: int) -> None:
        super().setup(channels, max_parallelism, seed)
        self._group_of = KeyGroupAssigner(max_parallelism, self.keys.hash_of)
        owners = [owner_of(group, max_parallelism, channels) for group in range(max_parallelism)]
        self.channel_of: Callable[[Any], int] = _ChannelsOfKeys(self._group_of, owners).__getitem__
        self._owner_array: npt.NDArray[np.int32] = np.array(owners, np.int32)
        self._numbered = NumberedKeys(TABLE_LIMIT)
        self._of_integers: _ChannelsOfIntegers | None = None
        if self.keys.hash_of in (stable_hash, hash_long):
            self._of_integers = _ChannelsOfIntegers(self._owner_array, max_parallelism)

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        if block.keys is not None:  # these are keys of an earlier key_by
            block = Block(block.values, block.timestamps, None, block.origin)
        if self._always and self.channels == 1:
            self.keys.computed(block)
        return super().split_block(block)

    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        if self._always and self.channels == 1 and self.keys.of_columns(columns) is None:
            self.keys.computed(columns.to_block())
        return super().split_columns(columns)

    def choose(self, block: Block) -> tuple[list[int], Any]:
        keys = self.keys.computed(block)
        channels = list(map(self.channel_of, keys))
        # Other keys may be equal but not identical to a dictionary after serialization.
        return channels, keys if are_plain(keys) else None

    def choose_columns(self, columns: Columns) -> npt.NDArray[Any]:
        keys = self.keys.of_columns(columns)
        if keys is None:
            return super().choose_columns(columns)
        if self._of_integers is not None and is_plain_integer(keys):
            return self._of_integers.of(keys)
        hash_of = self.keys.hash_of
        if pa.types.is_dictionary(keys.type):
            groups = key_groups_of_array(keys, self._group_of.max_parallelism, hash_of)
            return self._owner_array.take(groups)
        if self._numbered.number_known(keys.type) > _FEW_KEYS:
            owners = owners_of_keys(keys, self._owner_array, hash_of)
            if owners is not None:
                return owners
        return self._numbered.of(keys, lambda distinct: map(self.channel_of, distinct))


class ShufflePartitioner(_ByChannel):
    """Sends each record to a random subtask of the consumer."""

    name = "SHUFFLE"

    def setup(self, channels: int, max_parallelism: int, seed: int) -> None:
        super().setup(channels, max_parallelism, seed)
        self._random = random.Random(seed)

    def choose(self, block: Block) -> tuple[list[int], Any]:
        return self._random.choices(range(self.channels), k=len(block)), None

    def choose_columns(self, columns: Columns) -> npt.NDArray[Any]:
        return np.array(self._random.choices(range(self.channels), k=len(columns)), np.int32)


class CustomPartitioner(_ByChannel):
    """Partitioner that sends each record to the channel that the user's function returns.
    *partitioner*: a Partitioner, or a function of key and number of channels. *keys*: gives the key
    of each record."""

    name = "CUSTOM"

    def __init__(self, partitioner: Any, keys: Keys) -> None:
        self._partitioner = partitioner
        self._keys = keys
        self.reading: Reading | None = None
        """The records being read, for error messages."""

    @property
    def functions(self) -> Sequence[Any]:
        own = (self._partitioner,) if isinstance(self._partitioner, Function) else ()
        return (*own, *self._keys.functions)

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        return self._distribute(block)

    def choose(self, block: Block) -> tuple[list[int], Any]:
        partition: Callable[[Any, int], int]
        partition = getattr(self._partitioner, "partition", self._partitioner)
        channels = self.channels
        keys = self._keys.selected(block)
        records = iter(block.values)
        self.reading = block, records
        chosen = [partition(key, channels) for key, _ in zip(keys, records, strict=True)]
        wrong = next((p for p, c in enumerate(chosen) if not _is_below(channels, c)), None)
        if wrong is not None:
            self.reading = reading_at(block, wrong)
            raise StreamError(
                f"the partitioner chose channel {chosen[wrong]!r} for key {keys[wrong]!r}: there "
                f"are channels 0 to {channels - 1}"
            )
        return chosen, None


def _is_below(channels: int, chosen: Any) -> bool:
    if type(chosen) is int:
        return 0 <= chosen < channels
    return hasattr(chosen, "__index__") and 0 <= index(chosen) < channels


class BroadcastPartitioner(StreamPartitioner):
    """Sends every record to every subtask of the consumer."""

    name = "BROADCAST"

    def select_channel(self) -> int:
        raise StreamError("a broadcast has no single channel: every record goes to all")

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        """Yield the block for every channel. Each channel but the last gets copies of mutable
        values."""
        last = self.channels - 1
        return (
            (channel, block if channel == last else block.owned())
            for channel in range(self.channels)
        )

    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        return ((channel, columns) for channel in range(self.channels))
