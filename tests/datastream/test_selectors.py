"""Key selectors and partitioners are opened before they are asked, and closed in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flinkray.datastream import (
    CoMapFunction,
    DataStream,
    KeyedProcessFunction,
    KeySelector,
    Partitioner,
    ProcessJoinFunction,
    ProcessWindowFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.errors import OperatorError

STAMPED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v)


class Noting:
    """Takes down when it is opened and closed, in a file that all copies write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, text: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{text}\n")


class Modulo(Noting, KeySelector[int, Any]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.note("open")
        self.divisor = 2
        assert runtime_context.get_number_of_parallel_subtasks() > 0

    def close(self) -> None:
        del self.divisor
        self.note("close")

    def get_key(self, value: int) -> Any:
        return value % self.divisor


class Half(Noting, Partitioner[int]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.note("open")
        self.parts = 2

    def close(self) -> None:
        self.note("close")

    def partition(self, key: int, num_partitions: int) -> int:
        return key * num_partitions // self.parts


class Keyed(KeyedProcessFunction[Any, int, Any]):
    def process_element(self, value: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), value


class Both(CoMapFunction[int, int, Any]):
    def map1(self, value: int) -> Any:
        return value, 1

    def map2(self, value: int) -> Any:
        return value, 2


class Pairs(ProcessJoinFunction[int, int, Any]):
    def process_element(self, left: int, right: int, ctx: Any) -> Any:
        yield left, right


class Contents(ProcessWindowFunction[int, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, sorted(elements)


Build = Callable[[DataStream, Path], DataStream]
TEN = TumblingEventTimeWindows.of(10)
PROGRAMS: dict[str, tuple[Build, list[Any]]] = {
    "process": (
        lambda s, path: s.key_by(Modulo(path)).process(Keyed()), [(0, 2), (1, 1), (1, 3)],
    ),
    "map": (lambda s, path: s.key_by(Modulo(path)).map(lambda v: v), [1, 2, 3]),
    "window": (
        lambda s, path: s.key_by(Modulo(path)).window(TEN).process(Contents()),
        [(0, [2]), (1, [1, 3])],
    ),
    "two inputs": (
        lambda s, path: s.connect(s).key_by(Modulo(path), Modulo(path)).map(Both()),
        [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)],
    ),
    "interval join": (
        lambda s, path: (
            s.key_by(Modulo(path)).interval_join(s.key_by(Modulo(path)))
            .between(1, 2).process(Pairs())
        ),
        [(1, 3)],
    ),
    "window join": (
        lambda s, path: (
            s.join(s).where(Modulo(path)).equal_to(Modulo(path)).window(TEN)
            .apply(lambda one, other: (one, other))
        ),
        [(1, 1), (1, 3), (2, 2), (3, 1), (3, 3)],
    ),
    "custom": (
        lambda s, path: s.partition_custom(Half(path), Modulo(path)).map(lambda v: v), [1, 2, 3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_key_selector_is_opened_before_its_first_use_and_closed_once(
    name: str, parallelism: int, mode: RuntimeExecutionMode, tmp_path: Path
) -> None:
    build, expected = PROGRAMS[name]
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    env.set_runtime_mode(mode)
    stream = env.from_collection([1, 2, 3]).assign_timestamps_and_watermarks(STAMPED)
    notes = tmp_path / "notes"
    results = build(stream, notes).execute_and_collect()
    assert sorted(results) == expected
    noted = Counter(notes.read_text().split())
    assert noted["open"] == noted["close"] > 0


def test_keys_of_a_collected_stream_come_from_an_opened_key_selector(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([1, 2]).key_by(Modulo(tmp_path / "notes"))
    assert sorted((row.f0, row.f1) for row in keyed.execute_and_collect()) == [(0, 2), (1, 1)]


class Failing(Modulo):
    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        raise OSError("there is no divisor")


def test_key_selector_that_cannot_be_opened_fails_with_the_name_of_its_operator(
    tmp_path: Path,
) -> None:
    """The operator is the source, whose records the selector partitions."""
    notes = tmp_path / "notes"
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([1]).key_by(Failing(notes)).process(Keyed())
    with pytest.raises(OperatorError, match="there is no divisor\nin operator 'Source: Coll"):
        list(keyed.execute_and_collect())
    noted = Counter(notes.read_text().split())
    assert noted["open"] == noted["close"]


class Stateful(Modulo):
    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(None)  # type: ignore[arg-type]


def test_key_selector_that_asks_for_state_fails(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([1]).key_by(Stateful(tmp_path / "notes")).process(Keyed())
    with pytest.raises(OperatorError, match="has no"):
        list(keyed.execute_and_collect())
