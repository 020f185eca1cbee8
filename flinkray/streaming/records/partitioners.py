"""Which channels a record goes to.

A partitioner divides a batch into one for each channel it goes to; one that does not divide
passes the batch on as it is.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, pairwise
from operator import index
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.core.key_groups import owner_of
from flinkray.state.key_values import are_plain
from flinkray.state.keys import (
    KeyGroupAssigner,
    hash_long,
    is_plain_integer,
    key_groups_of_array,
    key_groups_of_integers,
    stable_hash,
)
from flinkray.streaming.errors import Reading, StreamError, reading_at
from flinkray.streaming.functions.functions import Function
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.keying import Keys

_IS_CHANNEL = [bytes(code == channel for code in range(256)) for channel in range(8)]
"""For each of a few channels, what turns the channels of records into whether they are that one."""

TABLE_LIMIT = 1 << 16
"""Integer keys that are further apart are hashed each time."""


class StreamPartitioner(ABC):
    """Base of all partitioners.  A subtask has its own for each edge."""

    name: ClassVar[str]
    pointwise: ClassVar[bool] = False
    """Each producer reaches some of the consumers only."""

    channels: int = 1

    @property
    def functions(self) -> Sequence[Any]:
        """Of the user's, which are to be opened before the first batch, and closed in the end."""
        return ()

    def setup(self, channels: int, max_parallelism: int, seed: int) -> None:
        """Before the first batch."""
        self.channels = channels

    @abstractmethod
    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        """Channel and batch, for each channel that gets something."""

    @abstractmethod
    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        """The same for columns."""


class _WholeBatch(StreamPartitioner):
    """One channel for a whole batch: dividing it would cost and gain nothing."""

    def next_channel(self) -> int:
        return 0

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        return ((self.next_channel(), block),)

    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        return ((self.next_channel(), columns),)


class ForwardPartitioner(_WholeBatch):
    """To the one consumer of the same subtask."""

    name = "FORWARD"
    pointwise = True


class GlobalPartitioner(_WholeBatch):
    """To the first consumer."""

    name = "GLOBAL"


class _RoundRobin(StreamPartitioner):
    """Record by record to one channel after the other."""

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
        """Consecutive rows stay together: taking every n-th would copy all of them."""
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
    """To all consumers in turn, from a random one on."""

    name = "REBALANCE"

    def setup(self, channels: int, max_parallelism: int, seed: int) -> None:
        super().setup(channels, max_parallelism, seed)
        self._next = random.Random(seed).randrange(channels)


class RescalePartitioner(_RoundRobin):
    """To the consumers that belong to this producer in turn, from the first on."""

    name = "RESCALE"
    pointwise = True


class _ByChannel(StreamPartitioner):
    """Each record to a channel of its own choosing."""

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        if self.channels == 1:
            return ((0, block),)
        return self._distribute(block)

    def _distribute(self, block: Block) -> Iterable[tuple[int, Block]]:
        chosen, keys = self.choose(block)
        values, times = block.values, block.timestamps
        if self.channels <= len(_IS_CHANNEL):
            codes = bytes(chosen)
            for channel in range(self.channels):
                mask = codes.translate(_IS_CHANNEL[channel])
                if any(mask):
                    yield (
                        channel,
                        Block(
                            list(compress(values, mask)),
                            None if times is None else list(compress(times, mask)),
                            None if keys is None else list(compress(keys, mask)),
                            block.origin,
                        ),
                    )
            return
        places: list[list[int]] = [[] for _ in range(self.channels)]
        for place, channel in enumerate(chosen):
            places[channel].append(place)
        for channel, mine in enumerate(places):
            if not mine:
                continue
            yield (
                channel,
                Block(
                    [values[place] for place in mine],
                    None if times is None else [times[place] for place in mine],
                    None if keys is None else [keys[place] for place in mine],
                    block.origin,
                ),
            )

    @abstractmethod
    def choose(self, block: Block) -> tuple[Iterable[int], Any]:
        """The channel of each record, and the keys if they were needed for it."""

    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        if self.channels == 1:
            return ((0, columns),)
        return self._distribute_columns(columns, self.choose_columns(columns))

    def _distribute_columns(
        self, columns: Columns, chosen: npt.NDArray[Any]
    ) -> Iterable[tuple[int, Columns]]:
        for channel in range(self.channels):
            places = np.flatnonzero(chosen == channel)
            if len(places):
                yield channel, columns.take(places)

    def choose_columns(self, columns: Columns) -> npt.NDArray[Any]:
        """The channel of each row."""
        chosen, _ = self.choose(columns.to_block())
        return np.fromiter(chosen, np.int32, len(columns))


