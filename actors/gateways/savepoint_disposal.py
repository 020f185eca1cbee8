"""Deletes a savepoint even if the Dispatcher dies meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flinkray.actors.gateways.dispatcher import DispatcherGateway
from flinkray.checkpoint.errors import CheckpointNotFoundError
from flinkray.core.errors import RecipientUnreachableError, RpcTimeoutError


def disposal(location: str) -> Callable[[DispatcherGateway], Awaitable[None]]:
    """Return a call that deletes a savepoint.
    The call may be made to one Dispatcher after the other.

    If an earlier call was not answered, a missing savepoint means that the call has succeeded. The
    call raises CheckpointStorageError if there is no such savepoint or it cannot be deleted, and
    JobStateError if a running job needs the savepoint.
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
