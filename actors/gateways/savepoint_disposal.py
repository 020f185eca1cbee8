"""Deleting a savepoint, whichever Dispatcher dies meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flinkray.actors.gateways.dispatcher import DispatcherGateway
from flinkray.checkpoint.errors import CheckpointNotFoundError
from flinkray.core.errors import RecipientUnreachableError, RpcTimeoutError


def disposal(location: str) -> Callable[[DispatcherGateway], Awaitable[None]]:
    """A call of a Dispatcher that may be made several times, of one after the other.  When one was
    not answered, that the savepoint is gone is the answer that was lost.

    It raises:
        CheckpointStorageError: there is none, or it cannot be deleted.
        JobStateError: a job that runs needs it.
    """
    unanswered = False

    async def dispose(gateway: DispatcherGateway) -> None:
        nonlocal unanswered
        try:
            await gateway.dispose_savepoint(location)
        except CheckpointNotFoundError:
            if not unanswered:
                raise
        except (RecipientUnreachableError, RpcTimeoutError):
            unanswered = True
            raise

    return dispose
