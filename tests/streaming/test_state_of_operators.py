"""What operators keep: it is nobody else's, it is in snapshots as it was, and it goes with time."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.state import StateTtlConfig, ValueStateDescriptor
from flinkray.streaming.functions.functions import KeyedProcessFunction, ProcessWindowFunction
from flinkray.streaming.operators.process import KeyedProcessOperator
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.windowing.aligned import AlignedWindowOperator
from flinkray.streaming.windowing.assigners import SlidingEventTimeWindows, TumblingEventTimeWindows
from flinkray.streaming.windowing.contents import (
    AggregateContents,
    ListContents,
    PassOn,
    Process,
    ReduceContents,
)
from flinkray.streaming.windowing.operator import WindowOperator, WindowSpec
from flinkray.testing.operator_harness import OperatorHarness
from tests.state.every_backend import small_disk_backend


@pytest.fixture(params=["heap", "disk"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the operators' state is."""
    if request.param == "disk":
        monkeypatch.setattr(OperatorHarness, "make_keyed_state", staticmethod(small_disk_backend))


BY_FIRST = Keys(lambda value: value[0])


def gathered(left: Any, right: Any) -> Any:
    """A reduction that changes what there is."""
    left[1].extend(right[1])
    return left


class Gathering:
    """An accumulator that is changed in place, and is the result."""

    def create_accumulator(self) -> Any:
        return ["", []]

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator[0] = value[0]
        accumulator[1].extend(value[1])
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        left[1].extend(right[1])
        return left


class Joined(ProcessWindowFunction[Any, Any, Any, Any]):
    """Puts a window's lists together, and spoils what it was given."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, [number for element in elements for number in element[1]]
        for element in elements:
            element[1].append("spoilt")


CONTENTS = [
    (lambda: ListContents(), Joined()),
    (lambda: ReduceContents(gathered), None),
    (lambda: ReduceContents(gathered), Joined()),
    (lambda: AggregateContents(Gathering()), None),
    (lambda: AggregateContents(Gathering()), Joined()),
]
WAYS = [AlignedWindowOperator, WindowOperator]


def windows(make: Any, assigner: Any, contents: Any, lateness: int = 0) -> WindowOperator:
    kept, function = contents
    evaluation = PassOn() if function is None else Process(function, True)
    spec = WindowSpec(
        assigner,
        assigner.get_default_trigger(),
        kept(),
        evaluation,
        allowed_lateness=lateness,
    )
    operator: WindowOperator = make(spec, BY_FIRST)
    return operator


def lists(h: OperatorHarness) -> list[Any]:
    return [list(value[1]) for value in h.values()]


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize("contents", CONTENTS)
def test_value_in_several_windows_is_copied_for_each_window(make: Any, contents: Any) -> None:
    h = OperatorHarness(
        windows(make, SlidingEventTimeWindows.of(10, 5), contents, lateness=10), keyed=True
    )
    h.process(("a", [1]), at=1)
    h.process(("a", [2]), ("a", [3]), at=6)
    h.watermark(4)
    assert lists(h) == [[1]]
    h.process(("a", [4]), at=3)  # late for the first
    assert lists(h) == [[1, 4]]
    h.watermark(30)
    assert lists(h) == [[1, 2, 3, 4], [2, 3]]


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize("contents", CONTENTS)
def test_late_value_in_several_windows_is_copied_for_each_window(make: Any, contents: Any) -> None:
    h = OperatorHarness(
        windows(make, SlidingEventTimeWindows.of(10, 5), contents, lateness=100), keyed=True
    )
    h.watermark(30)
    h.process(("a", [1]), at=6)
    assert lists(h) == [[1], [1]]
    h.process(("a", [2]), at=6)
    assert lists(h) == [[1, 2], [1, 2]]


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize("contents", CONTENTS)
def test_second_result_of_a_window_is_unaffected_by_changes_to_the_first(
    make: Any, contents: Any
) -> None:
    h = OperatorHarness(
        windows(make, TumblingEventTimeWindows.of(10), contents, lateness=100), keyed=True
    )
    h.process(("a", [1]), at=1)
    h.watermark(20)
    first = h.values()
    h.process(("a", [2]), at=2)
    (second,) = h.values()
    second[1].append("spoilt")
    h.process(("a", [3]), at=3)
    assert [list(value[1]) for value in first] == [[1]]
    assert lists(h) == [[1, 2, 3]]


KEYS = 5_000


class Remembering(KeyedProcessFunction[Any, Any, Any]):
    """Remembers the keys that come with True for a second; has all looked at for each record."""

    def __init__(self, config: StateTtlConfig) -> None:
        self._config = config

    def open(self, runtime_context: Any) -> None:
        seen: ValueStateDescriptor[bool] = ValueStateDescriptor("seen")
        seen.enable_time_to_live(self._config)
        self._seen = runtime_context.get_state(seen)

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value[1]:
            self._seen.update(True)
        return ()


def remembering(config: StateTtlConfig) -> tuple[OperatorHarness, Any]:
    h = OperatorHarness(KeyedProcessOperator(Remembering(config), BY_FIRST), keyed=True)
    h.process(*[(key, True) for key in range(KEYS)])
    return h, h.operator.keyed_state


def test_expired_state_is_removed_without_any_record() -> None:
    """KS-07"""
    config = StateTtlConfig.new_builder(10_000).build()
    h, state = remembering(config)
    left = KEYS
    for now in range(0, 25_000, 50):
        h.processing_time(now)
        before, left = left, state.number_of_entries("seen")
        assert before - left <= 1_000
        assert now >= 10_000 or left == KEYS
    assert left == 0
