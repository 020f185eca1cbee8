"""Waiting for so long and no longer: no cancellation and no result is lost."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from flinkray.rpc.time_limit import within
from flinkray.testing.virtual_time import on_virtual_time


@on_virtual_time
async def test_cancellation_in_the_same_turn_as_the_result_takes_effect() -> None:
    """``asyncio.wait_for`` loses it before Python 3.12 (python/cpython#86296)."""
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(10, result))
    await asyncio.sleep(1)
    result.set_result(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@on_virtual_time
async def test_time_limit_returns_a_timely_result_and_raises_a_timely_error() -> None:
    assert await within(1, asyncio.sleep(0.5, 7)) == 7
    assert await within(None, asyncio.sleep(1000, 8)) == 8

    async def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await within(1, fail())


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        pytest.param(1, asyncio.TimeoutError, id="takes too long"),
        pytest.param(None, asyncio.CancelledError, id="nobody waits for it"),
    ],
)
@on_virtual_time
async def test_work_is_cancelled_at_its_time_limit_or_when_its_caller_is_cancelled(
    limit: float | None, error: type[BaseException]
) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.set()

    waiting = asyncio.ensure_future(within(limit, work()))
    await asyncio.sleep(2)
    assert waiting.done() == ended.is_set() == (limit is not None)
    waiting.cancel()
    await ended.wait()
    with pytest.raises(error):
        await waiting


def test_error_raised_after_a_time_limit_causes_no_asyncio_complaint() -> None:
    """asyncio would complain of an exception that nobody has retrieved."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))

        async def fails_when_given_up() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise OSError("cannot clean up")

        for work in (fails_when_given_up(), asyncio.Event().wait()):
            with pytest.raises(asyncio.TimeoutError):
                await within(0.001, work)
            for _ in range(3):
                await asyncio.sleep(0)
        gc.collect()

    asyncio.run(main())
    assert complaints == []


@on_virtual_time
async def test_future_that_exceeds_its_time_limit_is_cancelled_and_raises_a_timeout() -> None:
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with pytest.raises(asyncio.TimeoutError):
        await within(1.0, result)
    assert result.cancelled()
    assert asyncio.get_running_loop().time() == 1.0
