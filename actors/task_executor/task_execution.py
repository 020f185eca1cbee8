"""Accepts and cancels tasks for a TaskExecutor, and cleans up after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flinkray.actors.gateways.messages import RefusedTask
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.gateways.task_reports import not_ready
from flinkray.actors.shared.deployment_parts import DeployedParts
from flinkray.actors.task_executor.job_connections import JobLeaderService
from flinkray.actors.task_executor.started_tasks import StartedTask
from flinkray.actors.task_executor.task_results import TaskResults
from flinkray.actors.task_executor.task_table import TaskTable
from flinkray.actors.task_executor.tasks_of_kind import AcceptedTask, AcceptedTasks, TasksOfKind
from flinkray.core.errors import SlotAllocationError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
    JobMasterId,
    ResultPartitionID,
)
from flinkray.scheduler.checkpoints.messages import CheckpointOrder, TriggerCheckpoint
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.tasks import (
    TaskDeployment,
    TaskDeployments,
    attempt_of,
)
from flinkray.scheduler.task_slots.task_slot_table import SlotTableAction


class TaskExecution:
    """Carries out orders about tasks. Lives on the main thread of its TaskExecutor.

    Calls of past JobMasters are refused.
    """

    def __init__(
        self,
        tasks: TaskTable,
        kinds: Mapping[str, TasksOfKind],
        parts: DeployedParts,
        results: TaskResults,
        job_leaders: JobLeaderService,
        carry_out: Callable[[list[SlotTableAction]], None],
    ) -> None:
        """Create the object that carries out orders about tasks, without tasks.
        *kinds* maps each kind of task to its runner. *parts* stores the information that
        deployments share.
        """
        self._tasks = tasks
        self._kinds = kinds
        self._all = tuple(dict.fromkeys(kinds.values()))
        self._parts = parts
        self._results = results
        self._job_leaders = job_leaders
        self._carry_out = carry_out

    # --- orders of a JobMaster --------------------------------------------------------------------

    def submit_all(
        self, deployments: TaskDeployments, job_master_id: JobMasterId, blob_server: str | None
    ) -> tuple[RefusedTask, ...]:
        """Run tasks, each with the runner of its kind. Returns the tasks that are refused.

        Raises:
            TaskError: all tasks are refused.
        """
        job_id = deployments.job_id
        self._refuse_past_leader(job_id, job_master_id)
        self._parts.add(deployments)
        self._parts.job(deployments)  # refuses all tasks before any is accepted
        found = [self._resolve(deployments.graph_id, task) for task in deployments.tasks]
        refused = []
        accepted: dict[TasksOfKind, list[AcceptedTask]] = {}
        for task in found:
            kind = task.information.invokable.kind
            runs_in = self._kinds.get(kind)
            if runs_in is None:
                cause = f"it is of kind {kind!r}, which this TaskExecutor does not run"
                refused.append(RefusedTask(task.attempt_id, cause))
                continue
            try:
                accepted.setdefault(runs_in, []).append(self._tasks.add(job_id, task, runs_in))
            except SlotAllocationError as error:
                allocation_id = task.deployment.allocation_id
                refused.append(RefusedTask(task.attempt_id, str(error), allocation_id))
        self._carry_out([])
        for runs_in, tasks in accepted.items():
            runs_in.start(AcceptedTasks(deployments, tasks, job_master_id, blob_server))
        return tuple(refused)

    def _resolve(self, graph_id: ExecutionGraphID, task: TaskDeployment) -> StartedTask:
        """Return the task together with the shared information that it refers to. Raises TaskError
        if a part of this information is not here."""
        vertex = self._parts.vertex(graph_id, task)
        return StartedTask(
            attempt_of(graph_id, vertex, task),
            task,
            self._parts.part(graph_id, task.vertex),
            tuple(self._parts.part(graph_id, key) for key in task.inputs),
        )

    def cancel_all(
        self, attempts: tuple[ExecutionAttemptID, ...], job_master_id: JobMasterId
    ) -> None:
        """Cancel the tasks of *attempts* that run here (EX-04), and ignore other attempts.
        Raises TaskError for a past JobMaster.
        """
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None:
                self._refuse_past_leader(task.job_id, job_master_id)
        self.end(attempts)

    def order_checkpoint(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        order: CheckpointOrder,
        attempts: tuple[ExecutionAttemptID, ...],
    ) -> None:
        """Pass a checkpoint order to tasks. Raises TaskError if another JobMaster leads the job."""
        self._refuse_past_leader(job_id, job_master_id)
        self._tasks.ordered(order, attempts)
        for runs_in, of_kind in self._by_kind(attempts).items():
            runs_in.order_checkpoint(order, of_kind)
        if isinstance(order, TriggerCheckpoint):
            missing = [a for a in attempts if self._tasks.get(a) is None]
            cause = "it does not run where it was to begin"
            self._tasks.reported([not_ready(job_id, order, a, cause) for a in missing])

    def release_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        """Release results of the job, if this JobMaster leads the job. Otherwise do nothing."""
        if self._job_leaders.is_led_by(job_id, job_master_id):
            self._results.release(job_id, partitions)

    async def io_metrics(
        self, job_id: JobID, job_master_id: JobMasterId
    ) -> tuple[TaskIOMetrics, ...]:
        """Return the I/O metrics of the job's tasks here.

        Raises:
            TaskError: this JobMaster does not lead the job here.
        """
        self._refuse_past_leader(job_id, job_master_id)
        known = [await of_kind.io_metrics(job_id) for of_kind in self._all]
        return tuple(one for of_kind in known for one in of_kind)

    def _refuse_past_leader(self, job_id: JobID, job_master_id: JobMasterId) -> None:
        if not self._job_leaders.is_led_by(job_id, job_master_id):
            raise TaskError(f"JobMaster {job_master_id} does not lead the job here: job {job_id}")

    # --- orders of the slot table -----------------------------------------------------------------

    def end(self, attempts: Iterable[ExecutionAttemptID]) -> None:
        """Begin to cancel these tasks, because their slots are being freed."""
        for runs_in, of_kind in self._by_kind(attempts).items():
            runs_in.cancel(of_kind)

    def _by_kind(
        self, attempts: Iterable[ExecutionAttemptID]
    ) -> dict[TasksOfKind, list[ExecutionAttemptID]]:
        by_kind: dict[TasksOfKind, list[ExecutionAttemptID]] = {}
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None:
                by_kind.setdefault(task.runs_in, []).append(attempt_id)
        return by_kind

    async def clean_up(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """Remove the processes and code that ended tasks have left in the slot, and wait until they
        are gone. Called before the slot is free."""
        for of_kind in self._all:
            await of_kind.clean_up(allocation_id, job_id)

    def led_anew(self, job_id: JobID) -> None:
        """Drop the information that the job's deployments shared: another JobMaster leads the job
        now, and sends its own."""
        self._parts.forget(job_id)
        for of_kind in self._all:
            of_kind.led_anew(job_id)

    def goes_on(self, job_id: JobID, graph_id: ExecutionGraphID) -> None:
        """Cancel and drop all tasks of the job that do not belong to its execution graph
        *graph_id*, with their results: the job continues with this graph."""
        running = self._tasks.running(job_id)
        self.end(attempt_id for attempt_id in running if attempt_id.graph_id != graph_id)
        self._tasks.forget_other_graphs(job_id, graph_id)
        for of_kind in self._all:
            of_kind.goes_on(job_id, graph_id)

    def forget_job(self, job_id: JobID) -> None:
        """Drop everything of a job that has no slots or results here, or whose slots are being
        freed."""
        self._tasks.forget_job(job_id)
        self._parts.forget(job_id)
        for of_kind in self._all:
            of_kind.forget_job(job_id)
