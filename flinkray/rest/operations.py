"""Savepoints, stops and disposals, which a client starts by one request and polls by later ones.

RE-20 to RE-24 of the specification.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import TriggerID
from flinkray.rest.errors import RestError, failure_cause, not_found, of_cluster

log = logging.getLogger(__name__)

Key = tuple[Hashable, TriggerID]
"""The kind of operation with its target, and the trigger id."""

_REFUSED_WITHIN = 0.3
"""Seconds within which a failed operation is reported in the answer to its trigger request."""


@dataclass(slots=True)
class _Operation:
    task: asyncio.Future[dict[str, Any]]
    failure_key: str
    fetched: asyncio.Future[None]
    """Completes when a client has fetched the result, or the result is dropped."""


class Operations:
    """The savepoints, stops and disposals (*operations*) that clients have started. A finished
    operation is kept for some time, so that its client can fetch the result. Use it on one event
    loop."""

    def __init__(self, kept: float) -> None:
        """Create a collection without operations. *kept*: seconds for which the result of a
        finished operation can be fetched."""
        self._kept = kept
        self._operations: dict[Key, _Operation] = {}
        self._is_closing = False

    async def start(
        self,
        key: Key,
        perform: Callable[[], Awaitable[dict[str, Any]]],
        failure_key: str = "failure-cause",
    ) -> dict[str, str]:
        """Start the operation *key* unless it was started before, and return its id as JSON for the
        client.

        *perform* does the work and returns the result for the client. *failure_key* is the JSON key
        under which the client finds a failure. Raises RestError if the operation fails within a
        moment; the operation is then forgotten."""
        if self._is_closing:
            raise RestError(503, "the endpoint is being closed and starts nothing more")
        operation = self._operations.get(key)
        if operation is None:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(perform())
            operation = self._operations[key] = _Operation(task, failure_key, loop.create_future())
            ended = operation
            task.add_done_callback(lambda _: self._ended(key, ended))
        done, _ = await asyncio.wait({operation.task}, timeout=_REFUSED_WITHIN)
        if done and (error := operation.task.exception()) is not None:
            self._forget(key, operation)
            raise of_cluster(error) if isinstance(error, FlinkRayError) else error
        return {"request-id": key[1].hex()}

    def poll(self, key: Key) -> dict[str, Any]:
        """Return the status of the operation, and its result if it has finished, as JSON. Raises
        RestError: the client has started no such operation, or its result was kept long enough."""
        operation = self._operations.get(key)
        if operation is None:
            raise not_found(f"Operation not found under key: {key[1].hex()}")
        if not operation.task.done():
            return {"status": {"id": "IN_PROGRESS"}}
        if not operation.fetched.done():
            operation.fetched.set_result(None)
        return {"status": {"id": "COMPLETED"}, "operation": _outcome(operation)}

    def _ended(self, key: Key, operation: _Operation) -> None:
        if not operation.task.cancelled() and (error := operation.task.exception()) is not None:
            log.info("operation %s has failed: %s", key[1], error)
        asyncio.get_running_loop().call_later(self._kept, self._forget, key, operation)

    def _forget(self, key: Key, operation: _Operation) -> None:
        """Drop *operation*, unless the client has started another one under the same key."""
        if self._operations.get(key) is operation:
            del self._operations[key]
        if not operation.fetched.done():
            operation.fetched.set_result(None)

    async def close(self, patience: float) -> None:
        """Refuse new operations, and wait at most *patience* seconds until the clients have
        fetched the results, or the results have expired. Operations that still run continue in
        the cluster."""
        self._is_closing = True
        waiting = [operation.fetched for operation in self._operations.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=patience)
        for operation in self._operations.values():
            operation.task.cancel()


def _outcome(operation: _Operation) -> dict[str, Any]:
    error = operation.task.exception()
    if error is None:
        return operation.task.result()
    traceback = getattr(error, "remote_traceback", None)
    return {operation.failure_key: failure_cause(str(error), traceback)}
