"""What the JobMaster asks of the process with the coordinators of a job's sources."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from flinkray.actors.coordinators.runner import CoordinatorRunner
from flinkray.actors.gateways.stream_coordinator import (
    CoordinatorReplacedError,
    CoordinatorSnapshot,
    RestoredCoordinators,
    StreamCoordinatorGateway,
)
from flinkray.core.errors import FlinkRayError, RpcConnectionError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.actions import RestoreCoordinators, SnapshotCoordinators
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.job.job_scheduler_actions import OrderCoordinators, ResetSubtasks

log = logging.getLogger(__name__)

Call = Callable[[StreamCoordinatorGateway], Awaitable[None]]
Tell = Callable[[t.CheckpointEvent], None]


@dataclass
class _Waiting:
    call: Call
    given_up: Callable[[str], None] = field(default=lambda cause: None)
    """The process is gone, or has not done it."""
    is_needed: bool = False
    """Without it the process is of no use."""


class SourceCoordination:
    """One call at a time, in the order of the decisions, and all to one process: with that, what
    waits for it is given up, since all sources are restored then.

    A process is started with what coordinators were restored to last.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        runner: Callable[[], CoordinatorRunner],
        on_replaced: Callable[[str], None],
    ) -> None:
        """*on_replaced* is called with the reason when another JobMaster has the process."""
        self._on_replaced = on_replaced
        self._job_master = job_master
        self._runner = runner
        self._restored: RestoredCoordinators | None = None
        self._waiting: deque[_Waiting] = deque()
        self._process: CoordinatorID | None = None
        """The one that runs."""
        self._calling: asyncio.Task[None] | None = None
        self._owner: JobMasterId = job_master.fencing_token

    @property
    def owner(self) -> JobMasterId:
        """The JobMaster that has started the process, or would start it."""
        return self._owner

    @property
    def restored(self) -> RestoredCoordinators | None:
        """What a process that is started now begins with; None: anew."""
        return self._restored

    # --- the process ------------------------------------------------------------------------------

    def started(self, coordinator: CoordinatorID) -> None:
        """It is there."""
        if coordinator.kind is CoordinatorKind.SOURCE_ENUMERATORS:
            self._process = coordinator
            self._call_next()

    def adopted(self, coordinator: CoordinatorID, owner: JobMasterId) -> None:
        """One that an earlier JobMaster, *owner*, has started takes our orders."""
        self._owner = owner
        self.started(coordinator)

    def gone(self, coordinator: CoordinatorID, cause: str) -> None:
        """It is there no more, or will not come."""
        if coordinator.kind is not CoordinatorKind.SOURCE_ENUMERATORS:
            return
        self._process = None
        self._owner = self._job_master.fencing_token
        if self._calling is not None:
            self._calling.cancel()
            self._calling = None
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.given_up(cause)

    # --- orders -----------------------------------------------------------------------------------

    def snapshot(self, action: SnapshotCoordinators, tell: Tell) -> None:
        """Have all sources make their cuts; each is told."""

        def failed(cause: str) -> None:
            for operator in action.operators:
                tell(t.CoordinatorNotCheckpointed(action.checkpoint_id, operator, cause))

        async def call(process: StreamCoordinatorGateway) -> None:
            snapshots = await process.snapshot(
                self._job_master.fencing_token, action.checkpoint_id, action.directory
            )
            states = {snapshot.operator_id: snapshot.state for snapshot in snapshots}
            for operator in action.operators:
                tell(t.CoordinatorCheckpointed(action.checkpoint_id, operator, states[operator]))

        self._add(_Waiting(call, failed))

    def restore(self, action: RestoreCoordinators) -> None:
        """All go back to a checkpoint, or to their beginning."""
        states = tuple(CoordinatorSnapshot(*item) for item in action.states.items())
        restored = RestoredCoordinators(action.restores, action.checkpoint_id or 0, states)
        self._restored = restored
        token = self._job_master.fencing_token
        self._add(_Waiting(lambda process: process.restore(token, restored), is_needed=True))

    def reset(self, action: ResetSubtasks) -> None:
        """Some subtasks go back."""
        token, subtasks = self._job_master.fencing_token, dict(action.subtasks)
        self._add(
            _Waiting(
                lambda process: process.reset_subtasks(token, action.checkpoint_id, subtasks),
                is_needed=True,
            )
        )

    def order(self, action: OrderCoordinators) -> None:
        """A checkpoint is over."""
        token = self._job_master.fencing_token
        self._add(_Waiting(lambda process: process.checkpoint_ended(token, action.order)))

    # --- calls ------------------------------------------------------------------------------------

    def _add(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self._call_next()

    def _call_next(self) -> None:
        if self._process is not None and self._calling is None and self._waiting:
            self._calling = self._job_master.create_task(
                self._call(self._process, self._waiting.popleft()), "call the sources' coordinator"
            )

    async def _call(self, coordinator: CoordinatorID, waiting: _Waiting) -> None:
        try:
            await waiting.call(await self._connected(coordinator))
        except CoordinatorReplacedError as error:
            waiting.given_up(str(error))
            self._on_replaced(str(error))
        except FlinkRayError as error:
            log.warning("%s: %s", coordinator, error)
            waiting.given_up(str(error))
            if waiting.is_needed:
                self._runner().give_up(coordinator, f"it did not go back to a checkpoint: {error}")
        self._calling = None
        self._call_next()

    async def _connected(self, coordinator: CoordinatorID) -> StreamCoordinatorGateway:
        address = self._runner().address_of(coordinator)
        if address is None:
            raise RpcConnectionError(f"{coordinator} is not there any more")
        service = self._job_master.rpc_service
        return await service.connect(address, StreamCoordinatorGateway)
