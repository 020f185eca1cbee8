"""What a TaskExecutor does about tasks: accepts, cancels, reports and cleans up after them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.messages import RefusedTask
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.shared.batched_sender import MOST_STATES, BatchedSender
from flinkray.actors.task_executor.job_leader_service import JobLeaderService
from flinkray.actors.task_executor.python_tasks import PythonTasks
from flinkray.actors.task_executor.running_tasks import RunningTasks
from flinkray.actors.task_executor.task_runners import RunnerTask
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
    JobID,
    JobMasterId,
    ResultPartitionID,
)
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.graph.job_graph import TASK_PROCESS_KINDS
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.tasks import (
    TaskDeployment,
    TaskDeployments,
    TaskExecutionState,
)
from flinkray.scheduler.task_slots.task_slot_table import SlotTableAction, TaskSlotTable

log = logging.getLogger(__name__)

_REPORT_RETRY_DELAY = 0.1
"""Seconds until states are reported again that the JobMaster did not take."""


class TaskExecution:
    """Lives on the main thread of its TaskExecutor.

    Spark stages' tasks are run by *spark*, Python tasks by *python*; of both the slot table knows
    and the JobMaster hears.  Calls of past JobMasters are refused.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        table: TaskSlotTable,
        spark: RunningTasks,
        python: PythonTasks,
        *,
        leaders: Callable[[], JobLeaderService],
        carry_out: Callable[[list[SlotTableAction]], None],
    ) -> None:
        self._endpoint = endpoint
        self._table = table
        self._spark = spark
        self._python = python
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
        self._python.add_parts(deployments)
        refused = []
        in_processes: list[tuple[TaskDeployment, int]] = []
        by_runners: list[RunnerTask] = []
        for task in deployments.tasks:
            attempt_id, vertex = self._python.attempt_of(deployments.graph_id, task)
            kind = vertex.invokable.kind
            if kind not in TASK_PROCESS_KINDS and not self._spark.runs(kind):
                cause = f"it is of kind {kind!r}, which this TaskExecutor does not run"
                refused.append(RefusedTask(attempt_id, cause))
                continue
            try:
                self._table.add_task(attempt_id, job_id, task.allocation_id)
            except SlotAllocationError as error:
                refused.append(RefusedTask(attempt_id, str(error), task.allocation_id))
                continue
            if kind in TASK_PROCESS_KINDS:
                in_processes.append((task, self._table.slot_index(task.allocation_id)))
            else:
                by_runners.append(
                    RunnerTask(
                        job_id, attempt_id, kind, task.allocation_id, task.coordinator_attempt
                    )
                )
        self._carry_out([])
        self._python.start(deployments, in_processes, job_master_id, blob_server)
        for runner_task in by_runners:
            self._spark.start(runner_task, job_master_id)
        return tuple(refused)

    def cancel_all(
        self, attempts: tuple[ExecutionAttemptID, ...], job_master_id: JobMasterId
    ) -> None:
        """Cancel those of these tasks that run here (EX-04)."""
        for attempt_id in attempts:
            job_id = self._python.job_of(attempt_id) or self._spark.job_of(attempt_id)
            if job_id is not None:
                self._refuse_past_leader(job_id, job_master_id)
        self.end(attempts)

    def release_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        """Those of a job of which this JobMaster is not the leader stay."""
        if self._leaders().is_led_by(job_id, job_master_id):
            self._python.results.release(job_id, partitions)

    def promote_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        """Raises TaskError when this JobMaster does not lead the job here."""
        self._refuse_past_leader(job_id, job_master_id)
        self._python.results.promote(job_id, partitions)

    async def io_metrics(
        self, job_id: JobID, job_master_id: JobMasterId
    ) -> tuple[TaskIOMetrics, ...]:
        """Of the job's stream tasks here.

        Raises:
            TaskError: it does not lead the job here.
        """
        self._refuse_past_leader(job_id, job_master_id)
        return await self._python.io_metrics(job_id)

    def master_of(self, attempt_id: ExecutionAttemptID) -> JobMasterGateway:
        """The JobMaster of a Python task's job.

        Raises:
            TaskError: the task does not run here, or its JobMaster is lost.
        """
        job_id = self._python.job_of(attempt_id)
        master = None if job_id is None else self._leaders().job_master(job_id)
        if job_id is None or master is None:
            raise TaskError(f"task {attempt_id} has no JobMaster at present")
        return master

    def _refuse_past_leader(self, job_id: JobID, job_master_id: JobMasterId) -> None:
        if not self._leaders().is_led_by(job_id, job_master_id):
            raise TaskError(f"JobMaster {job_master_id} does not lead the job here: job {job_id}")

    # --- orders of the slot table -----------------------------------------------------------------

    def end(self, attempts: Iterable[ExecutionAttemptID]) -> None:
        """Their slots are being freed."""
        attempts = tuple(attempts)
        self._python.cancel(attempts)
        for attempt_id in attempts:
            self._spark.cancel(attempt_id)

    async def clean_up(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """End what the tasks of a slot have left behind."""
        await self._spark.clean_up(allocation_id, job_id)
        await self._python.clean_up(allocation_id, job_id)

    # --- what becomes of tasks --------------------------------------------------------------------

    def of_job(self, job_id: JobID) -> tuple[ExecutionAttemptID, ...]:
        """The attempts of a job that run, and those whose end is yet to be told: a JobMaster that
        did not find them here would say that nobody knows how they ended."""
        running = self._spark.of_job(job_id) + self._python.of_job(job_id)
        untold = self._untold.get(job_id, {})
        return (*running, *(attempt_id for attempt_id in untold if attempt_id not in running))

    def states_changed(self, states: list[TaskExecutionState]) -> None:
        """Tell the JobMasters, and the slot table of those that have ended."""
        by_job: dict[JobID, list[TaskExecutionState]] = {}
        actions: list[SlotTableAction] = []
        for state in states:
            by_job.setdefault(state.job_id, []).append(state)
            if state.state.is_terminal:
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
        self._python.forget_job(job_id)

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
                if not state.state.is_terminal:  # nobody knows of it: it must not go on (TM-27)
                    self._python.fail(state.attempt_id, f"its state cannot be reported: {error}")
        return True
