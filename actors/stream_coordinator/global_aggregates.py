"""Adds the values that a job's tasks send to the job's global aggregates (JM-16)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from flinkray.actors.gateways.stream_coordinator import AggregateAnswer, AggregateUpdate
from flinkray.actors.shared.user_calls import call_user_code
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import ExecutionGraphID, ExecutionVertexID
from flinkray.rpc import RpcService
from flinkray.streaming.functions.functions import AggregateFunction
from flinkray.streaming.functions.global_aggregates import GlobalAggregates, global_aggregate_error
from flinkray.user_code import load_function

_ENVELOPE = 1024
"""Most bytes of an answer beside the result."""
_Number = tuple[int, int]
"""(attempt number, number of the update within the attempt)."""


class AggregateUpdates:
    """Holds the job's global aggregates, and makes each update once, even if its message is
    repeated.

    The values live as long as this process. Restarts of tasks and of the whole job do not change
    them. An attempt sends an update only after the answer to its last one.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        coordinator: str,
        provide_files: Callable[[str | None], Awaitable[None]],
    ) -> None:
        """Create the aggregates of a job, without values.

        Args:
            coordinator: id of the coordinator that keeps the values.
            provide_files: makes the job's files importable, given the address of a blob server.
        """
        self._rpc_service = rpc_service
        self._coordinator = coordinator
        self._provide_files = provide_files
        self._aggregates = GlobalAggregates(rpc_service.max_frame_size - _ENVELOPE)
        self._turns: dict[str, asyncio.Lock] = {}
        """Name of an aggregate -> lock that is held during an update of the aggregate."""
        self._functions: dict[str, tuple[bytes, AggregateFunction[object, object, object]]] = {}
        """Name of an aggregate -> the last pickled function, and the function."""
        self._latest: dict[
            tuple[ExecutionGraphID, ExecutionVertexID], tuple[_Number, asyncio.Task[bytes]]
        ] = {}
        """The latest update of each subtask."""

    async def update(self, update: AggregateUpdate) -> AggregateAnswer:
        """Add a value to an aggregate, and return the new result. A repeated call for the attempt's
        latest update gets the same answer. If another coordinator has answered the attempt's last
        update, nothing is added and the result is None.

        Raises:
            FlinkRayError: a later update of the subtask is known, or the job's files are missing.
            GlobalAggregateError: the user's function failed. Nothing was added.
        """
        if update.known is not None and update.known != self._coordinator:
            return AggregateAnswer(self._coordinator, None)
        await self._provide_files(update.blob_server)
        attempt_id = update.attempt_id
        subtask = attempt_id.graph_id, attempt_id.vertex
        number = attempt_id.attempt_number, update.number
        known = self._latest.get(subtask)
        if known is not None and number < known[0]:
            raise FlinkRayError(
                f"update {update.number} of {update.name!r} by {attempt_id} comes too late"
            )
        if known is None or number > known[0]:
            # not a task of the endpoint, which would fail together with the user's function
            adding = asyncio.ensure_future(self._add(update))
            adding.add_done_callback(lambda done: done.cancelled() or done.exception())
            known = self._latest[subtask] = number, adding
        return AggregateAnswer(self._coordinator, await asyncio.shield(known[1]))

    async def _add(self, update: AggregateUpdate) -> bytes:
        name = update.name
        async with self._turns.setdefault(name, asyncio.Lock()):
            return await call_user_code(
                self._rpc_service,
                partial(self._call, update),
                partial(global_aggregate_error, name),
            )

    def _call(self, update: AggregateUpdate) -> bytes:
        code, function = self._functions.get(update.name, (None, None))
        if function is None or code != update.function:
            function = load_function(update.function)(None)
            self._functions[update.name] = update.function, function
        return self._aggregates.update(update.name, update.value, function)
