"""What a TaskExecutor does about tasks: accepts, cancels, reports and cleans up after them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.messages import RefusedTask
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.shared.batched_sender import MOST_STATES, BatchedSender
from flinkray.actors.shared.deployment_parts import DeployedParts
from flinkray.actors.task_executor.job_leader_service import JobLeaderService
from flinkray.actors.task_executor.task_results import TaskResults
from flinkray.actors.task_executor.tasks_of_kind import AcceptedTask, TasksOfKind
from flinkray.core.errors import (
    FlinkRayError,
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
    SlotAllocationError,
)
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
    JobMasterId,
    ResultPartitionID,
)
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.tasks import (
    TaskDeployment,
    TaskDeployments,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
)
from flinkray.scheduler.task_slots.task_slot_table import SlotTableAction, TaskSlotTable

log = logging.getLogger(__name__)

_REPORT_RETRY_DELAY = 0.1
"""Seconds until states are reported again that the JobMaster did not take."""


@dataclass(frozen=True, slots=True)
class _Task:
    """One that runs."""

    job_id: JobID
    runs_in: TasksOfKind


class TaskExecution:
    """Lives on the main thread of its TaskExecutor.

    It is the one book of the tasks that run there, whatever runs them; the slot table knows of each
    and the JobMaster hears of each.  Calls of past JobMasters are refused.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        table: TaskSlotTable,
        kinds: Mapping[str, TasksOfKind],
        parts: DeployedParts,
        results: TaskResults,
        *,
        leaders: Callable[[], JobLeaderService],
        carry_out: Callable[[list[SlotTableAction]], None],
    ) -> None:
        """*kinds*: what runs the tasks of each kind.  *parts*: is given what deployments refer
        to."""
        self._endpoint = endpoint
        self._table = table
        self._kinds = kinds
        self._all = tuple(dict.fromkeys(kinds.values()))
        self._parts = parts
        self._results = results
        self._tasks: dict[ExecutionAttemptID, _Task] = {}
        self._leaders = leaders
        self._carry_out = carry_out
        self._reports: dict[JobID, BatchedSender[TaskExecutionState]] = {}
        self._untold: dict[JobID, dict[ExecutionAttemptID, None]] = {}
        """Attempts that have ended, of which the JobMaster has not heard yet."""

    # --- orders of a JobMaster --------------------------------------------------------------------

    def submit_all(
        self, deployments: TaskDeployments, job_master_id: JobMasterId, blob_server: str | None
    ) -> tuple[RefusedTask, ...]:
        """Run tasks, each by what runs its kind; returns those that are refused.

        Raises:
            TaskError: all are refused.
        """
        job_id = deployments.job_id
        self._refuse_past_leader(job_id, job_master_id)
        self._parts.add(deployments)
        found = [self._resolve(deployments.graph_id, task) for task in deployments.tasks]
        refused = []
        accepted: dict[TasksOfKind, list[AcceptedTask]] = {}
        for task, (attempt_id, vertex) in zip(deployments.tasks, found, strict=True):
            kind = vertex.invokable.kind
            runs_in = self._kinds.get(kind)
            if runs_in is None:
                cause = f"it is of kind {kind!r}, which this TaskExecutor does not run"
                refused.append(RefusedTask(attempt_id, cause))
                continue
            try:
                self._table.add_task(attempt_id, job_id, task.allocation_id)
            except SlotAllocationError as error:
                refused.append(RefusedTask(attempt_id, str(error), task.allocation_id))
                continue
            self._tasks[attempt_id] = _Task(job_id, runs_in)
            slot_index = self._table.slot_index(task.allocation_id)
            of_kind = accepted.setdefault(runs_in, [])
            of_kind.append(AcceptedTask(attempt_id, task, vertex, slot_index))
        self._carry_out([])
        for runs_in, tasks in accepted.items():
            runs_in.start(deployments, tasks, job_master_id, blob_server)
        return tuple(refused)

    def _resolve(
        self, graph_id: ExecutionGraphID, task: TaskDeployment
    ) -> tuple[ExecutionAttemptID, VertexInformation]:
        """Raises TaskError when something that the task refers to is not here."""
        vertex = self._parts.vertex(graph_id, task)
        self._parts.inputs(graph_id, task)
        return attempt_of(graph_id, vertex, task), vertex

    def cancel_all(
        self, attempts: tuple[ExecutionAttemptID, ...], job_master_id: JobMasterId
    ) -> None:
        """Cancel those of these tasks that run here (EX-04)."""
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None:
                self._refuse_past_leader(task.job_id, job_master_id)
        self.end(attempts)

    def release_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        """Those of a job of which this JobMaster is not the leader stay."""
        if self._leaders().is_led_by(job_id, job_master_id):
            self._results.release(job_id, partitions)

    def promote_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        """Raises TaskError when this JobMaster does not lead the job here."""
        self._refuse_past_leader(job_id, job_master_id)
        self._results.promote(job_id, partitions)

    async def io_metrics(
        self, job_id: JobID, job_master_id: JobMasterId
    ) -> tuple[TaskIOMetrics, ...]:
        """What the job's tasks here have read and written.

        Raises:
            TaskError: it does not lead the job here.
        """
        self._refuse_past_leader(job_id, job_master_id)
        known = [await of_kind.io_metrics(job_id) for of_kind in self._all]
        return tuple(one for of_kind in known for one in of_kind)

    def master_of(self, attempt_id: ExecutionAttemptID) -> JobMasterGateway:
        """The JobMaster of a task's job.

        Raises:
            TaskError: the task does not run here, or its JobMaster is lost.
        """
        task = self._tasks.get(attempt_id)
        master = None if task is None else self._leaders().job_master(task.job_id)
        if master is None:
            raise TaskError(f"task {attempt_id} has no JobMaster at present")
        return master

    def _refuse_past_leader(self, job_id: JobID, job_master_id: JobMasterId) -> None:
        if not self._leaders().is_led_by(job_id, job_master_id):
            raise TaskError(f"JobMaster {job_master_id} does not lead the job here: job {job_id}")

    # --- orders of the slot table -----------------------------------------------------------------

    def end(self, attempts: Iterable[ExecutionAttemptID]) -> None:
        """Their slots are being freed."""
        by_kind: dict[TasksOfKind, list[ExecutionAttemptID]] = {}
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None:
                by_kind.setdefault(task.runs_in, []).append(attempt_id)
        for runs_in, of_kind in by_kind.items():
            runs_in.cancel(of_kind)

    async def clean_up(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """End what the tasks of a slot have left behind."""
        for of_kind in self._all:
            await of_kind.clean_up(allocation_id, job_id)

    # --- what becomes of tasks --------------------------------------------------------------------

    def of_job(self, job_id: JobID) -> tuple[ExecutionAttemptID, ...]:
        """The attempts of a job that run, and those whose end is yet to be told: a JobMaster that
        did not find them here would say that nobody knows how they ended."""
        running = [attempt for attempt, task in self._tasks.items() if task.job_id == job_id]
        untold = self._untold.get(job_id, {})
        return (*running, *(attempt_id for attempt_id in untold if attempt_id not in running))

    def states_changed(self, states: list[TaskExecutionState]) -> None:
        """Tell the JobMasters, and the slot table of those that have ended."""
        by_job: dict[JobID, list[TaskExecutionState]] = {}
        actions: list[SlotTableAction] = []
        for state in states:
            by_job.setdefault(state.job_id, []).append(state)
            if state.state.is_terminal:
                self._tasks.pop(state.attempt_id, None)
                log.info(
                    "task %s ended: %s %s", state.attempt_id, state.state.name, state.failure or ""
                )
                actions += self._table.remove_task(state.attempt_id)
        for job_id, of_job in by_job.items():
            reports = self._reports.get(job_id)
            if reports is None:
                reports = BatchedSender(
                    self._endpoint, self._report, MOST_STATES, TaskExecutionState.shortened
                )
                self._reports[job_id] = reports
            reports.add(of_job)
            ended = [state.attempt_id for state in of_job if state.state.is_terminal]
            if ended:
                self._untold.setdefault(job_id, {}).update(dict.fromkeys(ended))
                reports.when_sent(partial(self._told, job_id, ended))
        self._carry_out(actions)

    def _told(self, job_id: JobID, ended: list[ExecutionAttemptID]) -> None:
        untold = self._untold.get(job_id)
        if untold is not None:
            for attempt_id in ended:
                untold.pop(attempt_id, None)
            if not untold:
                del self._untold[job_id]

    def forget_job(self, job_id: JobID) -> None:
        """It has nothing here any more, or not with its present JobMaster."""
        self._reports.pop(job_id, None)
        self._untold.pop(job_id, None)
        self._parts.forget(job_id)
        for of_kind in self._all:
            of_kind.forget_job(job_id)

    async def _report(self, states: tuple[TaskExecutionState, ...]) -> None:
        """Tell the JobMaster; one that is lost has given the tasks up, and its successor knows them
        by the graph in their ids, if at all.

        Raises:
            FrameTooLargeError: they do not fit into one message.
        """
        job_id = states[0].job_id
        while (master := self._leaders().job_master(job_id)) is not None:
            if await self._has_told(master, states):
                return

    async def _has_told(
        self, master: JobMasterGateway, states: tuple[TaskExecutionState, ...]
    ) -> bool:
        try:
            await master.update_task_execution_states(states)
        except (RpcTimeoutError, RecipientUnreachableError, RpcConnectionError) as error:
            # a broken connection is not yet the JobMaster's death, which ends all this
            log.warning("states of %d tasks are reported again: %s", len(states), error)
            await self._endpoint.rpc_service.pause(_REPORT_RETRY_DELAY)
            return False
        except FrameTooLargeError:
            raise  # they go in smaller messages
        except FlinkRayError as error:
            log.warning("states of %d tasks are not known: %s", len(states), error)
            for state in states:
                task = self._tasks.get(state.attempt_id)
                if task is not None and not state.state.is_terminal:
                    cause = f"its state cannot be reported: {error}"
                    task.runs_in.fail(state.attempt_id, cause)  # nobody knows of it (TM-27)
        return True
