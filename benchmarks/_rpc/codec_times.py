"""What writing and reading a message costs, by type."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from enum import Enum
from statistics import median
from typing import Any

from _results import Section, microseconds

from flinkray.core.errors import JobNotFoundError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    JobID,
    JobVertexID,
    ResourceID,
    SlotID,
)
from flinkray.core.message import message, register
from flinkray.core.resources import ResourceProfile
from flinkray.rpc.wire import codec

LOOPS = 2000


@register
class Colour(Enum):
    """Some enum."""

    RED = "red"


@message
class Empty:
    """A message without fields."""


@message
class Five:
    """A message of five plain fields."""

    number: int
    share: float
    name: str
    flag: bool
    nothing: None


@message
class Nested:
    """A message of messages."""

    slots: tuple[SlotID, ...]
    profiles: tuple[ResourceProfile, ...]


def _bytes(size: int) -> bytes:
    return bytes(size)


_ID = bytes(range(16))
_ATTEMPT = ExecutionAttemptID(ExecutionGraphID(_ID), ExecutionVertexID(JobVertexID(_ID), 3), 1)

ALONE: dict[str, Any] = {
    "None": None,
    "int": 12345,
    "float": 1.5,
    "str, 12 characters": "TaskExecutor",
    "bytes, 100": _bytes(100),
    "bytes, 100 KB": _bytes(100_000),
    "id": JobID(_ID),
    "str subclass": ResourceID("TaskExecutor-1"),
    "enum": Colour.RED,
    "tuple of 10 ints": tuple(range(10)),
    "dict of 10 ints": {f"key{index}": index for index in range(10)},
    "exception": JobNotFoundError(JobID(_ID)),
}
"""Field types, each as the only argument of a call."""

MESSAGES: dict[str, Any] = {
    "empty argument list": (),
    "no fields": Empty(),
    "5 plain fields": Five(1, 2.0, "three", True, None),
    "execution attempt id (3 nested)": _ATTEMPT,
    "resource profile": ResourceProfile(cpu=1.0, memory=2**30),
    "20 slots with profiles": Nested(
        tuple(SlotID(ResourceID(f"TaskExecutor-{index}"), index) for index in range(20)),
        tuple(ResourceProfile(cpu=1.0, memory=2**30) for _ in range(20)),
    ),
    "5 arguments of a call": (JobID(_ID), AllocationID(_ID), _ATTEMPT, "name", 1.0),
}


def run(rounds: int) -> Section:
    section = Section(
        f"codec, processor time, medians of {rounds} rounds",
        ("", "bytes", "encode, us", "decode, us"),
    )
    for name, value in MESSAGES.items():
        _add(section, f"message: {name}", value, rounds)
    for name, value in ALONE.items():
        _add(section, f"one argument: {name}", (value,), rounds)
    return section


def _add(section: Section, name: str, value: Any, rounds: int) -> None:
    data = codec.encode(value)
    encode = _time(lambda: codec.encode(value), rounds)
    decode = _time(lambda: codec.decode(data), rounds)
    section.add(name, f"{len(data):,}", microseconds(encode), microseconds(decode))
    section.raw[name] = {"bytes": len(data), "encode": encode, "decode": decode}


def _time(what: Callable[[], Any], rounds: int) -> float:
    """Seconds of processor time: nothing here waits, and what else the machine does is left out."""
    return median(
        timeit.timeit(what, number=LOOPS, timer=time.process_time) / LOOPS for _ in range(rounds)
    )
