"""Deletes a savepoint even if the Dispatcher dies meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flinkray.actors.gateways.dispatcher import DispatcherGateway
from flinkray.checkpoint.errors import CheckpointNotFoundError
from flinkray.core.errors import RecipientUnreachableError, RpcTimeoutError


def disposal(location: str) -> Callable[[DispatcherGateway], Awaitable[None]]:
    """Return a function that asks the Dispatcher it is given to delete the savepoint at *location*.

    The client calls this function again with the next Dispatcher if one does not answer. If an
    earlier call was not answered, a missing savepoint means that it has succeeded. The function
    raises CheckpointStorageError if there is no such savepoint or it cannot be deleted, and
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
