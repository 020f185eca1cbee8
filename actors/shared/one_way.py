"""Sends messages without waiting for an answer."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from flinkray.core.errors import FlinkRayError
from flinkray.rpc import RpcEndpoint

log = logging.getLogger(__name__)


def tell(endpoint: RpcEndpoint, message: Coroutine[Any, Any, None], to: str) -> None:
    """Send *message* in the background on the endpoint's main thread. Does not wait for an answer.
    *to* names the receiver in log lines. An error is only logged: the watch or the heartbeats of
    the receiver report that it is lost.
    """

    async def send() -> None:
        try:
            await message
        except FlinkRayError as error:
            log.info("%s could not be told: %s", to, error)

    task = endpoint.create_task(send(), f"message to {to}")
    # in case the task was dropped before it began
    task.add_done_callback(lambda _: message.close())
