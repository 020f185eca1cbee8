"""Repeats work that must be done, until it succeeds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from flinkray.core.errors import RpcError
from flinkray.ha import JobStoreStateError, StoreError

log = logging.getLogger(__name__)

_RETRY_DELAY = 0.5
"""Seconds between two attempts."""


async def retry_until_done(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Repeat *work* until it succeeds. *what* is the text that is logged with each error.

    Also returns if *work* raises JobStoreStateError: a repetition could not help then.
    """
    while True:
        try:
            await work()
            return
        except JobStoreStateError as error:
            log.error("%s, and a repetition cannot help: %s", what, error)
            return
        except (RpcError, StoreError) as error:
            log.warning("%s: %s", what, error)
        await asyncio.sleep(_RETRY_DELAY)
