"""SharedPoll: many that wait, one who looks."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.actors.resource_manager.shared_poll import SharedPoll
from flinkray.testing.virtual_time import on_virtual_time


class Provider:
    """Answers after a millisecond for each that it is asked about."""

    def __init__(self) -> None:
        self.asked = 0
        self.looks = 0
        self.states: dict[int, str] = {}
        self.error: Exception | None = None
        loop = asyncio.get_running_loop()
        self.poll: SharedPoll[int, str] = SharedPoll(self.look, shortest_pause=0.25, now=loop.time)

    async def look(self, keys: tuple[int, ...]) -> dict[int, str]:
        self.looks += 1
        self.asked += len(keys)
        await asyncio.sleep(0.001 * len(keys))
        if self.error is not None:
            raise self.error
        return {key: self.states[key] for key in keys if key in self.states}


@on_virtual_time
async def test_polling_for_a_thousand_waiting_keys_makes_a_bounded_number_of_calls() -> None:
    """Polled one by one, the keys would cause 4,000 calls a second."""
    provider = Provider()
    waiting = [asyncio.ensure_future(provider.poll.answer_for(key)) for key in range(1000)]
    await asyncio.sleep(100)
    assert 100 * 150 < provider.asked <= 100 * 200 + 1000

    provider.states = dict.fromkeys(range(1000), "placed")
    assert await asyncio.wait_for(asyncio.gather(*waiting), 6) == ["placed"] * 1000
    looks = provider.looks
    await asyncio.sleep(100)
    assert provider.looks == looks, "nobody waits any more"


@on_virtual_time
async def test_single_waiting_key_is_polled_frequently() -> None:
    provider = Provider()
    waiting = asyncio.ensure_future(provider.poll.answer_for(1))
    await asyncio.sleep(10)
    assert 35 <= provider.looks <= 41
    provider.states[1] = "placed"
    assert await asyncio.wait_for(waiting, 0.3) == "placed"


@on_virtual_time
async def test_key_is_polled_no_more_once_no_caller_waits_for_its_value() -> None:
    provider = Provider()
    given_up = asyncio.ensure_future(provider.poll.answer_for(1))
    waiting = asyncio.ensure_future(provider.poll.answer_for(2))
    await asyncio.sleep(1)
    given_up.cancel()
    await asyncio.sleep(1)
    before = provider.asked, provider.looks
    await asyncio.sleep(10)
    assert provider.asked - before[0] == provider.looks - before[1]
    waiting.cancel()
    await asyncio.sleep(1)
    before = provider.asked, provider.looks
    await asyncio.sleep(10)
    assert (provider.asked, provider.looks) == before

    provider.states[1] = "placed"
    assert await provider.poll.answer_for(1) == "placed", "it can be waited for again"


@on_virtual_time
async def test_polling_error_reaches_all_waiting_callers() -> None:
    provider = Provider()
    waiting = [asyncio.ensure_future(provider.poll.answer_for(key)) for key in (1, 1, 2)]
    provider.error = OSError("no answer")
    for one in waiting:
        with pytest.raises(OSError, match="no answer"):
            await one
    provider.error = None
    provider.states[1] = "placed"
    assert await provider.poll.answer_for(1) == "placed"
