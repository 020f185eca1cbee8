"""Taking times: one call after the other, and many on their way at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[[], Awaitable[Any]]


async def one_by_one(call: Call, count: int) -> tuple[float, float]:
    """p50 and p99 of *count* calls, each awaited before the next; seconds."""
    durations = []
    for _ in range(count):
        begin = time.perf_counter()
        await call()
        durations.append(time.perf_counter() - begin)
    durations.sort()
    return durations[count // 2], durations[count * 99 // 100]


async def in_batches(call: Call, count: int, outstanding: int) -> float:
    """Calls per second, *outstanding* sent together and awaited before the next ones."""
    begin = time.perf_counter()
    for _ in range(count // outstanding):
        await asyncio.gather(*(call() for _ in range(outstanding)))
    return count / (time.perf_counter() - begin)


async def told(tell: Call, ask: Call, count: int) -> float:
    """Tells per second, until an ask that was sent after the last one has been answered."""
    begin = time.perf_counter()
    for _ in range(count):
        await tell()
    await ask()
    return count / (time.perf_counter() - begin)
