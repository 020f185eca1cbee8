"""Sends the JobMaster's orders to the process that coordinates the job's sources."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flinkray.actors.coordinators.runner import CoordinatorRunner
from flinkray.actors.coordinators.stream_coordinator_process import SourcesBeginning
from flinkray.actors.gateways.stream_coordinator import (
    CoordinatorSnapshot,
    KeptPart,
    RestoredCoordinators,
    StreamCoordinatorGateway,
)
from flinkray.actors.job_master.notes import NotesForSuccessor
from flinkray.checkpoint.handles import StateLocation
from flinkray.checkpoint.metadata import MasterState
from flinkray.core.errors import (
    CoordinatorReplacedError,
    FlinkRayError,
    RpcConnectionError,
    RpcError,
)
from flinkray.core.ids import ExecutionGraphID, JobMasterId, JobVertexID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.actions import (
    OrderCoordinators,
    ResetSubtasks,
    RestoreCoordinators,
    SnapshotCoordinators,
)
from flinkray.scheduler.checkpoints.events import (
    CheckpointEvent,
    CoordinatorCheckpointed,
    CoordinatorNotCheckpointed,
)
from flinkray.scheduler.execution.restart_strategy import RestartBackoffTimeStrategy
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorID,
    CoordinatorKind,
    GlobalFormatsCall,
    GlobalFormatsCalled,
)

log = logging.getLogger(__name__)

Call = Callable[[StreamCoordinatorGateway], Awaitable[None]]


class KnowsBlobServer(Protocol):
    """Interface that gives the address of the blob server: the server for user code that was too
    large to be sent with the job.
    """

    @property
    def blob_server(self) -> str | None:
        """Address of the blob server; None if it is not known now."""


Tell = Callable[[CheckpointEvent], None]
States = Mapping[str, StateLocation | None]
"""Operator id -> state of the operator's coordinator."""

_RETRY_DELAY = 0.1
"""Seconds until an unanswered order is repeated."""


@dataclass
class _Waiting:
    call: Call
    given_up: Callable[[str, bool], None] = field(default=lambda cause, is_lost: None)
    """Called if the order was not carried out, with the cause and whether the process is gone."""
    is_needed: bool = False
    """Whether the process must be ended if it does not carry out this order."""
    may_be_repeated: bool = True
    """Whether the order is repeated when it is unknown whether the process has carried it out."""


