"""Watermarks of several channels together."""

from __future__ import annotations

import itertools

from flinkray.streaming.records.elements import MAX_TIMESTAMP
from flinkray.streaming.time.combined_watermarks import ValveOutput, WatermarkValve


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


def test_channel_ahead_of_others_that_becomes_idle_keeps_the_watermark() -> None:
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
