"""Loops in threads, and who comes too late for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from flinkray.client.loop_thread import LoopEndedError, LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread("a loop")
    yield loop
    loop.close()


async def answer() -> int:
    return 42


def test_closing_loop_thread_cancels_running_coroutines_and_lets_them_clean_up(
    loop: LoopThread,
) -> None:
    told: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            told.append("cleaned up")

    waiting = loop.start(waits())
    assert loop.run(answer()) == 42
    loop.close()
    assert waiting.cancelled()
    assert told == ["cleaned up"]


def test_closed_loop_thread_refuses_coroutines_without_a_warning(loop: LoopThread) -> None:
    """Otherwise Python warns that the coroutine was never awaited."""
    loop.close()
    with pytest.raises(LoopEndedError, match="it was closed"):
        loop.run(answer())
    with pytest.raises(LoopEndedError, match="it was closed"):
        loop.start(answer())


def test_coroutine_started_while_loop_thread_closes_runs_or_is_refused(loop: LoopThread) -> None:
    outcomes: list[str] = []
    is_started = threading.Event()

    def start_many() -> None:
        while True:
            is_started.set()
            try:
                loop.start(answer())
            except LoopEndedError:
                outcomes.append("refused")
                return

    thread = threading.Thread(target=start_many)
    thread.start()
    assert is_started.wait(300)
    loop.close()
    thread.join(300)
    assert outcomes == ["refused"]
