"""Sending without waiting."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from flinkray.core.errors import FlinkRayError
from flinkray.rpc import RpcEndpoint

log = logging.getLogger(__name__)


def tell(endpoint: RpcEndpoint, message: Coroutine[Any, Any, None], to: str) -> None:
    """Send on the endpoint's main thread, in the background; an error is logged.

    Who cannot be reached is found out by its watch or heartbeat.
    """

    async def send() -> None:
        try:
            await message
        except FlinkRayError as error:
            log.info("%s could not be told: %s", to, error)

    task = endpoint.create_task(send(), f"message to {to}")
    task.add_done_callback(lambda _: message.close())  # if it was dropped before it had begun
