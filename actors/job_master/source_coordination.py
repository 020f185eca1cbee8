"""What the JobMaster asks of the process with the coordinators of a job's sources."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from flinkray.actors.coordinators.runner import CoordinatorRunner
from flinkray.actors.coordinators.stream_coordinator_process import SourcesBeginning
from flinkray.actors.gateways.stream_coordinator import (
    CoordinatorSnapshot,
    KeptPart,
    RestoredCoordinators,
    StreamCoordinatorGateway,
)
from flinkray.actors.job_master.kept_parts import KeptParts
from flinkray.core.errors import (
    CoordinatorReplacedError,
    FlinkRayError,
    RpcConnectionError,
    RpcError,
)
from flinkray.core.ids import ExecutionGraphID, JobMasterId, JobVertexID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.actions import RestoreCoordinators, SnapshotCoordinators
from flinkray.scheduler.execution.restart_strategy import RestartBackoffTimeStrategy
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.job.job_scheduler_actions import OrderCoordinators, ResetSubtasks

log = logging.getLogger(__name__)

Call = Callable[[StreamCoordinatorGateway], Awaitable[None]]
Tell = Callable[[t.CheckpointEvent], None]

_RETRY_DELAY = 0.1
"""Seconds until an order is given again that was not answered."""


@dataclass
class _Waiting:
    call: Call
    given_up: Callable[[str, bool], None] = field(default=lambda cause, is_lost: None)
    """The process is gone (True), or has not done it."""
    is_needed: bool = False
    """Without it the process is of no use."""
    may_be_repeated: bool = True
    """When it is not known whether it was done."""


class SourceCoordination:
    """One call at a time, in the order of the decisions.

    A process that dies is replaced by one that goes on from what was kept of it, and is given the
    orders that it had not answered, if it is known that readers know no more
    (``docs/design/0061-coordinators-that-die.md``).  Else what waits for it is given up, since all
    sources are restored then: the next process is started with what they were restored to last.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        runner: Callable[[], CoordinatorRunner],
        sources: Iterable[JobVertexID],
        kept: KeptParts,
        deaths: RestartBackoffTimeStrategy,
        on_replaced: Callable[[str], None],
        graph_id: Callable[[], ExecutionGraphID],
        noted: Callable[[], Awaitable[None]],
    ) -> None:
        """*sources*: the vertices that read them.  *graph_id*: of their tasks.  *deaths* says
        whether a process that has died may be replaced.  *on_replaced* is called with the reason
        when another JobMaster has it.  *noted* returns when the next JobMaster would find all that
        was noted so far."""
        self._on_replaced = on_replaced
        self._graph_id = graph_id
        self._noted = noted
        self._sources = frozenset(sources)
        self._kept = kept
        self._deaths = deaths
        self._restores = 0
        self._unknown: frozenset[JobVertexID | None] = frozenset()
        """Sources of which readers may know more than is kept."""
        self._expected: CoordinatorID | None = None
        """The last that was started, or taken over."""
        self._has_run = False
        self._goes_on = False
        """Whether the next process goes on from what is kept."""
        self._present: _Waiting | None = None
        """What the process is being told."""
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

    # --- the process ------------------------------------------------------------------------------

    def beginning(self, coordinator: CoordinatorID) -> SourcesBeginning:
        """What this attempt begins with, which is about to be started."""
        kept: tuple[KeptPart, ...] = ()
        restores = 0
        if self._goes_on:
            kept, restores = self._kept.of(self._restores), self._restores
        self._expected, self._goes_on = coordinator, False
        return SourcesBeginning(self._owner, restores, self._restored, kept, self._graph_id())

    def started(self, coordinator: CoordinatorID) -> None:
        """It is there."""
        if coordinator.kind is CoordinatorKind.SOURCE_ENUMERATORS:
            self._process, self._has_run = coordinator, True
            self._call_next()

    def adopted(
        self, coordinator: CoordinatorID, owner: JobMasterId, restores: int, *, is_known: bool
    ) -> None:
        """One that an earlier JobMaster, *owner*, has started takes our orders, or would if it had
        not died.  *is_known*: whether what was kept of a source, if anything was, is all that
        readers know of it."""
        self._owner, self._restores, self._expected = owner, restores, coordinator
        self._has_run = True
        if not is_known:
            self._kept.begin_unknown(self._sources, restores)
            self._unknown = self._sources
        elif restores == 0:  # readers were told nothing of which nothing was kept
            self._unknown = frozenset()
        else:
            parts = self._kept.of(restores)
            self._unknown = self._sources - {part.vertex_id for part in parts}

    def gone(self, coordinator: CoordinatorID, cause: str, *, goes_on: bool = False) -> None:
        """It is there no more, or will not come.  *goes_on*: another one takes its place."""
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
        """The job does, and with it all sources: tasks that are deployed from now on look for the
        next process, whose owner is this JobMaster.  The one that an earlier JobMaster has started
        may still be there, as it takes a while to end."""
        self._owner, self._restores = self._job_master.fencing_token, 0
        self._unknown = frozenset()
        self._kept.forget()

    # --- what is kept of it -----------------------------------------------------------------------

    async def keep(self, owner: JobMasterId, coordinator: CoordinatorID, part: KeptPart) -> None:
        """See :meth:`JobMasterGateway.keep_part`.

        When the job begins anew, attempts are counted anew, too: one that an earlier JobMaster has
        started, and that was given up as it did not answer, may have the same number.
        """
        if (owner, coordinator) != (self._owner, self._expected):
            raise CoordinatorReplacedError(f"{coordinator} is not the one that is there now")
        if part.restores == self._restores:
            self._unknown -= {part.vertex_id}
        await self._kept.keep(part)

    @property
    def has_readers(self) -> bool:
        """Whether any task is known to have asked for splits since the last restore."""
        parts = self._kept.of(self._restores)
        return any(part.progress is not None and part.progress.readers for part in parts)

    def may_go_on(self, now: float) -> bool:
        """Whether another process can take the place of one that has died just now: everything
        that readers know is kept, and such deaths are rare."""
        parts = self._kept.of(self._restores)
        is_known = not self._unknown and all(
            part.progress is not None for part in parts if part.vertex_id is not None
        )
        if not is_known or not self._has_run:
            return False
        self._deaths.notify_failure(now)
        return self._deaths.can_restart()

    # --- orders -----------------------------------------------------------------------------------

    def snapshot(self, action: SnapshotCoordinators, tell: Tell) -> None:
        """Have all sources make their cuts; each is told."""

        def failed(cause: str, is_lost: bool) -> None:
            for operator in action.operators:
                told = t.CoordinatorNotCheckpointed(action.checkpoint_id, operator, cause, is_lost)
                tell(told)

        async def call(process: StreamCoordinatorGateway) -> None:
            snapshots = await process.snapshot(
                self._job_master.fencing_token, action.checkpoint_id, action.directory
            )
            states = {snapshot.operator_id: snapshot.state for snapshot in snapshots}
            for operator in action.operators:
                tell(t.CoordinatorCheckpointed(action.checkpoint_id, operator, states[operator]))

        self._add(_Waiting(call, failed, may_be_repeated=False))

    def restore(self, action: RestoreCoordinators) -> None:
        """All go back to a checkpoint, or to their beginning."""
        states = tuple(CoordinatorSnapshot(*item) for item in action.states.items())
        restored = RestoredCoordinators(action.restores, action.checkpoint_id or 0, states)
        self._restored, self._restores = restored, action.restores
        self._unknown = frozenset()
        token = self._job_master.fencing_token
        self._add(_Waiting(lambda process: process.restore(token, restored), is_needed=True))

    def reset(self, action: ResetSubtasks, *, are_known: bool = False) -> None:
        """Some subtasks go back.

        Of earlier attempts nothing is heard from then on.  So these have to be noted before, or the
        next JobMaster could deploy an earlier one, which would wait for splits for ever.

        Args:
            are_known: these attempts run already.
        """
        token, subtasks = self._job_master.fencing_token, dict(action.subtasks)

        async def call(process: StreamCoordinatorGateway) -> None:
            if not are_known:
                await self._noted()
            await process.reset_subtasks(token, action.checkpoint_id, subtasks)

        self._add(_Waiting(call, is_needed=True))

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
                    self._runner().give_up(coordinator, cause)
        self._calling = self._present = None
        self._call_next()

    async def _connected(self, coordinator: CoordinatorID) -> StreamCoordinatorGateway:
        address = self._runner().address_of(coordinator)
        if address is None:
            raise RpcConnectionError(f"{coordinator} is not there any more")
        service = self._job_master.rpc_service
        return await service.connect(address, StreamCoordinatorGateway)
