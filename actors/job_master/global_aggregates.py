"""Values that all tasks of a job add to, and see the result of at once (JM-16)."""

from __future__ import annotations

import asyncio

from flinkray.actors.coordinators.user_code_process import UserCodeProcessConnection
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID

_Number = tuple[int, int]
"""Of an update of a subtask: its attempt's, and its own in the attempt."""


class GlobalAggregates:
    """Lives on the JobMaster's main thread, as long as the JobMaster: restarts of tasks change
    nothing.  With the JobMaster they are lost: a task that goes on with the next one, and has added
    to any, fails when it does so again.

    An attempt's updates are numbered, so that one that is asked for again is made once.  It begins
    one when it has the answer to the last one: an earlier one that comes yet was answered before.
    """

    def __init__(self, process: UserCodeProcessConnection) -> None:
        self._process = process
        self._accumulators: dict[str, bytes] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._latest: dict[ExecutionVertexID, tuple[_Number, asyncio.Task[bytes]]] = {}
        """Of each subtask, as its earlier attempts are over."""

    async def update(
        self, attempt_id: ExecutionAttemptID, number: int, name: str, value: bytes, function: bytes
    ) -> bytes:
        """The result of the aggregate of that name with *value* in it.

        Raises:
            FlinkRayError: that update is over, and nobody waits for its result; or what the attempt
                has added before is lost.
            whatever the user's function raises; nothing is added then.
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
            # no task of the endpoint's, which would fail with the user's function
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
