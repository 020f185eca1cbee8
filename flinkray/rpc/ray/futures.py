"""Await Ray's object references on an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from flinkray.rpc.time_limit import retrieve


async def result_of(reference: Any) -> Any:
    """Await one of Ray's object references, also of Ray Client, on any event loop.
    Returns its value.

    Ray's own future is not cancelled together with the waiting task: the thread in which Ray Client
    sets its futures does not survive that.
    """
    future = asyncio.wrap_future(reference.future())
    future.add_done_callback(retrieve)  # also when nobody waits any more
    return await asyncio.shield(future)
