"""Blocks of Python values: rows per second, and what a block costs to encode and decode."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import msgpack
import pyarrow as pa
from _results import Section

from _channels.over_channels import OverChannels
from flinkray.streaming.network.element_codec import ElementDecoder, ElementEncoder
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.row import Row

ROWS = 1_000
REPETITIONS = 200


def measure(channels: OverChannels, rounds: int) -> Section:
    """Tuples, rows and texts, in blocks of a thousand and, put together on the way, of ten."""
    tuples = [("JFK" if number % 3 else "LGA", number, number * 0.5) for number in range(ROWS)]
    kinds: dict[str, list[Any]] = {
        "tuples of text, int, float": tuples,
        "rows of the same": [Row.of(["a", "b", "c"], list(values)) for values in tuples],
        "texts": [f"word {number}" for number in range(ROWS)],
        "ints": list(range(ROWS)),
    }
    shown = Section(
        "blocks of 1,000 Python values, channels by unix socket",
        (
            "",
            "rows/s",
            "rows/s from blocks of 10",
            "encode, us",
            "decode, us",
            "msgpack, both ways, us",
        ),
    )
    for name, values in kinds.items():
        times = list(range(1_700_000_000_000, 1_700_000_000_000 + ROWS))
        block = Block(values, times)
        tiny = Block(values[:10], times[:10])
        seconds = median(_seconds(channels, block, 200, 0) for _ in range(rounds))
        tiny_seconds = median(_seconds(channels, tiny, 5_000, 0.1) for _ in range(rounds))
        encode, decode, packed = _codec(block)
        shown.add(
            name,
            f"{ROWS / seconds:,.0f}",
            f"{10 / tiny_seconds:,.0f}",
            f"{encode * 1e6:,.0f}",
            f"{decode * 1e6:,.0f}",
            "cannot" if packed is None else f"{packed * 1e6:,.0f}",
        )
        shown.raw[name] = {
            "seconds_per_row": seconds / ROWS,
            "seconds_per_row_of_small_blocks": tiny_seconds / 10,
            "encode": encode,
            "decode": decode,
            "msgpack": packed,
        }
    return shown


def _seconds(channels: OverChannels, block: Block, count: int, timeout: float) -> float:
    begin = time.perf_counter()
    channels.send_blocks(block, count, timeout)
    return (time.perf_counter() - begin) / count


def _codec(block: Block) -> tuple[float, float, float | None]:
    encoder, decoder = ElementEncoder(), ElementDecoder()
    encoded = encoder.encode([block], set())
    body = pa.py_buffer(b"".join(encoded.parts))
    encode = _each(lambda: encoder.encode([block], set()))
    decode = _each(lambda: decoder.decode(encoded.descriptions, body))
    content = (block.values, block.timestamps)
    try:
        packed = msgpack.packb(content)
    except TypeError:
        return encode, decode, None
    both = _each(lambda: msgpack.unpackb(msgpack.packb(content), use_list=False))
    assert packed
    return encode, decode, both


def _each(action: object) -> float:
    assert callable(action)
    durations = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        action()
        durations.append(time.perf_counter() - begin)
    return median(durations)
