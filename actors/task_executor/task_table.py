"""The tasks that run in a TaskExecutor, and the reports about them to their JobMasters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.task_reports import MOST_REPORTS, TaskReport, is_end, shortened
from flinkray.actors.shared.notifications import BatchedSender
from flinkray.actors.task_executor.job_connections import JobLeaderService
from flinkray.actors.task_executor.started_tasks import (
    EndedTask,
    StartedTask,
    reported_graphs,
)
from flinkray.actors.task_executor.tasks_of_kind import AcceptedTask, TasksOfKind
from flinkray.core.errors import (
    FlinkRayError,
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    FencingToken,
    JobID,
)
from flinkray.core.kv_states import KvStateRegistration
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    AwaitCheckpoint,
    CheckpointAborted,
    CheckpointOrder,
    TriggerCheckpoint,
)
from flinkray.scheduler.shared.taking_over import ReportedGraph
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.scheduler.task_slots.task_slot_table import SlotTableAction, TaskSlotTable

log = logging.getLogger(__name__)

_REPORT_RETRY_DELAY = 0.1
"""Seconds until reports that the JobMaster did not take are repeated."""


@dataclass(slots=True)
class TaskEntry:
    """A task that runs here: its job, the component that runs it, and its deployment."""

    job_id: JobID
    runs_in: TasksOfKind
    started: StartedTask


@dataclass(slots=True, eq=False)
class _Job:
    """A job's tasks that have ended here, and the sender of reports to the job's JobMaster."""

    graph_id: ExecutionGraphID | None = None
    """Execution graph of the attempt that was started last."""
    ended: dict[ExecutionVertexID, EndedTask] = field(default_factory=dict)
    """Ended tasks of that graph, by subtask. Only the latest attempt here counts."""
    leader: FencingToken | None = None
    """The JobMaster that the last full report (:meth:`TaskTable.report_for`) was made for."""
    sender: BatchedSender[TaskReport] | None = None
    """Sends reports to *leader*. Its messages wait until *leader* has answered the full report."""
    untold: dict[ExecutionAttemptID, None] = field(default_factory=dict)
    """Ended attempts whose end *leader* has not received yet."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when waiting reports can be sent, or are dropped because there is another leader."""


