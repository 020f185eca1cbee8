"""Defines CheckpointCoordinator, which makes all decisions about a job's checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flinkray.checkpoint.handles import StateLocation, TaskState
from flinkray.checkpoint.metadata import MasterState
from flinkray.core.errors import IllegalTransitionError
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.scheduler.checkpoints.actions import (
    AddRestoredSavepoint,
    CloseCheckpointStores,
    DiscardCheckpoint,
    DiscardDirectory,
    OrderCheckpoint,
    OrderCoordinators,
    PrepareCheckpoint,
    SnapshotCoordinators,
    SnapshotFinished,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.earlier_checkpoints import EarlierCheckpoints
from flinkray.scheduler.checkpoints.events import (
    CheckpointsFailJob,
    CheckpointStep,
    CheckpointTimerOver,
    CheckpointTimerPurpose,
    ReadyToRestore,
)
from flinkray.scheduler.checkpoints.failures import (
    CheckpointError,
    CheckpointFailureManager,
    CheckpointFailureReason,
)
from flinkray.scheduler.checkpoints.kept_checkpoints import AbortedCheckpoints, KeptCheckpoints
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    AwaitCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.operators_with_state import operators_without_uid
from flinkray.scheduler.checkpoints.pending_checkpoint import (
    Acknowledgement,
    PendingCheckpoint,
    PendingPhase,
    locations_of,
)
from flinkray.scheduler.checkpoints.plan import (
    CheckpointedTopology,
    CheckpointPlan,
    TasksMissingError,
    calculate_plan,
    check_all_is_held,
    check_queries_are_held,
    outcome_orders,
    task_orders,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties, checkpoint_of
from flinkray.scheduler.checkpoints.restores import Restored, Restores, Tasks
from flinkray.scheduler.checkpoints.state_assignment import RestoredVertex
from flinkray.scheduler.checkpoints.statistics import CheckpointStatsTracker
from flinkray.scheduler.checkpoints.stop_with_savepoint import StopWithSavepoint
from flinkray.scheduler.checkpoints.trigger_decisions import (
    FIRST_DELAY,
    NEXT_DELAY,
    CheckpointRequest,
    CheckpointRequestDecider,
    FinalCheckpoints,
    PeriodicTrigger,
    TooEarly,
)
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.reports.spans import SpanBook
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.transition import StartTimer

Actions = list[CheckpointStep]
Reason = CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class _Preparation:
    """A checkpoint that waits for its id and directory."""

    number: int
    request: CheckpointRequest
    plan: CheckpointPlan
    begun_at: float


class CheckpointCoordinator:
    """Decides when a job takes checkpoints, when they are complete, and which are kept and
    restored. Takes events and returns actions, in the order in which they must be carried out.
    ``now`` is in monotonic seconds.  No event raises an error: an event that is late, repeated,
    unknown or from an earlier attempt changes nothing, except that its state is discarded (CP-05).

    One checkpoint is *triggered* at a time: it gets its id, then the operator coordinators (with
    the master hooks) and the tasks are asked, in this order.  One checkpoint is *stored* at a time,
    in the order of full acknowledgement, and cannot be aborted: it may be durable already, and then
    a recovering JobMaster uses it.  So tasks are restored only when it is stored or has failed.
    """

    def __init__(
        self,
        job_id: JobID,
        configuration: CheckpointConfiguration,
        topology: Callable[[], CheckpointedTopology],
        *,
        coordinators: tuple[str, ...] = (),
        epoch_offset: float = 0.0,
        random: Callable[[], float] = lambda: 0.5,
        spans: SpanBook | None = None,
        allow_non_restored_state: bool = False,
    ) -> None:
        """Make the coordinator of a job's checkpoints.

        *topology* returns the current execution graph. *coordinators*: ids of the operators that
        have a coordinator. *epoch_offset*: wall clock minus monotonic clock, in seconds, for the
        timestamps that users see. *random* returns numbers in [0, 1), which spread the first
        periodic checkpoints of different jobs. *spans* receives a span for each checkpoint that is
        over.
        """
        self._job_id = job_id
        self._configuration = configuration
        self._topology = topology
        self._coordinators = coordinators
        self._epoch_offset = epoch_offset
        self._decider = CheckpointRequestDecider(configuration.max_concurrent)
        self._periodic = PeriodicTrigger(configuration, random)
        self._final = FinalCheckpoints()
        self._failures = CheckpointFailureManager(configuration.tolerated)
        self._kept = KeptCheckpoints(configuration.max_retained)
        self._aborted = AbortedCheckpoints()
        self._earlier = EarlierCheckpoints(self._kept, self._aborted, coordinators)
        self._stop = StopWithSavepoint(job_id)
        self._restores = Restores(
            job_id,
            coordinators,
            self._stop,
            allow_non_restored_state=allow_non_restored_state,
        )
        self._statistics = CheckpointStatsTracker(spans)
        self._requests = 0
        self._numbers = 0
        """Number of the latest attempt to take a checkpoint."""
        self._preparing: _Preparation | None = None
        self._given_up: set[int] = set()
        """Numbers of attempts that failed during the preparation, and may still get an id."""
        self._triggering: PendingCheckpoint | None = None
        """The checkpoint that has an id but whose tasks are not triggered yet; None if none."""
        self._pending: dict[int, PendingCheckpoint] = {}
        self._to_store: deque[PendingCheckpoint] = deque()
        self._storing: PendingCheckpoint | None = None
        self._end: JobStatus | None = None

    # --- questions --------------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """Whether the job is being stopped with a savepoint."""
        return self._stop.is_under_way

    @property
    def requested_under_way(self) -> frozenset[int]:
        """Numbers (not checkpoint ids) of the checkpoints and savepoints in progress that users
        asked for. If these were aborted now, the users would get an error."""
        begun: list[_Preparation | PendingCheckpoint] = [*self._pending.values()]
        if self._preparing is not None:
            begun.append(self._preparing)
        return frozenset(each.number for each in begun if each.request.request_id is not None)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The checkpoint that a restore would use; None if there is none."""
        return self._kept.latest

    @property
    def _latest_id(self) -> int:
        return 0 if self.latest is None else self.latest.checkpoint_id

    @property
    def retained(self) -> tuple[CompletedCheckpoint, ...]:
        """The retained checkpoints, in ascending order of their ids."""
        return self._kept.retained

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """Ids of the checkpoints in progress."""
        return tuple(self._pending)

    @property
    def is_storing(self) -> bool:
        """Whether a checkpoint's metadata is being stored, so that it is not known whether it is
        durable."""
        return self._storing is not None

    @property
    def restores(self) -> int:
        """How often the operators' coordinators were restored."""
        return self._restores.of_coordinators

    def overview(self) -> CheckpointsOverview:
        """Return the numbers of checkpoints, and statistics of the newest ones, for users."""
        return self._statistics.overview(list(self._pending.values()))

    # --- the job ----------------------------------------------------------------------------------

    def job_status_changed(self, status: JobStatus, now: float) -> Actions:
        """Start periodic checkpoints if *status* is RUNNING, otherwise stop them. With a terminal
        status, shut down."""
        if status.is_terminal:
            return self.shutdown(status, now)
        if status is JobStatus.RUNNING:
            return self.start_scheduler(now)
        return self.stop_scheduler(now)

    def start_scheduler(self, now: float) -> Actions:
        """Start periodic checkpoints, if they are configured. A second call changes nothing."""
        if self._end is not None:
            return []
        delay = self._periodic.start()
        return [] if delay is None else [self._trigger_timer(delay)]

    def stop_scheduler(self, now: float) -> Actions:
        """Stop periodic checkpoints, refuse waiting requests, and abort the checkpoints in
        progress. Later requests of users are still served (CP-11)."""
        self._periodic.stop()
        return self._abort_all(Reason.CHECKPOINT_COORDINATOR_SUSPEND, "", now)

    def shutdown(self, status: JobStatus, now: float) -> Actions:
        """Abort checkpoints in progress, and discard those complete checkpoints that are not to be
        kept when the job ends with *status*, because the job is over for this JobMaster (CP-33)."""
        if self._end is not None:
            return []
        self._end = status
        self._periodic.stop()
        actions = self._abort_all(Reason.CHECKPOINT_COORDINATOR_SHUTDOWN, "", now)
        actions += self._stop.job_ended(status)
        actions += map(DiscardDirectory, self._aborted.job_ended())
        actions += self._discarded(self._kept.job_ended(status, self._pending))
        if self._storing is None:
            actions.append(CloseCheckpointStores(status))
        return actions

    # --- requests ---------------------------------------------------------------------------------

    def request(
        self,
        request_id: int,
        properties: CheckpointProperties | None,
        now: float,
        directory: str | None = None,
    ) -> Actions:
        """Take a savepoint that a user requests, or a checkpoint if *properties* is None; the
        request waits if it cannot begin now. *directory* is the target directory of a savepoint. A
        SnapshotFinished with *request_id* answers the request."""
        if properties is None:
            properties = checkpoint_of(self._configuration)
        return self._request(properties, now, request_id, directory)

    def timer(self, event: CheckpointTimerOver, now: float) -> Actions:
        """Do the work that is due because a timer has fired, depending on the event's purpose:
        abort a checkpoint that has taken too long, take a final checkpoint, or take the next
        periodic checkpoint."""
        if event.purpose is CheckpointTimerPurpose.EXPIRY:
            return self._expire(event.number, now)
        if event.purpose is CheckpointTimerPurpose.FINAL:
            return self._final_due(event.number, now)
        delay = self._periodic.fired(event.number)
        if delay is None:
            return []
        actions: Actions = [self._trigger_timer(delay)]
        if self._periodic.are_missing and (self._preparing or self._triggering):
            return actions
        return actions + self._request(checkpoint_of(self._configuration), now)

    def awaited(self, message: AwaitCheckpoint) -> Actions:
        """Add a task whose input has ended and which ends only after another checkpoint. A timer is
        started that takes this checkpoint soon, so that the task need not wait for the next
        periodic one."""
        if self._end is None and self._final.add(message.attempt_id, message.after):
            return [self._final_timer(FIRST_DELAY)]
        return []

    def _final_timer(self, delay: float) -> StartTimer:
        event = CheckpointTimerOver(CheckpointTimerPurpose.FINAL, self._final.number)
        return StartTimer(event, delay)

    def _final_due(self, number: int, now: float) -> Actions:
        if self._end is not None or not self._final.fired(number):
            return []
        actions: Actions = [self._final_timer(NEXT_DELAY)]
        if self._preparing is None and self._final.are_missing(self._pending):
            actions += self._request(checkpoint_of(self._configuration), now)
        return actions

    def _catch_up(self, now: float) -> Actions:
        delay = self._periodic.catch_up(now)
        return [] if delay is None else [self._trigger_timer(delay)]

    def _trigger_timer(self, delay: float) -> StartTimer:
        event = CheckpointTimerOver(CheckpointTimerPurpose.TRIGGER, self._periodic.number)
        return StartTimer(event, delay)

    def _request(
        self,
        properties: CheckpointProperties,
        now: float,
        request_id: int | None = None,
        directory: str | None = None,
    ) -> Actions:
        self._requests += 1
        request = CheckpointRequest(self._requests, properties, request_id, directory)
        if self._end is not None:
            return self._refuse(request, Reason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        dropped = self._decider.add(request)
        actions: Actions = []
        if dropped is not None:
            actions = self._refuse(dropped, Reason.TOO_MANY_CHECKPOINT_REQUESTS)
        return actions + self._begin_next(now)

    def _begin_next(self, now: float) -> Actions:
        """Begin the waiting requests that can begin now. Refuse a periodic request that comes
        before the pause is over, and a request that cannot be fulfilled, for example because a task
        does not run."""
        actions: Actions = []
        while self._may_begin:
            chosen = self._decider.next(
                number_of_pending=len(self._pending),
                is_pause_over=self._configuration.interval is None
                or self._periodic.remaining_pause(now) <= 0.0,
            )
            if chosen is None:
                break
            if isinstance(chosen, TooEarly):
                actions += self._refuse(chosen.request, Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)
                actions.append(self._trigger_timer(self._periodic.put_off(now)))
                continue
            actions += self._begin(chosen, now)
        return actions

    @property
    def _may_begin(self) -> bool:
        return (
            self._preparing is None
            and self._triggering is None
            and not self._stop.is_under_way
            and self._end is None
        )

    def _begin(self, request: CheckpointRequest, now: float) -> Actions:
        if self._restores.is_awaited:
            return self._refuse(request, Reason.JOB_FAILOVER_REGION)
        topology = self._topology()
        try:
            if request.properties.is_savepoint:
                check_all_is_held(topology)
                check_queries_are_held(topology)
            plan = calculate_plan(
                topology, allows_finished=self._configuration.allows_finished_tasks
            )
        except TasksMissingError as missing:
            return self._refuse(request, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, str(missing))
        self._numbers += 1
        self._preparing = _Preparation(self._numbers, request, plan, now)
        if request.properties.is_synchronous:
            self._stop.begin()
        expiry = CheckpointTimerOver(CheckpointTimerPurpose.EXPIRY, self._numbers)
        return [
            PrepareCheckpoint(self._numbers, request.properties, request.directory),
            StartTimer(expiry, self._configuration.timeout, is_deadline=True),
        ]

    def _refuse(
        self,
        request: CheckpointRequest,
        reason: Reason,
        cause: str = "",
        checkpoint_id: int | None = None,
    ) -> Actions:
        if request.request_id is None:
            return []
        error = CheckpointError(self._job_id, reason, checkpoint_id, cause)
        return [SnapshotFinished(request.request_id, None, checkpoint_id, error)]

    # --- triggering -------------------------------------------------------------------------------

    def prepared(self, number: int, checkpoint_id: int, directory: str, now: float) -> Actions:
        """Begin checkpoint *number*, which has got its id and directory: ask the coordinators for
        snapshots, or the tasks if there are no coordinators. If the checkpoint was given up in the
        meantime, its directory is deleted."""
        preparing = self._preparing
        if preparing is None or preparing.number != number:
            is_late = number in self._given_up
            self._given_up.discard(number)
            return [DiscardDirectory(directory)] if is_late else []
        if checkpoint_id <= self._earlier.last_id:
            # The directory may belong to another checkpoint.
            cause = f"the counter gave the id {checkpoint_id} after {self._earlier.last_id}"
            return self.preparation_failed(number, cause, now)
        self._preparing = None
        begun_at = round((preparing.begun_at + self._epoch_offset) * 1000)
        timestamp = self._earlier.begin_own(checkpoint_id, begun_at)
        pending = PendingCheckpoint(
            self._job_id,
            checkpoint_id,
            preparing.request,
            preparing.plan,
            number=number,
            begun_at=preparing.begun_at,
            timestamp=timestamp,
            directory=directory,
            coordinators=self._coordinators,
        )
        self._pending[checkpoint_id] = self._triggering = pending
        if self._coordinators:
            return [SnapshotCoordinators(checkpoint_id, timestamp, self._coordinators, directory)]
        return self._trigger_tasks(pending, now)

    def preparation_failed(self, number: int, cause: str, now: float) -> Actions:
        """Fail checkpoint *number*, because it got no id or no directory."""
        self._given_up.discard(number)
        if self._preparing is None or self._preparing.number != number:
            return []
        actions = self._end_preparation(Reason.IO_EXCEPTION, cause)
        return actions + self._begin_next(now)

    def _give_up_preparation(self, reason: Reason, cause: str) -> Actions:
        """Fail the checkpoint that is being prepared. If its id and directory arrive later, they
        are discarded."""
        if self._preparing is not None:
            self._given_up.add(self._preparing.number)
        return self._end_preparation(reason, cause)

    def _end_preparation(self, reason: Reason, cause: str) -> Actions:
        preparing, self._preparing = self._preparing, None
        if preparing is None:
            return []
        request = preparing.request
        if request.properties.is_synchronous:
            self._stop.over()
        self._statistics.failed_without_id()
        return [
            *self._refuse(request, reason, cause),
            *self._fail_job(request.properties, reason, None, cause, is_triggered=False),
        ]

    def coordinator_acknowledged(
        self,
        checkpoint_id: int,
        operator_id: str,
        state: StateLocation | None,
        now: float,
        master_states: tuple[MasterState, ...] = (),
    ) -> Actions:
        """Add a coordinator's snapshot to the checkpoint. After the last coordinator, the tasks are
        asked. *state* is None if the coordinator has no state. *master_states*: states of master
        hooks that came with the snapshot."""
        pending = self._pending.get(checkpoint_id)
        answer = Acknowledgement.OVER
        if pending is not None:
            answer = pending.acknowledge_coordinator(operator_id, state, master_states)
        if pending is None or answer is not Acknowledgement.SUCCESS:
            is_duplicate = answer is Acknowledgement.DUPLICATE
            is_kept = is_duplicate or self._earlier.may_be_complete(checkpoint_id)
            return [] if is_kept or state is None else self._kept.discard_state((state,))
        return self._trigger_tasks(pending, now) if pending.are_coordinators_acknowledged else []

    def coordinator_declined(
        self,
        checkpoint_id: int,
        operator_id: str | None,
        cause: str,
        now: float,
        *,
        is_lost: bool = False,
    ) -> Actions:
        """Abort the checkpoint, because a coordinator cannot take its snapshot, or a master hook
        failed (CP-31). *operator_id*: None if a master hook failed, which *cause* names. *is_lost*:
        the coordinator no longer exists."""
        pending = self._triggering
        if pending is None or pending.checkpoint_id != checkpoint_id:
            return []
        if operator_id is not None:
            cause = f"the coordinator of {pending.plan.operator(operator_id)}: {cause}"
        if not is_lost:
            return self._abort_and_go_on(pending, Reason.TRIGGER_CHECKPOINT_FAILURE, cause, now)
        actions = self._abort_and_go_on(pending, Reason.COORDINATOR_LOST, cause, now)
        return actions + self._catch_up(now)

    def _trigger_tasks(self, pending: PendingCheckpoint, now: float) -> Actions:
        self._triggering = None
        pending.phase = PendingPhase.TASKS
        properties = pending.properties
        configuration = self._configuration
        is_incremental = configuration.is_incremental and not self._restores.must_be_whole
        # savepoints stay aligned, so that they can be restored with another parallelism
        may_overtake = configuration.is_unaligned and not properties.is_savepoint
        timeout = configuration.alignment_timeout if may_overtake else 0.0
        order = TriggerCheckpoint(
            pending.checkpoint_id,
            pending.timestamp,
            properties,
            pending.directory,
            self._latest_id,
            properties.is_savepoint or not is_incremental,
            is_unaligned=may_overtake and not timeout,
            alignment_timeout=timeout or None,
        )
        actions: Actions = [*task_orders(self._topology(), pending.plan.to_trigger, order)]
        delay = self._periodic.triggered()
        if delay is not None:
            actions.append(self._trigger_timer(delay))
        return actions + self._begin_next(now)

    # --- answers of tasks -------------------------------------------------------------------------

    def acknowledged(self, message: AcknowledgeCheckpoint, now: float) -> Actions:
        """Add the state that a task has written to the checkpoint. After the last acknowledgement,
        the checkpoint's metadata is stored."""
        if message.job_id != self._job_id:
            return []
        pending = self._pending.get(message.checkpoint_id)
        if pending is None:
            return self._late(message)
        answer = pending.acknowledge_task(message.attempt_id, message.state)
        if answer is Acknowledgement.DUPLICATE:
            return []
        if answer is not Acknowledgement.SUCCESS:
            return self._kept.discard_state(_locations(message.state))
        if message.state is not None:
            operator = pending.unknown_operator(message.attempt_id, message.state)
            if operator is not None:
                task = pending.plan.task(message.attempt_id)
                text = f"{task} has state of an operator that is not its: {operator}"
                return self._abort_and_go_on(pending, Reason.CHECKPOINT_DECLINED, text, now)
        if not pending.is_fully_acknowledged:
            return []
        lost = pending.lost_by_finished_tasks()
        if lost is not None:
            reason = Reason.CHECKPOINT_DECLINED_TASK_CLOSING
            return self._abort_and_go_on(pending, reason, lost, now)
        self._to_store.append(pending)
        return self._store_next()

    def _late(self, message: AcknowledgeCheckpoint) -> Actions:
        """Discard the state in a late acknowledgement: the checkpoint is over, or was not begun by
        this JobMaster. State of a complete checkpoint stays. So does state of a savepoint that this
        JobMaster did not begin: an earlier JobMaster may have completed it, and it belongs to its
        user."""
        checkpoint_id = message.checkpoint_id
        actions: Actions = []
        if not (message.is_savepoint and self._earlier.may_be_complete(checkpoint_id)):
            actions = self._kept.discard_late_state(checkpoint_id, _locations(message.state))
        directories = self._aborted.answered(checkpoint_id, message.attempt_id)
        return actions + list(map(DiscardDirectory, directories))

    def declined(self, message: DeclineCheckpoint, now: float) -> Actions:
        """Abort a checkpoint that a task has declined."""
        if message.job_id != self._job_id:
            return []
        checkpoint_id, attempt_id = message.checkpoint_id, message.attempt_id
        actions: Actions = []
        pending = self._pending.get(checkpoint_id)
        if (
            pending is not None
            and pending.phase is not PendingPhase.STORING
            and attempt_id in pending.plan.running
        ):
            cause = f"{pending.plan.task(attempt_id)}: {message.text or message.reason.value}"
            actions += self._abort(pending, message.reason, cause, now)
        if not message.may_write:
            directories = self._aborted.answered(checkpoint_id, attempt_id)
            actions += map(DiscardDirectory, directories)
        return actions + self._begin_next(now)

    def tasks_ended(
        self, attempts: Iterable[ExecutionAttemptID], *, is_finished: bool, now: float
    ) -> Actions:
        """Abort the checkpoints that still need an answer of these task attempts, which have ended.
        *is_finished*: the attempts have finished; otherwise they have failed or were canceled."""
        attempts = frozenset(attempts)
        self._final.ended(attempts)
        reason = Reason.CHECKPOINT_DECLINED_TASK_CLOSING if is_finished else Reason.TASK_FAILURE
        actions: Actions = []
        if self._preparing is not None:
            gone = next((a for a in self._preparing.plan.running if a in attempts), None)
            if gone is not None:
                actions += self._give_up_preparation(reason, self._preparing.plan.task(gone))
        for pending in tuple(self._pending.values()):
            missing = next((a for a in pending.awaited_tasks() if a in attempts), None)
            if missing is not None:
                actions += self._abort(pending, reason, pending.plan.task(missing), now)
        actions += map(DiscardDirectory, self._aborted.ended(attempts))
        return actions + self._begin_next(now)

    # --- completion -------------------------------------------------------------------------------

    def _store_next(self) -> Actions:
        if self._storing is not None or not self._to_store:
            return []
        pending = self._storing = self._to_store.popleft()
        return [StoreCheckpoint(pending.finalize(), pending.properties, pending.directory)]

    def checkpoint_stored(self, stored: StoreCheckpoint, path: str, now: float) -> Actions:
        """Complete a checkpoint whose metadata is stored at *path*, and answer the user who asked
        for it. If the job recovers from the checkpoint, tell the tasks to commit, and delete the
        checkpoints that it replaces."""
        pending = self._take_stored(stored)
        if pending is None:
            return []
        checkpoint = CompletedCheckpoint(stored.metadata, pending.properties, path)
        checkpoint_id = pending.checkpoint_id
        self._statistics.completed(pending, checkpoint, self._kept, now)
        actions: Actions = []
        if pending.request.request_id is not None:
            answer = SnapshotFinished(
                pending.request.request_id,
                stored.directory,
                checkpoint_id,
                without_uid=operators_without_uid(stored.metadata),
            )
            if pending.properties.is_synchronous:
                self._stop.completed(answer)
                actions += self._restores.not_stopped()
            else:
                actions.append(answer)
        if pending.properties.is_savepoint:
            self._kept.add_savepoint(checkpoint_id)
        if self._end is not None:
            actions += self._stop.job_ended(self._end)
            actions += self._discarded(self._kept.add_after_the_end(checkpoint, self._end))
            return [*actions, CloseCheckpointStores(self._end)]
        self._periodic.checkpoint_over(now)
        self._failures.completed(checkpoint_id)
        if pending.properties.is_recovered_from:
            actions += self._add_completed(pending, checkpoint, now)
        actions += self._kept.pending_over(checkpoint_id)
        actions += self._store_next()
        return [*actions, *self._ready_to_restore(), *self._begin_next(now)]

    def _add_completed(
        self, pending: PendingCheckpoint, checkpoint: CompletedCheckpoint, now: float
    ) -> Actions:
        checkpoint_id = checkpoint.checkpoint_id
        subsumed = self._kept.add(checkpoint)
        self._final.completed(checkpoint_id)
        self._restores.checkpoint_completed()
        actions: Actions = []
        for earlier in tuple(self._pending.values()):
            if earlier.checkpoint_id < checkpoint_id and not earlier.properties.is_savepoint:
                actions += self._abort(earlier, Reason.CHECKPOINT_SUBSUMED, "", now)
        actions += outcome_orders(
            self._topology(),
            pending.plan.running,
            pending.coordinators,
            CheckpointCompleted(checkpoint_id),
        )
        return actions + self._discarded(self._kept.let_go(subsumed, self._pending))

    def _discarded(self, actions: Actions) -> Actions:
        for action in actions:
            if isinstance(action, DiscardCheckpoint):
                self._statistics.discarded(action.checkpoint.checkpoint_id)
        return actions

    def checkpoint_not_stored(self, stored: StoreCheckpoint, cause: str, now: float) -> Actions:
        """Abort a checkpoint whose metadata could not be stored, so that no JobMaster will ever
        recover it."""
        pending = self._take_stored(stored)
        if pending is None:
            return []
        self._pending[pending.checkpoint_id] = pending
        actions = self._abort(pending, Reason.FINALIZE_CHECKPOINT_FAILURE, cause, now)
        if self._end is not None:
            # no task and no coordinator of sources is left that needs to know
            left = [a for a in actions if not isinstance(a, OrderCheckpoint | OrderCoordinators)]
            return [*left, CloseCheckpointStores(self._end)]
        actions += self._store_next()
        return [*actions, *self._ready_to_restore(), *self._begin_next(now)]

    def _take_stored(self, stored: StoreCheckpoint) -> PendingCheckpoint | None:
        pending = self._storing
        if pending is None or pending.checkpoint_id != stored.metadata.checkpoint_id:
            return None
        self._storing = None
        del self._pending[pending.checkpoint_id]
        return pending

    # --- the end of checkpoints -------------------------------------------------------------------

    def _expire(self, number: int, now: float) -> Actions:
        if self._preparing is not None and self._preparing.number == number:
            return self._give_up_preparation(Reason.CHECKPOINT_EXPIRED, "") + self._begin_next(now)
        pending = next((p for p in self._pending.values() if p.number == number), None)
        if pending is None or pending.phase is PendingPhase.STORING:
            return []
        missing = pending.awaited_tasks()
        cause = f"{len(missing)} tasks have not acknowledged it" if missing else ""
        return self._abort_and_go_on(pending, Reason.CHECKPOINT_EXPIRED, cause, now)

    def _abort_all(self, reason: Reason, cause: str, now: float) -> Actions:
        """Refuse all waiting requests, and abort all checkpoints in progress except the one that is
        being stored, which may be durable already."""
        actions = self._give_up_preparation(reason, cause)
        for pending in tuple(self._pending.values()):
            if pending.phase is not PendingPhase.STORING:
                actions += self._abort(pending, reason, cause, now)
        for request in self._decider.drain():
            actions += self._refuse(request, reason, cause)
        return actions

    def _abort_and_go_on(
        self, pending: PendingCheckpoint, reason: Reason, cause: str, now: float
    ) -> Actions:
        return self._abort(pending, reason, cause, now) + self._begin_next(now)

    def _abort(self, pending: PendingCheckpoint, reason: Reason, cause: str, now: float) -> Actions:
        checkpoint_id = pending.checkpoint_id
        properties = pending.properties
        is_triggered = pending.is_triggered
        awaited = pending.awaited_tasks() if is_triggered else ()
        if self._triggering is pending:
            self._triggering = None
        if pending in self._to_store:
            self._to_store.remove(pending)
        if properties.is_synchronous:
            self._stop.over()
        del self._pending[checkpoint_id]
        received = pending.abort()
        actions: Actions = [
            *outcome_orders(
                self._topology(),
                pending.plan.running if is_triggered else (),
                pending.coordinators,
                CheckpointAborted(checkpoint_id, self._latest_id),
            ),
            *self._kept.discard_state(received),
            *map(DiscardDirectory, self._aborted.add(checkpoint_id, pending.directory, awaited)),
            *self._kept.pending_over(checkpoint_id),
            *self._refuse(pending.request, reason, cause, checkpoint_id),
        ]
        error = CheckpointError(self._job_id, reason, checkpoint_id, cause)
        self._statistics.failed(pending, error.text, now)
        return actions + self._fail_job(
            properties, reason, checkpoint_id, cause, is_triggered=is_triggered
        )

    def _fail_job(
        self,
        properties: CheckpointProperties,
        reason: Reason,
        checkpoint_id: int | None,
        cause: str,
        *,
        is_triggered: bool,
    ) -> Actions:
        text = self._failures.failed(properties, reason, checkpoint_id, is_triggered=is_triggered)
        if text is None or self._end is not None:
            return []
        error = CheckpointError(self._job_id, reason, checkpoint_id, cause)
        return [CheckpointsFailJob(error, f"{text}: {error.text}")]

    # --- take-over and restore --------------------------------------------------------------------

    def recovered(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Load the checkpoints that an earlier JobMaster left (CP-28). Called before any event."""
        self._earlier.recovered(checkpoints)

    def take_over(
        self,
        restores: int,
        begun: Mapping[int, str],
        running: Sequence[ExecutionAttemptID],
        now: float,
    ) -> Actions:
        """Continue the checkpoints of an earlier JobMaster whose tasks keep running. Called after
        ``recovered``, in place of the first ``restore``. The tasks are told again that the last
        complete checkpoint is complete, and that checkpoints in progress are aborted, because the
        earlier JobMaster may not have told them. The next checkpoint begins at once.

        Args:
            restores: how often the operators' coordinators have been restored.
            begun: checkpoints after the last complete one that have an id: id -> directory.
            running: the attempts that keep running.
        """
        latest = self.latest
        self._restores.taken_over(restores, latest)
        if latest is not None:
            begun_at = latest.metadata.timestamp / 1000 - self._epoch_offset
            self._periodic.checkpoint_over(min(begun_at, now))
        actions = self._earlier.take_over(begun, running, self._topology())
        return actions + self._catch_up(now)

    def start_from_savepoint(
        self, savepoint: CompletedCheckpoint, vertices: Sequence[RestoredVertex]
    ) -> Actions:
        """Start the job from a savepoint, unless the job has checkpoints of its own (JM-09).
        Raises StateRestoreError if the job does not fit the savepoint."""
        if self.latest is not None:
            return []
        self._restores.check(savepoint, vertices)
        self.recovered((savepoint,))
        return [AddRestoredSavepoint(savepoint)]

    def prepare_restore(self, cause: str, now: float, *, is_global: bool) -> Actions:
        """Prepare a restart of tasks: abort the incomplete checkpoints. When ReadyToRestore is
        returned, now or by a later event, call ``restore``.

        *is_global*: all tasks restart.  All tasks must restart if the savepoint that the job was to
        be stopped with is complete, because the tasks that ended with the savepoint would not run
        again otherwise.
        """
        actions = self._abort_all(Reason.JOB_FAILOVER_REGION, cause, now)
        not_stopped = self._restores.prepare(cause, is_global=is_global)
        return [*actions, *not_stopped, *self._ready_to_restore()]

    def _ready_to_restore(self) -> Actions:
        is_ready = self._restores.is_awaited and self._storing is None
        return [ReadyToRestore()] if is_ready else []

    def restore(
        self,
        vertices: Sequence[RestoredVertex],
        tasks: Tasks,
        *,
        is_global: bool,
        is_required: bool = False,
    ) -> Restored:
        """Return the state with which new attempts of the subtasks *tasks* start. *is_global*: all
        tasks restart, and coordinators and master hooks are restored, too; otherwise coordinators
        are told which of their subtasks are reset. *is_required*: a checkpoint must exist (CP-34).

        Raises:
            StateRestoreError: the job does not fit the checkpoint, or a required checkpoint is
                missing.
            IllegalTransitionError: a checkpoint that began before may still become complete.
        """
        if self._storing is not None:
            raise IllegalTransitionError(
                f"job {self._job_id} cannot be restored: it is not known yet whether checkpoint "
                f"{self._storing.checkpoint_id} is stored"
            )
        restored = self._restores.next(
            self.latest, vertices, tasks, is_global=is_global, is_required=is_required
        )
        if restored.checkpoint_id is not None:
            self._statistics.restored(restored.checkpoint_id)
        return restored


def _locations(state: TaskState | None) -> list[StateLocation]:
    return [] if state is None else locations_of(state)
