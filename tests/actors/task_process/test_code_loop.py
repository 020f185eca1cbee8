"""Loops for the coroutines of users, in threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.task_process.code_loop import CodeCall, CodeLoops, MainLoop, ThreadedCodeLoop
from flinkray.testing.waiting import wait_until


def test_coroutine_running_at_process_end_is_cancelled_and_cleans_up() -> None:
    """Otherwise the ``finally`` of the coroutine would run when the coroutine is garbage collected,
    if at all."""
    begun = threading.Event()
    told: list[str] = []

    async def waits() -> None:
        try:
            begun.set()
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            told.append("cleaned up")

    loop = ThreadedCodeLoop()
    call = loop.run(waits)
    assert begun.wait(300)
    loop.close()
    assert isinstance(call.outcome.exception(300), asyncio.CancelledError)
    assert told == ["cleaned up"]


def test_coroutine_that_ignores_its_cancellation_does_not_block_the_process_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flinkray.actors.task_process.code_loop._CLOSE_GRACE", 0.05)
    begun = threading.Event()

    async def stays() -> None:
        begun.set()
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                continue

    loop = ThreadedCodeLoop()
    call = loop.run(stays)
    assert begun.wait(300)
    loop.close()
    with pytest.raises(TaskError, match="its process ends"):
        call.outcome.result(300)
    assert loop.has_ended


@pytest.mark.parametrize("was_used", [False, True])
def test_coroutine_run_after_the_process_end_fails_and_starts_no_other_loop(was_used: bool) -> None:
    """Otherwise the thread of the other loop would stay for ever."""

    async def returns() -> str:
        return "done"

    async def close() -> CodeCall:
        loops = CodeLoops(MainLoop(asyncio.get_running_loop()), is_threaded=True)
        if was_used:
            assert await asyncio.wrap_future(loops.run(returns).outcome) == "done"
        threads = {*threading.enumerate()}
        loops.close()
        wait_until(lambda: not was_used or threads > {*threading.enumerate()}, 150, "no loop")
        call = loops.run(returns)
        assert threads >= {*threading.enumerate()}
        return call

    with pytest.raises(TaskError, match="the event loop of the job's code has ended"):
        asyncio.run(close()).outcome.result(300)