class TaskTable:
    """All running tasks of a TaskExecutor, of all kinds. Lives on its main thread.

    Each task is also in the slot table. Its reports are sent to the job's JobMaster in order. When
    the TaskExecutor registers at the next JobMaster, it sends a full report, which includes what
    the lost JobMaster did not receive. Later reports follow once the full report was answered.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        slots: TaskSlotTable,
        job_leaders: JobLeaderService,
        carry_out: Callable[[list[SlotTableAction]], None],
    ) -> None:
        self._endpoint = endpoint
        self._slots = slots
        self._job_leaders = job_leaders
        self._carry_out = carry_out
        self._tasks: dict[ExecutionAttemptID, TaskEntry] = {}
        self._jobs: dict[JobID, _Job] = {}

    def add(self, job_id: JobID, task: StartedTask, runs_in: TasksOfKind) -> AcceptedTask:
        """Add a task that will run in the slot of its deployment, and return the task for its
        runner.

        Raises:
            SlotAllocationError: the task cannot run there.
        """
        attempt_id, allocation_id = task.attempt_id, task.deployment.allocation_id
        self._slots.add_task(attempt_id, job_id, allocation_id)
        self._tasks[attempt_id] = TaskEntry(job_id, runs_in, task)
        job = self._jobs.setdefault(job_id, _Job())
        if job.graph_id != attempt_id.graph_id:
            job.graph_id = attempt_id.graph_id
            job.ended.clear()
        job.ended.pop(attempt_id.vertex, None)
        return task.accepted(self._slots.slot_index(allocation_id))

    def get(self, attempt_id: ExecutionAttemptID) -> TaskEntry | None:
        """Return the entry of an attempt. None if the attempt does not run here."""
        return self._tasks.get(attempt_id)

    def running(self, job_id: JobID) -> list[ExecutionAttemptID]:
        """Return the attempts of a job that run in this TaskExecutor."""
        return [attempt for attempt, task in self._tasks.items() if task.job_id == job_id]

    def of_job(self, job_id: JobID) -> tuple[ExecutionAttemptID, ...]:
        """Return the job's attempts for a heartbeat to its JobMaster: those that run, and those
        whose end it has not received yet, because it would take missing ones for lost. Attempts
        that the JobMaster has not taken over are left out."""
        held = self._slots.held_tasks_of(job_id)
        running = [attempt_id for attempt_id in self.running(job_id) if attempt_id not in held]
        job = self._jobs.get(job_id)
        untold = () if job is None else job.untold
        return (*running, *(attempt_id for attempt_id in untold if attempt_id not in running))

    # --- notes about tasks ----------------------------------------------------------------------

    def ordered(self, order: CheckpointOrder, attempts: Iterable[ExecutionAttemptID]) -> None:
        """Store for each attempt the checkpoint after which it will stop, if *order* begins such a
        checkpoint (stop-with-savepoint). An order that aborts this checkpoint removes the entry.
        """
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is None:
                continue
            match order:
                case TriggerCheckpoint() if order.properties.is_synchronous:
                    task.started.stops_with = order.checkpoint_id
                case CheckpointAborted(checkpoint_id) if task.started.stops_with == checkpoint_id:
                    task.started.stops_with = None

    def kv_states_registered(self, registrations: Iterable[KvStateRegistration]) -> None:
        """Store the locations of queryable states for reports.
        They are valid while their attempts run.
        """
        for registration in registrations:
            task = self._tasks.get(registration.attempt_id)
            if task is not None:
                task.started.kv_states[registration.kv_state_id] = registration

    def kv_states_unregistered(self, registrations: Iterable[KvStateRegistration]) -> None:
        """Remove queryable states, which cannot be queried any more."""
        for registration in registrations:
            task = self._tasks.get(registration.attempt_id)
            if task is not None:
                task.started.kv_states.pop(registration.kv_state_id, None)

    def is_new_leader(self, job_id: JobID, leader: FencingToken) -> bool:
        """Return whether the job's last full report was made for another JobMaster than *leader*.
        True if there was no full report."""
        job = self._jobs.get(job_id)
        return job is None or job.leader != leader

    def report_for(
        self, job_id: JobID, leader: FencingToken
    ) -> tuple[tuple[ReportedGraph, ...], tuple[KvStateRegistration, ...]]:
        """Return the full report (tasks by execution graph, queryable states) for the JobMaster
        *leader*, at which the TaskExecutor registers. Later reports are sent once it has answered.

        If the same JobMaster was registered before, it also gets the reports that were not sent
        yet. For a new JobMaster, answers to checkpoints of the earlier JobMaster are dropped. The
        full report also says which tasks wait for a checkpoint.
        """
        job = self._jobs.setdefault(job_id, _Job())
        started = [task.started for task in self._tasks.values() if task.job_id == job_id]
        if job.leader != leader:
            self._end_sender(job)
            job.leader = leader
            self._tell(job, ())  # later events wait in this sender
        states = tuple(state for task in started for state in task.kv_states.values())
        return reported_graphs(job.graph_id, started, job.ended.values()), states

    # --- reports to JobMasters ------------------------------------------------------------------

    def reported(self, reports: Sequence[TaskReport]) -> None:
        """Send reports to the JobMasters, in order, and remove ended tasks from the slot table."""
        by_job: dict[JobID, list[TaskReport]] = {}
        actions: list[SlotTableAction] = []
        for report in reports:
            by_job.setdefault(report.job_id, []).append(report)
            match report:
                case TaskExecutionState():
                    actions += self._state_changed(report)
                case AwaitCheckpoint(attempt_id=attempt_id) if attempt_id in self._tasks:
                    self._tasks[attempt_id].started.awaits = report
                case AcknowledgeCheckpoint(attempt_id=attempt_id) if attempt_id in self._tasks:
                    started = self._tasks[attempt_id].started
                    started.acknowledged = max(started.acknowledged, report.checkpoint_id)
        for job_id, of_job in by_job.items():
            job = self._jobs.get(job_id)
            if job is None or job.sender is None:
                if self._job_leaders.job_master(job_id) is None:
                    continue  # it is part of the report for the next JobMaster
                job = self._jobs.setdefault(job_id, _Job())
            self._tell(job, of_job)
        self._carry_out(actions)

    def _state_changed(self, report: TaskExecutionState) -> list[SlotTableAction]:
        attempt_id, state = report.attempt_id, report.state
        if not state.is_terminal:
            if attempt_id in self._tasks:
                self._tasks[attempt_id].started.state = state
            return []
        task = self._tasks.pop(attempt_id, None)
        log.info(
            "task %s (attempt %s) ended: %s %s",
            "" if task is None else task.started.name,
            attempt_id,
            state.name,
            report.failure or "",
        )
        job = self._jobs.get(report.job_id)
        if task is not None and job is not None and job.graph_id == attempt_id.graph_id:
            later = job.ended.get(attempt_id.vertex)
            if later is None or later.number < attempt_id.attempt_number:
                job.ended[attempt_id.vertex] = EndedTask(task.started, report)
        return self._slots.remove_task(attempt_id)

    def _tell(self, job: _Job, reports: Sequence[TaskReport]) -> None:
        if job.sender is None:
            job.sender = BatchedSender(
                self._endpoint, partial(self._report, job), MOST_REPORTS, shortened
            )
            job.untold = {}
        job.sender.add(reports)
        ended = [report.attempt_id for report in reports if is_end(report)]
        if ended:
            untold = job.untold
            untold.update(dict.fromkeys(ended))
            job.sender.when_sent(partial(_told, untold, ended))

    def connected(self, job_id: JobID) -> None:
        """Begin to send the waiting reports: the job's JobMaster has answered the full report."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.connected.set()

    def forget_job(self, job_id: JobID) -> None:
        """Drop the job's ended tasks and unsent reports."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            self._end_sender(job)

    def forget_other_graphs(self, job_id: JobID, graph_id: ExecutionGraphID) -> None:
        """Drop the ended tasks of the job's execution graphs other than *graph_id*."""
        job = self._jobs.get(job_id)
        if job is not None and job.graph_id != graph_id:
            job.ended.clear()

    def _end_sender(self, job: _Job) -> None:
        """Stop sending reports to the job's JobMaster. Unsent reports are dropped."""
        job.sender = None
        job.untold = {}
        job.connected.set()
        job.connected = asyncio.Event()

    async def _report(self, job: _Job, reports: tuple[TaskReport, ...]) -> None:
        """Send reports to the job's JobMaster, once it has answered the full report.
        If another JobMaster leads by then, nothing is sent: its full report contains these reports.

        Raises:
            FrameTooLargeError: the reports do not fit into one message.
        """
        job_id, connected = reports[0].job_id, job.connected
        while connected is job.connected:
            master = self._job_leaders.job_master(job_id)
            if master is None:
                connected.clear()
                await connected.wait()
            elif await self._has_told(master, reports):
                return

    async def _has_told(self, master: JobMasterGateway, reports: tuple[TaskReport, ...]) -> bool:
        try:
            await master.tasks_reported(reports)
        except (RpcTimeoutError, RecipientUnreachableError, RpcConnectionError) as error:
            # a broken connection does not prove the JobMaster's death, which would end this loop
            log.warning("%d reports of tasks are made again: %s", len(reports), error)
            await self._endpoint.rpc_service.pause(_REPORT_RETRY_DELAY)
            return False
        except FrameTooLargeError:
            raise  # the sender makes smaller messages
        except FlinkRayError as error:
            log.warning("%d reports of tasks are not taken: %s", len(reports), error)
            for report in reports:
                if not isinstance(report, TaskExecutionState) or is_end(report):
                    continue
                task = self._tasks.get(report.attempt_id)
                if task is not None:
                    cause = f"its state cannot be reported: {error}"
                    # otherwise the JobMaster would never learn of the state (TM-27)
                    task.runs_in.fail(report.attempt_id, cause)
        return True


def _told(untold: dict[ExecutionAttemptID, None], ended: Iterable[ExecutionAttemptID]) -> None:
    for attempt_id in ended:
        untold.pop(attempt_id, None)
