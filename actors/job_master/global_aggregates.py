"""Aggregates to which all tasks of a job add values, and whose result they get at once (JM-16)."""

from __future__ import annotations

import asyncio

from flinkray.actors.coordinators.user_code_process import UserCodeProcessConnection
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID

_Number = tuple[int, int]
"""Number of a subtask's update: (attempt number, sequence number within the attempt)."""


class GlobalAggregates:
    """The aggregates of a job. Lives on the JobMaster's main thread, as long as the JobMaster.

    Restarts of tasks do not change the aggregates. A task that has added to an aggregate, and
    continues under the next JobMaster, fails at its next update. Updates of an attempt are
    numbered, so that a repeated update is made once. An attempt begins an update only after the
    answer to its last one.
    """

    def __init__(self, process: UserCodeProcessConnection) -> None:
        self._process = process
        self._accumulators: dict[str, bytes] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._latest: dict[ExecutionVertexID, tuple[_Number, asyncio.Task[bytes]]] = {}
        """For each subtask its latest update.
        Updates of earlier attempts of the subtask are not needed.
        """

    async def update(
        self, attempt_id: ExecutionAttemptID, number: int, name: str, value: bytes, function: bytes
    ) -> bytes:
        """Add *value* to the aggregate *name*, and return the aggregate's new result.
        *number* is the update's sequence number within the attempt. A repeated update is not added
        again.

        Raises:
            FlinkRayError: the update is outdated, or the attempt's earlier values are lost.
            Exception: whatever the user's function raises. Nothing is added then.
        """
        wanted = attempt_id.attempt_number, number
        latest, known = self._latest.get(attempt_id.vertex, ((-1, -1), None))
        if wanted < latest:
            raise FlinkRayError(f"update {number} of {name!r} by {attempt_id} comes too late")
        if number and latest[0] != attempt_id.attempt_number:
            raise FlinkRayError(
                f"aggregate {name!r} was lost with the JobMaster before, to which {attempt_id} has "
                "added to it"
            )
        if known is None or wanted > latest:
            # not a task of the endpoint, which would fail together with the user's function
            known = asyncio.ensure_future(self._update(name, value, function))
            known.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._latest[attempt_id.vertex] = wanted, known
        return await asyncio.shield(known)

    async def _update(self, name: str, value: bytes, function: bytes) -> bytes:
        async with self._turns.setdefault(name, asyncio.Lock()):
            process = await self._process.get()
            try:
                step = await process.aggregate(function, self._accumulators.get(name), value)
            except RpcError as error:
                self._process.failed()
                raise FlinkRayError(f"aggregate {name!r} was not updated: {error}") from error
            self._accumulators[name] = step.accumulator
            return step.result
