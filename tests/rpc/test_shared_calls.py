"""Callers that want the same at the same time share a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from flinkray.rpc.shared_calls import SharedCalls
from flinkray.testing.virtual_time import on_virtual_time

Calls = SharedCalls[str, str]


def asking(begun: list[str], key: str) -> Callable[[], Coroutine[Any, Any, str]]:
    async def answer() -> str:
        begun.append(key)
        await asyncio.sleep(1)
        if key == "wrong":
            raise ValueError(key)
        return key.upper()

    return answer


@on_virtual_time
async def test_simultaneous_callers_share_a_call_and_later_callers_make_another() -> None:
    begun: list[str] = []
    calls = Calls()
    ask = partial(calls.result, call=asking(begun, "a"))
    answers = await asyncio.gather(ask("a"), ask("a"), ask("other key"))
    assert list(answers) == ["A"] * 3
    assert begun == ["a", "a"]
    assert await ask("a") == "A"
    assert len(begun) == 3


@on_virtual_time
async def test_all_callers_get_the_error_and_the_next_caller_tries_again() -> None:
    begun: list[str] = []
    calls = Calls()
    for times in (1, 2):
        both = (calls.result("wrong", asking(begun, "wrong")) for _ in range(2))
        errors = await asyncio.gather(*both, return_exceptions=True)
        assert [str(error) for error in errors] == ["wrong"] * 2
        assert len(begun) == times


@on_virtual_time
async def test_cancelled_caller_does_not_end_the_call_of_the_others() -> None:
    calls = Calls()
    first, second = (asyncio.ensure_future(calls.result("a", asking([], "a"))) for _ in range(2))
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == "A"


@on_virtual_time
async def test_cancel_ends_the_calls_under_way() -> None:
    calls = Calls()
    waiting = asyncio.ensure_future(calls.result("a", asking([], "a")))
    await asyncio.sleep(0.5)
    await calls.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