class SourceCoordination:
    """Sends orders to the source coordinator, one at a time, in the order of the decisions.

    If the coordinator's process dies, another process replaces it. It continues from the parts of
    the coordinator's state that are stored for this case (:class:`KeptPart`), and gets the
    unanswered orders (``docs/design/0061-coordinators-that-die.md``). This is possible only if the
    parts contain all events that readers have received, and if no source has a master hook (a hook
    must not go back to a checkpoint while the tasks run on). Otherwise all sources are restored:
    the waiting orders are given up, and the process starts with the last restored state.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        runner: CoordinatorRunner,
        sources: Iterable[JobVertexID],
        notes: NotesForSuccessor,
        deaths: RestartBackoffTimeStrategy,
        on_replaced: Callable[[str], None],
        *,
        has_hooks: bool = False,
    ) -> None:
        """Create the coordination without a process.

        Args:
            notes: stores parts of the process's state for the next process.
            deaths: decides whether a process that has died may be replaced.
            on_replaced: called with the reason when another JobMaster has taken over the process.
            has_hooks: whether any source has a master hook.
        """
        self._has_hooks = has_hooks
        self._on_replaced = on_replaced
        self._sources = frozenset(sources)
        self._notes = notes
        self._deaths = deaths
        self._restores = 0
        self._unknown: frozenset[JobVertexID | None] = frozenset()
        """Sources whose readers may have received events that the kept parts do not contain."""
        self._expected: CoordinatorID | None = None
        """The coordinator that was started or taken over last."""
        self._has_run = False
        self._goes_on = False
        """Whether the next process begins with the kept parts.
        If not, with the last restored state.
        """
        self._present: _Waiting | None = None
        """The order that is being sent."""
        self._job_master = job_master
        self._runner = runner
        self._restored: RestoredCoordinators | None = None
        self._waiting: deque[_Waiting] = deque()
        self._process: CoordinatorID | None = None
        """The coordinator whose process runs and takes orders. None if there is none."""
        self._calling: asyncio.Task[None] | None = None
        self._owner: JobMasterId = job_master.fencing_token

    @property
    def owner(self) -> JobMasterId:
        """The id of the JobMaster that has started the coordinator's process, or would start it."""
        return self._owner

    # --- the process ------------------------------------------------------------------------------

    def beginning(self, coordinator: CoordinatorID, graph_id: ExecutionGraphID) -> SourcesBeginning:
        """Return what the next attempt, *coordinator*, begins with: stored parts of its
        predecessor's state or, if they must not be used, the last restored state. Must be called
        once per attempt. *graph_id*: the execution graph of the sources' tasks."""
        kept: tuple[KeptPart, ...] = ()
        restores = 0
        if self._goes_on:
            kept, restores = self._notes.parts(self._restores), self._restores
        self._expected, self._goes_on = coordinator, False
        return SourcesBeginning(self._owner, restores, self._restored, kept, graph_id)

    def started(self, coordinator: CoordinatorID) -> None:
        """Note that the process of the coordinator runs, and begin to send the waiting orders."""
        if coordinator.kind is CoordinatorKind.SOURCE_ENUMERATORS:
            self._process, self._has_run = coordinator, True
            self._call_next()

    def adopted(self, coordinator: CoordinatorID, owner: JobMasterId, restores: int) -> None:
        """Note that this JobMaster has taken over *coordinator*, which an earlier JobMaster,
        *owner*, has started. *restores* says how often the sources had been restored. Orders go to
        this coordinator or, if it dies, to the process that replaces it."""
        self._owner, self._restores, self._expected = owner, restores, coordinator
        self._has_run = True
        if restores == 0:  # readers have received nothing that is not kept
            self._unknown = frozenset()
        else:
            parts = self._notes.parts(restores)
            self._unknown = self._sources - {part.vertex_id for part in parts}

    def gone(self, coordinator: CoordinatorID, cause: str, *, goes_on: bool = False) -> None:
        """Note that a coordinator has died, was stopped, or will not start.

        *goes_on*: True if another process continues from the stored parts of its state, and gets
        the waiting orders. If False, the waiting orders fail with *cause*.
        """
        if coordinator.kind is not CoordinatorKind.SOURCE_ENUMERATORS:
            return
        self._process, self._goes_on = None, goes_on
        present, self._present = self._present, None
        if self._calling is not None:
            self._calling.cancel()
            self._calling = None
        if goes_on:
            if present is not None and present.may_be_repeated:
                self._waiting.appendleft(present)
            elif present is not None:
                present.given_up(cause, True)
            return
        self._owner = self._job_master.fencing_token
        self._unknown = frozenset()
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.given_up(cause, True)

    def begins_anew(self) -> None:
        """Note that the job begins anew with all its sources. Stored parts of their state are
        dropped. Tasks that are deployed from now on use the next process, whose owner is this
        JobMaster. The process that an earlier JobMaster has started may exist a little longer.
        """
        self._owner, self._restores = self._job_master.fencing_token, 0
        self._unknown = frozenset()
        self._notes.forget_parts()

    # --- what is kept of it -----------------------------------------------------------------------

    async def keep(self, owner: JobMasterId, coordinator: CoordinatorID, part: KeptPart) -> None:
        """Store a part of the coordinator's state; see :meth:`JobMasterGateway.keep_part`.

        Raises CoordinatorReplacedError if the part does not come from the present coordinator.
        *owner* is compared too, because attempt numbers begin again when the job begins anew.
        """
        if (owner, coordinator) != (self._owner, self._expected):
            raise CoordinatorReplacedError(f"{coordinator} is not the one that is there now")
        if part.restores == self._restores:
            self._unknown -= {part.vertex_id}
        await self._notes.keep(part)

    @property
    def has_readers(self) -> bool:
        """Whether any task has requested splits since the sources were last restored. Judged by the
        stored parts of the coordinator's state."""
        parts = self._notes.parts(self._restores)
        known = (part.progress.readers for part in parts if part.progress is not None)
        return any(reader.is_added for readers in known for reader in readers)

    def may_go_on(self, now: float) -> bool:
        """Count the coordinator's death, and return whether another process can continue in its
        place. False if readers may have received events that are not in the stored parts, if a
        source has a master hook, if the coordinator has not run yet, or if too many have died."""
        parts = self._notes.parts(self._restores)
        is_known = not self._unknown and all(
            part.progress is not None for part in parts if part.vertex_id is not None
        )
        if not is_known or not self._has_run or self._has_hooks:
            return False
        self._deaths.notify_failure(now)
        return self._deaths.can_restart()

    # --- orders -----------------------------------------------------------------------------------

    def snapshot(self, action: SnapshotCoordinators, tell: Tell) -> None:
        """Order all sources to fix which events readers get before a checkpoint, and to return
        their states. *tell* is called with the state or the failure of each source. If a master
        hook fails, *tell* gets this failure first, and then the states. Later orders do not wait
        for the hooks."""
        token = self._job_master.fencing_token

        def failed(cause: str, is_lost: bool) -> None:
            for operator in action.operators:
                told = CoordinatorNotCheckpointed(action.checkpoint_id, operator, cause, is_lost)
                tell(told)

        def hooks_failed(cause: str, is_lost: bool) -> None:
            tell(CoordinatorNotCheckpointed(action.checkpoint_id, None, cause, is_lost))

        async def call(process: StreamCoordinatorGateway) -> None:
            snapshots = await process.snapshot(
                token, action.checkpoint_id, action.timestamp, action.directory
            )
            states = {snapshot.operator_id: snapshot.state for snapshot in snapshots}
            if self._has_hooks:
                self._job_master.create_task(hooks_called(process, states), "await master hooks")
            else:
                taken(states, ())

        async def hooks_called(process: StreamCoordinatorGateway, states: States) -> None:
            try:
                of_hooks = await process.master_states(token, action.checkpoint_id)
            except FlinkRayError as error:
                log.warning("checkpoint %d: %s", action.checkpoint_id, error)
                hooks_failed(str(error), isinstance(error, RpcError))
                taken(states, ())  # the checkpoint is over now, so their files are deleted
            else:
                taken(states, of_hooks)

        def taken(states: States, of_hooks: tuple[MasterState, ...]) -> None:
            for operator in action.operators:
                state = states[operator]
                tell(CoordinatorCheckpointed(action.checkpoint_id, operator, state, of_hooks))
                of_hooks = ()

        self._add(_Waiting(call, failed, may_be_repeated=False))

    def restore(self, action: RestoreCoordinators) -> None:
        """Order the coordinator to restore all sources to a checkpoint, or to their beginning."""
        states = tuple(CoordinatorSnapshot(*item) for item in action.states.items())
        restored = RestoredCoordinators(
            action.restores, action.checkpoint_id or 0, states, action.master_states
        )
        self._restored, self._restores = restored, action.restores
        self._unknown = frozenset()
        token = self._job_master.fencing_token
        self._add(_Waiting(lambda process: process.restore(token, restored), is_needed=True))

    def reset(self, action: ResetSubtasks, *, are_known: bool = False) -> None:
        """Order the coordinator to take back the splits that earlier attempts of restarted subtasks
        have received, and to ignore these attempts from then on.

        The order is sent once the numbers of the new attempts are stored for the next JobMaster,
        unless they run already (*are_known*). Otherwise the next JobMaster could deploy an earlier
        attempt, which would wait for splits for ever.
        """
        token, subtasks = self._job_master.fencing_token, dict(action.subtasks)

        async def call(process: StreamCoordinatorGateway) -> None:
            if not are_known:
                await self._notes.acknowledged()
            await process.reset_subtasks(token, action.checkpoint_id, subtasks)

        self._add(_Waiting(call, is_needed=True))

    def order(self, action: OrderCoordinators) -> None:
        """Tell the coordinator that a checkpoint is complete or aborted."""
        token = self._job_master.fencing_token
        self._add(_Waiting(lambda process: process.checkpoint_ended(token, action.order)))

    def call_global_formats(
        self,
        call: GlobalFormatsCall,
        blobs: KnowsBlobServer,
        tell: Callable[[CoordinatorID, CoordinatorEvent], None],
    ) -> None:
        """Order the output formats to prepare or finish their outputs. *tell* gets the answer.
        A failure of a format does not come here: the coordinator reports it to
        :meth:`JobMaster.coordinator_told`.
        """

        async def send(process: StreamCoordinatorGateway) -> None:
            await process.call_global_formats(
                self._job_master.fencing_token, call, blobs.blob_server
            )
            if self._process is not None:
                tell(self._process, GlobalFormatsCalled(call))

        self._add(_Waiting(send))

    # --- calls ------------------------------------------------------------------------------------

    def _add(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self._call_next()

    def _call_next(self) -> None:
        if self._process is not None and self._calling is None and self._waiting:
            self._present = self._waiting.popleft()
            self._calling = self._job_master.create_task(
                self._call(self._process, self._present), "call the sources' coordinator"
            )

    async def _call(self, coordinator: CoordinatorID, waiting: _Waiting) -> None:
        try:
            await waiting.call(await self._connected(coordinator))
        except CoordinatorReplacedError as error:
            waiting.given_up(str(error), True)
            self._on_replaced(str(error))
        except FlinkRayError as error:
            log.warning("%s: %s", coordinator, error)
            if isinstance(error, RpcError) and waiting.may_be_repeated:
                await self._job_master.rpc_service.pause(_RETRY_DELAY)
                self._waiting.appendleft(waiting)
            else:
                waiting.given_up(str(error), isinstance(error, RpcError))
                if waiting.is_needed:
                    cause = f"it did not go back to a checkpoint: {error}"
                    self._runner.give_up(coordinator, cause)
        self._calling = self._present = None
        self._call_next()

    async def _connected(self, coordinator: CoordinatorID) -> StreamCoordinatorGateway:
        address = self._runner.address_of(coordinator)
        if address is None:
            raise RpcConnectionError(f"{coordinator} is not there any more")
        service = self._job_master.rpc_service
        return await service.connect(address, StreamCoordinatorGateway)
