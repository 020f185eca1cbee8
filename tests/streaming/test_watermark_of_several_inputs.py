"""The watermark of several channels, inputs and splits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.streaming.records.elements import (
    IDLE,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Watermark,
    WatermarkStatus,
)
from flinkray.streaming.records.in_flight import given_again
from flinkray.streaming.time.combined_watermarks import (
    CombinedWatermark,
    ValveOutput,
    WatermarkValve,
)


def fed(valve: WatermarkValve, *watermarks: int) -> list[int | None]:
    return [valve.watermark(n, watermark).watermark for n, watermark in enumerate(watermarks)]


def test_least_watermark_is_emitted_once_every_channel_has_a_watermark() -> None:
    """ST-14"""
    valve = WatermarkValve(3)
    assert fed(valve, 10, 5) == [None, None]
    assert valve.watermark(2, 7) == ValveOutput(5)
    assert valve.watermark(1, 9) == ValveOutput(7)
    assert valve.watermark(1, 8) == ValveOutput()
    assert valve.watermark(2, 12) == ValveOutput(9)


def test_valve_with_one_channel_emits_only_increasing_watermarks() -> None:
    """ST-14"""
    valve = WatermarkValve(1)
    assert [valve.watermark(0, w).watermark for w in (0, 25, 20, 25, 26)] == [0, 25, None, None, 26]


def test_idle_channel_does_not_delay_the_watermark() -> None:
    """ST-15"""
    valve = WatermarkValve(3)
    assert fed(valve, 15, 10) == [None, None]
    assert valve.status(2, True) == ValveOutput(10)


def test_greatest_watermark_is_emitted_when_the_last_channel_becomes_idle() -> None:
    """ST-15: in whatever order the channels become idle."""
    for order in itertools.permutations(range(3)):
        valve = WatermarkValve(3)
        fed(valve, 10, 5, 3)
        outputs = [valve.status(channel, True) for channel in order]
        assert max(o.watermark for o in outputs if o.watermark is not None) == 10
        assert [o.idle for o in outputs] == [None, None, True]
        assert valve.current == 10


def behind() -> WatermarkValve:
    """Of its channels the first is idle and far ahead, the second active and behind, and the third
    has turned idle."""
    valve = WatermarkValve(3)
    fed(valve, 20, 10, 10)
    valve.status(0, True)
    valve.status(1, True)
    assert valve.watermark(2, 15) == ValveOutput(15)
    assert valve.status(1, False) == ValveOutput()
    assert valve.status(2, True) == ValveOutput()
    return valve


def test_last_channel_to_become_idle_may_be_behind_the_greatest_watermark() -> None:
    """ST-15"""
    assert behind().status(1, True) == ValveOutput(20, True)


def test_channel_active_again_advances_the_watermark_if_no_other_is_aligned() -> None:
    """ST-16"""
    assert behind().status(0, False) == ValveOutput(20)


def test_valve_output_sends_active_before_and_idle_after_the_watermark() -> None:
    told: list[int | bool] = []
    ValveOutput(7, False).tell(told.append, told.append)
    ValveOutput(8, True).tell(told.append, told.append)
    assert told == [False, 7, 8, True]


def test_channel_ahead_of_others_that_becomes_idle_does_not_change_the_watermark() -> None:
    """ST-15"""
    valve = WatermarkValve(2)
    fed(valve, 10, 5)
    assert valve.status(0, True) == ValveOutput()
    assert valve.current == 5


def test_channel_active_again_counts_only_after_it_has_caught_up() -> None:
    """ST-16"""
    valve = WatermarkValve(2)
    fed(valve, 3, 3)
    valve.status(1, True)
    assert valve.watermark(0, 7) == ValveOutput(7)
    assert valve.status(1, False) == ValveOutput()
    assert valve.watermark(1, 5) == ValveOutput()
    assert valve.watermark(0, 8) == ValveOutput(8)
    assert valve.watermark(1, 9) == ValveOutput()
    assert valve.watermark(0, 20) == ValveOutput(9)


def test_channel_that_has_caught_up_delays_the_watermark_again() -> None:
    """ST-15"""
    valve = WatermarkValve(2)
    valve.status(1, True)
    assert valve.watermark(0, 10) == ValveOutput(10)
    valve.status(1, False)
    assert valve.watermark(1, 10) == ValveOutput()
    assert valve.watermark(0, 20) == ValveOutput()
    assert valve.watermark(1, 12) == ValveOutput(12)


def test_no_watermark_is_emitted_while_no_active_channel_has_caught_up() -> None:
    """ST-16"""
    valve = WatermarkValve(2)
    fed(valve, 10, 5)
    valve.status(0, True)
    valve.status(1, True)
    assert valve.current == 10
    assert valve.status(1, False) == ValveOutput(None, False)
    assert valve.watermark(1, 8) == ValveOutput()
    assert valve.current == 10
    assert valve.watermark(1, MAX_TIMESTAMP) == ValveOutput(None, True)
    assert valve.watermark(0, MAX_TIMESTAMP) == ValveOutput(MAX_TIMESTAMP, False)


def test_watermarks_and_repeated_status_of_an_idle_channel_are_ignored() -> None:
    """ST-17"""
    valve = WatermarkValve(1)
    valve.watermark(0, 25)
    assert valve.status(0, True) == ValveOutput(None, True)
    assert valve.status(0, True) == ValveOutput()
    assert valve.watermark(0, 50) == ValveOutput()
    assert valve.current == 25
    assert valve.status(0, False) == ValveOutput(None, False)
    assert valve.status(0, False) == ValveOutput()
    assert valve.watermark(0, 50) == ValveOutput(50)


Event = tuple[int, int | bool]
"""Input; its next watermark, or whether it is idle."""


@dataclass
class Input:
    """What has come on one, and how far all together were when it came back from idleness."""

    came: list[int | bool] = field(default_factory=list)
    must_reach: int = MIN_TIMESTAMP

    @property
    def is_idle(self) -> bool:
        """By the last status, and nothing else."""
        statuses = [it for it in self.came if isinstance(it, bool)]
        return bool(statuses) and statuses[-1]

    @property
    def watermark(self) -> int:
        return max((it for it in self.came if not isinstance(it, bool)), default=MIN_TIMESTAMP)

    @property
    def has_ended(self) -> bool:
        return self.watermark == MAX_TIMESTAMP


def naive(events: Sequence[Event], count: int, are_channels: bool) -> list[tuple[int, bool]]:
    """Time and whether all is idle, after each event.

    *are_channels*: one that comes back must catch up before it holds the others back, and when all
    are idle, time is that of the one ahead.
    """
    inputs = [Input() for _ in range(count)]
    time = MIN_TIMESTAMP
    shown: list[tuple[int, bool]] = []
    for number, event in events:
        it = inputs[number]
        was_idle = it.is_idle
        if it.has_ended:
            shown.append(shown[-1])
            continue
        if isinstance(event, bool):
            it.came.append(event)
            if was_idle and not event and are_channels:
                it.must_reach = time
        elif not (was_idle and are_channels) or event == MAX_TIMESTAMP:
            it.came += [event, False] if not are_channels or event == MAX_TIMESTAMP else [event]
        if it.watermark >= time:
            it.must_reach = MIN_TIMESTAMP
        left = [it for it in inputs if not it.has_ended]
        awake = [it for it in left if not it.is_idle]
        counted = [it.watermark for it in awake if it.must_reach == MIN_TIMESTAMP]
        if not left:
            time = MAX_TIMESTAMP
        elif counted:
            time = max(time, min(counted))
        elif are_channels and not awake:
            time = max([time, *(it.watermark for it in left)])
        shown.append((time, bool(left) and not awake))
    return shown


def followed(
    events: Sequence[Event],
    watermark: Callable[[int, int], ValveOutput],
    status: Callable[[int, bool], ValveOutput],
) -> list[tuple[int, bool]]:
    """What those behind it see after each event."""
    time, idle = MIN_TIMESTAMP, False
    shown: list[tuple[int, bool]] = []

    def take_watermark(timestamp: int) -> None:
        nonlocal time
        assert timestamp > time
        assert not idle, "what is idle has no watermarks"
        time = timestamp

    def take_status(is_idle: bool) -> None:
        nonlocal idle
        assert is_idle != idle
        idle = is_idle

    for number, event in events:
        is_status = isinstance(event, bool)
        output = status(number, bool(event)) if is_status else watermark(number, event)
        output.tell(take_watermark, take_status)
        shown.append((time, idle))
    return shown


COUNT = 3
EVENTS = st.lists(
    st.tuples(
        st.integers(0, COUNT - 1),
        st.one_of(st.integers(0, 20), st.booleans(), st.just(MAX_TIMESTAMP)),
    ),
    max_size=40,
)


@given(EVENTS)
def test_watermark_of_several_channels_equals_that_of_a_simple_model(events: list[Event]) -> None:
    valve = WatermarkValve(COUNT)
    assert followed(events, valve.watermark, valve.status) == naive(events, COUNT, True)


@given(EVENTS)
def test_watermark_of_several_inputs_equals_that_of_a_simple_model(events: list[Event]) -> None:
    combined = CombinedWatermark(COUNT)
    assert followed(events, combined.watermark, combined.status) == naive(events, COUNT, False)


@pytest.mark.parametrize("kind", [WatermarkValve, CombinedWatermark])
def test_ended_input_does_not_advance_the_watermark_past_idle_inputs(
    kind: type[WatermarkValve | CombinedWatermark],
) -> None:
    """FLINK-38477, a bug of Flink: records that came after the idle period were late."""
    several = kind(3)
    for number in range(3):
        several.watermark(number, 10)
    several.status(1, True)
    assert several.watermark(0, MAX_TIMESTAMP) == ValveOutput()
    assert several.status(2, True) == ValveOutput(None, True)
    assert several.status(1, False) == ValveOutput(None, False)
    assert several.watermark(1, 12) == ValveOutput(12)
    assert several.watermark(1, MAX_TIMESTAMP) == ValveOutput(None, True)
    assert several.watermark(2, MAX_TIMESTAMP) == ValveOutput(MAX_TIMESTAMP, False)


def test_channel_that_was_idle_at_a_checkpoint_is_active_after_its_restore() -> None:
    """Its writer starts as active and does not send this status."""
    valve = WatermarkValve(1)
    for element in given_again([Watermark(10), IDLE]):
        if isinstance(element, Watermark):
            valve.watermark(0, element.timestamp)
        elif isinstance(element, WatermarkStatus):
            valve.status(0, element.idle)
    assert valve.watermark(0, 12) == ValveOutput(12)