class _ChannelsOfIntegers:
    """The channels of integer keys.  While all keys that came lie close together, they are looked
    up in a table: that costs a tenth of hashing them."""

    def __init__(self, owners: npt.NDArray[Any], max_parallelism: int) -> None:
        self._owners = owners
        self._max_parallelism = max_parallelism
        self._low = self._end = 0
        self._table = np.empty(0, owners.dtype)

    def of(self, keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The channel of each key."""
        if not len(keys):
            return np.empty(0, self._table.dtype)
        low, end = int(keys.min()), int(keys.max()) + 1
        if low < self._low or end > self._end:
            if self._end > self._low:
                low, end = min(low, self._low), max(end, self._end)
            if end - low > TABLE_LIMIT:
                return self._hashed(keys)
            # Not arange(low, end): behind the greatest long there is no integer any more.
            self._table = self._hashed(np.arange(end - low, dtype=np.int64) + low)
            self._low, self._end = low, end
        places = keys.astype(np.int64, copy=False)
        return self._table.take(places - self._low if self._low else places)

    def _hashed(self, keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._owners[key_groups_of_integers(keys, self._max_parallelism)]


class _ChannelsOfKeys(dict[Any, int]):
    """The channels of keys that have come, a bounded number of them; of others they are found."""

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
    """To the owner of the key's key group.

    Args:
        always: ask for keys where there is one channel, too, so that a selector that fails is seen.
            Operators that use keys ask themselves.
    """

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
        narrow = np.uint8 if channels <= 256 else np.int32  # less to go through, per row
        self._owner_array: npt.NDArray[Any] = np.array(owners, narrow)
        self._of_integers: _ChannelsOfIntegers | None = None
        if self.keys.hash_of in (stable_hash, hash_long):
            self._of_integers = _ChannelsOfIntegers(self._owner_array, max_parallelism)

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        if block.keys is not None:  # those of another key_by, further up
            block = Block(block.values, block.timestamps, None, block.origin)
        if self._always and self.channels == 1:
            self.keys.computed(block)
        return super().split_block(block)

    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        if self._always and self.channels == 1 and self.keys.of_columns(columns) is None:
            self.keys.computed(columns.to_block())
        return super().split_columns(columns)

    def choose(self, block: Block) -> tuple[Iterable[int], Any]:
        keys = self.keys.computed(block)
        channels = list(map(self.channel_of, keys))
        # Others may be equal without being the same to a dictionary, once they have travelled.
        return channels, keys if are_plain(keys) else None

    def choose_columns(self, columns: Columns) -> npt.NDArray[Any]:
        keys = self.keys.of_columns(columns)
        if keys is None:
            return super().choose_columns(columns)
        if self._of_integers is not None and is_plain_integer(keys):
            return self._of_integers.of(keys.to_numpy(zero_copy_only=False))
        if pa.types.is_dictionary(keys.type):
            max_parallelism = self._group_of.max_parallelism
            groups = key_groups_of_array(keys, max_parallelism, self.keys.hash_of)
            return self._owner_array[groups]
        encoded = pc.dictionary_encode(keys, null_encoding="encode")
        distinct = encoded.dictionary.to_pylist()  # their key groups are remembered
        channels = np.fromiter(map(self.channel_of, distinct), np.int32, len(distinct))
        places: npt.NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
        return channels.take(places)


class ShufflePartitioner(_ByChannel):
    """Each record to a random consumer."""

    name = "SHUFFLE"

    def setup(self, channels: int, max_parallelism: int, seed: int) -> None:
        super().setup(channels, max_parallelism, seed)
        self._random = random.Random(seed)

    def choose(self, block: Block) -> tuple[Iterable[int], Any]:
        return self._random.choices(range(self.channels), k=len(block)), None

    def choose_columns(self, columns: Columns) -> npt.NDArray[Any]:
        return np.array(self._random.choices(range(self.channels), k=len(columns)), np.int32)


class CustomPartitioner(_ByChannel):
    """Where the user's function says.

    Args:
        partitioner: a function of key and number of channels, or a Partitioner.
        keys: what the function is given.
    """

    name = "CUSTOM"

    def __init__(self, partitioner: Any, keys: Keys) -> None:
        self._partitioner = partitioner
        self._keys = keys
        self.reading: Reading | None = None
        """For error messages."""

    @property
    def functions(self) -> Sequence[Any]:
        own = (self._partitioner,) if isinstance(self._partitioner, Function) else ()
        return (*own, *self._keys.functions)

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        return self._distribute(block)

    def choose(self, block: Block) -> tuple[Iterable[int], Any]:
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
    """A number of a channel, NumPy's too; users return what they like."""
    if type(chosen) is int:
        return 0 <= chosen < channels
    return hasattr(chosen, "__index__") and 0 <= index(chosen) < channels


class BroadcastPartitioner(StreamPartitioner):
    """Every record to every consumer."""

    name = "BROADCAST"

    def select_channel(self) -> int:
        raise StreamError("a broadcast has no single channel: every record goes to all")

    def split_block(self, block: Block) -> Iterable[tuple[int, Block]]:
        """Consumers in this process are given values of their own."""
        last = self.channels - 1
        return (
            (channel, block if channel == last else block.owned())
            for channel in range(self.channels)
        )

    def split_columns(self, columns: Columns) -> Iterable[tuple[int, Columns]]:
        return ((channel, columns) for channel in range(self.channels))
