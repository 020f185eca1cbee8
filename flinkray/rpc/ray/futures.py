"""Waiting for Ray on an event loop."""

from __future__ import annotations

import asyncio
from typing import Any


async def result_of(reference: Any) -> Any:
    """Await an object reference, on any event loop; also one of Ray Client.

    Ray's own future is not cancelled together with its waiter: the thread in which Ray Client sets
    its futures does not survive that.
    """
    future = asyncio.wrap_future(reference.future())
    future.add_done_callback(_retrieve)  # also when nobody waits any more
    return await asyncio.shield(future)


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
