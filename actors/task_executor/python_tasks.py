"""The Python tasks of a TaskExecutor, which run in its task processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flinkray.actors.gateways.task_executor import TaskExecutorArguments
from flinkray.actors.gateways.task_reports import TaskReport, not_ready
from flinkray.actors.shared.deployment_parts import DeployedParts
from flinkray.actors.shared.produced_partitions import ProducedPartition, produced_partitions
from flinkray.actors.shared.settings import heartbeat_settings
from flinkray.actors.task_executor.task_processes import (
    TASK_PROCESS_FACTORY,
    TaskProcesses,
    TaskProcessPlace,
)
from flinkray.actors.task_executor.task_results import TaskResults
from flinkray.actors.task_executor.tasks_of_kind import AcceptedTask, AcceptedTasks, TasksOfKind
from flinkray.core import options
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
)
from flinkray.core.job_options import TASK_CANCELLATION_TIMEOUT
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.checkpoints.messages import CheckpointOrder, TriggerCheckpoint
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import (
    TaskDeployments,
    TaskExecutionState,
)


@dataclass(slots=True)
class _Task:
    job_id: JobID
    attempt_id: ExecutionAttemptID
    name: str
    """Name of the vertex with the number of the subtask, for log lines and errors."""
    place: TaskProcessPlace
    produced: tuple[ProducedPartition, ...]
    cancellation_timeout: float
    is_cancelling: bool = False


class PythonTasks(TasksOfKind):
    """Runs Python tasks in task processes.

    Knows which task runs in which process, and in which process each result is. It unpickles
    nothing and never waits for a task.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        arguments: TaskExecutorArguments,
        configuration: ReadableConfig,
        parts: DeployedParts,
        *,
        factory: str = TASK_PROCESS_FACTORY,
        on_reports: Callable[[list[TaskReport]], None],
    ) -> None:
        """Create the object without tasks and task processes.

        Args:
            factory: creates the endpoint of a task process.
            parts: the shared information that deployments refer to.
            on_reports: receives the reports of tasks. A task's final state comes last and once.
        """
        self._endpoint = endpoint
        self.processes = TaskProcesses(
            endpoint,
            arguments,
            slots_per_process=configuration.get(options.SLOTS_PER_TASK_PROCESS),
            heartbeat=heartbeat_settings(configuration),
            waiting=configuration.get(options.PRESTARTED_TASK_PROCESSES),
            on_died=self._process_died,
            factory=factory,
        )
        self.results = TaskResults(self.processes, self._has_no_results)
        self._cancellation_timeout = configuration.get(TASK_CANCELLATION_TIMEOUT)
        self._on_reports = on_reports
        self._parts = parts
        self._tasks: dict[ExecutionAttemptID, _Task] = {}
        self._places: dict[AllocationID, TaskProcessPlace] = {}

    # --- tasks ------------------------------------------------------------------------------------

    def start(self, accepted: AcceptedTasks) -> None:
        """Start tasks in the task processes of their slots, with one message per process."""
        by_place: dict[TaskProcessPlace, list[AcceptedTask]] = {}
        for task in accepted.tasks:
            place = self.processes.place_of(task.slot_index, accepted.deployments.job_id)
            by_place.setdefault(place, []).append(task)
            self._add(accepted.deployments, task, place)
        for place, of_place in by_place.items():
            self._send(place, replace(accepted, tasks=of_place))

    def _add(
        self, deployments: TaskDeployments, task: AcceptedTask, place: TaskProcessPlace
    ) -> None:
        job_id, graph_id = deployments.job_id, deployments.graph_id
        produced = produced_partitions(job_id, graph_id, task.vertex, task.deployment)
        timeout = self._parts.job(deployments).cancellation_timeout or self._cancellation_timeout
        name = task.vertex.task(task.deployment.subtask_index)
        self._tasks[task.attempt_id] = _Task(
            job_id, task.attempt_id, name, place, produced, timeout
        )
        self._places[task.deployment.allocation_id] = place
        self.results.begun(produced, place)

    def _send(self, place: TaskProcessPlace, accepted: AcceptedTasks) -> None:
        deployments, graph_id = accepted.deployments, accepted.deployments.graph_id
        of_process = tuple(task.deployment for task in accepted.tasks)
        keys = {deployments.job}
        for deployment in of_process:
            keys.update((deployment.vertex, *deployment.inputs))
        parts = tuple(self._parts.part(graph_id, key) for key in sorted(keys))
        attempts = [task.attempt_id for task in accepted.tasks]
        self.processes.run_tasks(
            place,
            replace(deployments, parts=parts, tasks=of_process),
            accepted.job_master_id,
            accepted.blob_server,
            lambda cause: self._failed(attempts, cause),
        )

    def cancel(self, attempts: Sequence[ExecutionAttemptID]) -> None:
        """Cancel tasks in their task processes, with one message per process."""
        by_place: dict[TaskProcessPlace, list[_Task]] = {}
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None and not task.is_cancelling:
                task.is_cancelling = True
                by_place.setdefault(task.place, []).append(task)
        for place, of_place in by_place.items():
            self.processes.cancel_tasks(place, tuple(task.attempt_id for task in of_place))
            self._endpoint.schedule_deadline(
                of_place[0].cancellation_timeout, partial(self._end_by_force, of_place)
            )

    def _end_by_force(self, tasks: list[_Task]) -> None:
        for task in tasks:
            if task.attempt_id in self._tasks:
                self.processes.kill(
                    task.place,
                    f"{task.place} was killed: its task {task.name} (attempt {task.attempt_id}) "
                    f"did not end within {task.cancellation_timeout:g} s after it was cancelled",
                )

    def fail(self, attempt_id: ExecutionAttemptID, cause: str) -> None:
        task = self._tasks.get(attempt_id)
        if task is not None:
            self.processes.tell(task.place, lambda process: process.fail_task(attempt_id, cause))

    def order_checkpoint(
        self, order: CheckpointOrder, attempts: Sequence[ExecutionAttemptID]
    ) -> None:
        """Send the order to tasks, with one message per process."""
        by_place: dict[TaskProcessPlace, list[_Task]] = {}
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None:
                by_place.setdefault(task.place, []).append(task)
        for place, of_place in by_place.items():
            self.processes.order_checkpoint(
                place,
                order,
                tuple(task.attempt_id for task in of_place),
                partial(self._not_triggered, order, of_place),
            )

    def _not_triggered(self, order: CheckpointOrder, tasks: list[_Task], cause: str) -> None:
        if isinstance(order, TriggerCheckpoint):
            self._on_reports(
                [not_ready(t.job_id, order, t.attempt_id, cause, may_write=True) for t in tasks]
            )

    async def io_metrics(self, job_id: JobID) -> tuple[TaskIOMetrics, ...]:
        """Ask each process with stream tasks of the job for their I/O metrics, and return these
        metrics. Tasks whose process does not answer are left out."""
        tasks = (task for task in self._tasks.values() if task.job_id == job_id)
        places = dict.fromkeys(task.place for task in tasks)
        ask = self.processes.io_metrics_at
        answers = await asyncio.gather(*(ask(place, job_id) for place in places))
        return tuple(one for answer in answers for one in answer)

    # --- reports and ends of tasks --------------------------------------------------------------

    def reported(self, process_name: str, reports: tuple[TaskReport, ...]) -> None:
        """Process reports of a task process.
        Task states from a process that counts as dead are dropped. Answers to checkpoints are
        passed on all the same, because state that was written for them must be discarded.
        """
        news: list[TaskReport] = []
        for report in reports:
            if not isinstance(report, TaskExecutionState):
                news.append(report)
                continue
            task = self._tasks.get(report.attempt_id)
            if task is not None and task.place.process_name == process_name:
                news.append(report)
                if report.state.is_terminal:
                    self._ended(task, is_finished=report.state is ExecutionState.FINISHED)
        if news:
            self._on_reports(news)

    def _ended(self, task: _Task, *, is_finished: bool) -> None:
        del self._tasks[task.attempt_id]
        self.results.ended(task.produced, is_finished=is_finished)

    def _process_died(self, place: TaskProcessPlace, cause: str) -> None:
        self.results.process_died(place)
        self._failed([t.attempt_id for t in self._tasks.values() if t.place is place], cause)

    def _failed(self, attempts: Iterable[ExecutionAttemptID], cause: str) -> None:
        news: list[TaskReport] = []
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None:
                self._ended(task, is_finished=False)
                news.append(
                    TaskExecutionState(task.job_id, attempt_id, ExecutionState.FAILED, cause)
                )
        if news:
            self._on_reports(news)

    # --- ends -------------------------------------------------------------------------------------

    async def clean_up(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """End the process of a slot that is being freed. If the job needs the process for another
        slot or for results, tell the process to drop the code that the slot's tasks have loaded,
        and kill it if that fails."""
        place = self._places.pop(allocation_id, None)
        if place is None:
            return
        if not self._is_needed(place):
            ending = self.processes.end(place)
            if ending is not None:
                await ending
            return
        process = place.gateway
        if process is None:
            return
        try:
            await process.free_slot(allocation_id, job_id)
        except FlinkRayError as error:
            self.processes.kill(place, f"{place} did not free a slot and was killed: {error}")

    def _is_needed(self, place: TaskProcessPlace) -> bool:
        return self.results.are_at(place) or place in self._places.values()

    def _has_no_results(self, place: TaskProcessPlace) -> None:
        if not self._is_needed(place):
            self.processes.end(place)

    def led_anew(self, job_id: JobID) -> None:
        self.processes.led_anew(job_id)

    def goes_on(self, job_id: JobID, graph_id: ExecutionGraphID) -> None:
        self.results.goes_on(job_id, graph_id)
        has_tasks = any(
            task.job_id == job_id and task.attempt_id.graph_id == graph_id
            for task in self._tasks.values()
        )
        if not has_tasks and not self.results.has_results_of(job_id):
            self.processes.forget_job(job_id)

    def forget_job(self, job_id: JobID) -> None:
        self.results.job_gone(job_id)
        self.processes.forget_job(job_id)
