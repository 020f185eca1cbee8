"""Clocks: which time they tell."""

from __future__ import annotations

import asyncio
import time

import pytest

from flinkray.rpc.clock import LoopClock, SystemClock, time_of
from flinkray.testing.virtual_time import on_virtual_time


@on_virtual_time
async def test_loop_clock_advances_with_its_loop_from_its_epoch() -> None:
    loop = asyncio.get_running_loop()
    clock, since_zero = LoopClock(loop, epoch=1000.0), LoopClock(loop)
    await asyncio.sleep(5.0)
    assert (clock.time(), clock.monotonic()) == (1005.0, 5.0)
    assert (since_zero.time(), since_zero.monotonic()) == (5.0, 5.0)
    short_way = time_of(loop)
    await asyncio.sleep(2.0)
    assert short_way() == 7.0


def test_time_of_a_real_loop_is_the_monotonic_time_of_the_machine() -> None:
    loop = asyncio.new_event_loop()
    try:
        assert time_of(loop) is time.monotonic
    finally:
        loop.close()


def test_system_clock_returns_the_time_of_the_machine() -> None:
    clock = SystemClock()
    assert clock.time() == pytest.approx(time.time(), abs=60.0)
    first = time.monotonic()
    assert first <= clock.monotonic() <= time.monotonic()
