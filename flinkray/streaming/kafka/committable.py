"""The records of one writer between two checkpoints, as they wait for their transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import msgpack
import pyarrow as pa

from flinkray.streaming.kafka.records import KafkaProducerRecord

CHUNK_BYTES = 1 << 18
"""About so many bytes are packed and compressed at once."""

_CODEC = "zstd"


@dataclass(frozen=True)
class KafkaCommittable:
    """One transaction."""

    transactional_id: str
    run: str
    """The writer that has prepared it."""
    sequence: int
    """How many that writer has prepared, with this one."""
    marker_topic: str
    """Of which partition 0 bears what is known of commits; it is the same for all of a run."""
    count: int
    chunks: list[tuple[int, bytes]] = field(repr=False)
    """Size before compression, and bytes."""

    def records(self) -> Iterator[KafkaProducerRecord]:
        """In the order in which they were written."""
        for size, compressed in self.chunks:
            packed = pa.decompress(compressed, size, codec=_CODEC, asbytes=True)
            for fields in msgpack.unpackb(packed, use_list=False):
                yield KafkaProducerRecord(*fields)


def pack(records: Sequence[tuple[Any, ...]]) -> tuple[int, bytes]:
    """A chunk of the fields of records."""
    packed = msgpack.packb(records, default=index)  # of integers that are not Python's
    return len(packed), pa.compress(packed, codec=_CODEC, asbytes=True)
