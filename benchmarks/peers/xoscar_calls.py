"""Calls between two processes of xoscar's actor pool; run by ``benchmarks/rpc.py``.

Started with the interpreter of the peers' environment, which knows nothing of flinkray or Ray.
Reads one line per request from standard input, a JSON object with ``measure`` (``calls`` or
``payload``) and its arguments, and answers with one line of JSON.  Ends when the input ends.

Both actors live in sub-processes of one pool, with the pool's defaults (uvloop; the address that
xoscar itself prefers between processes of one pool).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import xoscar


class Echo(xoscar.StatelessActor):
    """The called side; stateless actors take no lock around a call, which is xoscar's fastest."""

    async def echo(self, value: Any) -> Any:
        return value

    @xoscar.extensible
    async def extensible_echo(self, value: Any) -> Any:
        return value

    async def length(self, value: bytes) -> int:
        return len(value)


class Caller(xoscar.StatelessActor):
    """The calling side."""

    def __init__(self, echo: Any) -> None:
        super().__init__()
        self._echo = echo

    async def calls(self, asks: int, pipelined: int, outstanding: int) -> dict[str, float]:
        echo = await xoscar.actor_ref(self._echo)
        p50, p99 = await one_by_one(lambda: echo.echo(1), asks)
        begin = time.perf_counter()
        for _ in range(pipelined // outstanding):
            await asyncio.gather(*(echo.echo(1) for _ in range(outstanding)))
        rate = pipelined / (time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(pipelined):
            await echo.echo.tell(1)
        await echo.echo(1)
        tells = pipelined / (time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(pipelined // outstanding):
            method = echo.extensible_echo
            await method.batch(*(method.delay(1) for _ in range(outstanding)))
        batched = pipelined / (time.perf_counter() - begin)
        return {"p50": p50, "p99": p99, "pipelined": rate, "tells": tells, "batched": batched}

    async def payload(self, size: int, asks: int) -> dict[str, float]:
        echo = await xoscar.actor_ref(self._echo)
        body = bytes(size)
        p50, p99 = await one_by_one(lambda: echo.length(body), asks)
        return {"p50": p50, "p99": p99}


async def one_by_one(call: Callable[[], Awaitable[Any]], count: int) -> tuple[float, float]:
    """p50 and p99, in seconds."""
    durations = []
    for _ in range(count):
        begin = time.perf_counter()
        await call()
        durations.append(time.perf_counter() - begin)
    durations.sort()
    return durations[count // 2], durations[count * 99 // 100]


async def main() -> None:
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=2)
    async with pool:
        first, second = (xoscar.allocate_strategy.ProcessIndex(index) for index in (1, 2))
        address = pool.external_address
        echo = await xoscar.create_actor(Echo, uid="echo", address=address, allocate_strategy=first)
        caller = await xoscar.create_actor(
            Caller, echo, uid="caller", address=address, allocate_strategy=second
        )
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            request = json.loads(line)
            measure = getattr(caller, request.pop("measure"))
            print(json.dumps(await measure(**request)), flush=True)


if __name__ == "__main__":
    from xoscar_calls import main as importable_main  # the pool's processes import the actors

    asyncio.run(importable_main())
