"""Streams with timestamps, and their results, for several tests of PyFlink's behaviours."""

from __future__ import annotations

from typing import Any

from flinkray.datastream import MapFunction, TimestampAssigner, Types, WatermarkStrategy
from flinkray.datastream.state import ValueStateDescriptor

PAIR = Types.TUPLE([Types.STRING(), Types.INT()])


class SecondColumn(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondColumn())


def results(stream: Any) -> list[Any]:
    return sorted(stream.execute_and_collect(), key=str)


def stamped(env: Any, *times: int, strategy: Any = MONOTONOUS) -> Any:
    data = env.from_collection([("hi", time) for time in times], type_info=PAIR)
    return data.assign_timestamps_and_watermarks(strategy)


def keyed(env: Any, *times: int, strategy: Any = MONOTONOUS) -> Any:
    return stamped(env, *times, strategy=strategy).key_by(lambda v: v[0], key_type=Types.STRING())


class Collect:
    """A sink function that is not copied."""

    shared = True

    def __init__(self, into: list[Any]) -> None:
        self.into = into

    def invoke(self, value: Any) -> None:
        self.into.append(value)


class Remembering:
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.STRING()))

    def swap(self, value: Any) -> Any:
        before = self.last.value()
        self.last.update(value[0])
        return before


class RememberMap(Remembering, MapFunction[Any, Any]):
    def map(self, value: Any) -> Any:
        return self.swap(value)
