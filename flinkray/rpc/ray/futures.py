"""Waiting for Ray on an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import ray

logger = logging.getLogger(__name__)

T = TypeVar("T")

ASK_AGAIN = 1.0
"""Seconds between two questions to a head that does not answer."""


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


async def patiently(run: Callable[..., Awaitable[T]], fn: Callable[..., T], *args: object) -> T:
    """*run* a call to Ray that does no harm when it is made twice, until Ray's head has answered.

    Ray waits for a head that is away by itself, and ends the process after a minute
    (``RAY_gcs_rpc_server_reconnect_timeout_s``); but a call that was under way when the head went,
    or came while it was starting, may fail.
    """
    was_told = False
    while True:
        try:
            return await run(fn, *args)
        except ray.exceptions.RayError as error:
            if not was_told:
                was_told = True
                logger.warning("Ray's head does not answer, asking it again: %s", error)
            await asyncio.sleep(ASK_AGAIN)
