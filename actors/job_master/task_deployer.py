"""Deploys and cancels a JobMaster's tasks, and repairs differences to the tasks that TaskExecutors
report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from flinkray.actors.job_master.deployment_reconciliation import DeploymentReconciliation
from flinkray.actors.job_master.leaders import JobMasterLeaders
from flinkray.actors.job_master.notes import NotesForSuccessor
from flinkray.actors.job_master.source_coordination import SourceCoordination
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.actors.shared.notifications import tell
from flinkray.core.errors import (
    FlinkRayError,
    RpcError,
)
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    JobMasterId,
    ResourceID,
)
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    ReleasePartitions,
)
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import (
    TaskDeployments,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
)
from flinkray.scheduler.shared.transition import JobEvent

log = logging.getLogger(__name__)


class TaskDeployer:
    """Deploys and cancels tasks at TaskExecutors. Lives on the JobMaster's main thread.

    Messages to one TaskExecutor are sent in the order of the scheduler's decisions.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        task_executors: TaskExecutorConnections,
        scheduler: JobScheduler,
        leaders: JobMasterLeaders,
        *,
        notes: NotesForSuccessor,
        sources: SourceCoordination,
        handle: Callable[[JobEvent], None],
        slot_lost: Callable[[AllocationID, str], None],
    ) -> None:
        """Create the deployer.

        Args:
            notes: the notes that deployments wait for.
            handle: passes an event to the scheduler, and carries out its actions.
            slot_lost: called with the reason when the job does not have a slot any more.
        """
        self._job_master = job_master
        self._task_executors = task_executors
        self._scheduler = scheduler
        self._handle = handle
        self._slot_lost = slot_lost
        self._notes = notes
        self._sources = sources
        self._leaders = leaders
        self._vertices: dict[int, VertexInformation] = {}
        self._reconciliation = DeploymentReconciliation()

    # --- what TaskExecutors say -------------------------------------------------------------------

    def states_changed(self, states: Iterable[TaskExecutionState]) -> None:
        """Note which attempts have ended according to these reports. Must be called before the
        scheduler gets the reports."""
        self._reconciliation.ended(s.attempt_id for s in states if s.state.is_terminal)

    def task_executor_lost(self, resource_id: ResourceID) -> None:
        """Remove a lost TaskExecutor and the attempts that were deployed there."""
        self._reconciliation.task_executor_lost(resource_id)

    def running(self, resource_id: ResourceID, attempts: Iterable[ExecutionAttemptID]) -> None:
        """Compare the attempts that a heartbeat lists with the deployed attempts, and repair
        differences. Attempts that were not deployed are cancelled. Deployed attempts that are
        missing are reported to the scheduler as failed.
        """
        found = self._reconciliation.heartbeat(resource_id, attempts)
        if found.unknown:
            self._tell_to_cancel(resource_id, list(found.unknown))
        if found.missing:
            self._reconciliation.ended(found.missing)
            cause = f"{resource_id} does not run it (any more), and has not reported its end"
            job_id, failed = self._scheduler.job_id, ExecutionState.FAILED
            states = (TaskExecutionState(job_id, a, failed, cause) for a in found.missing)
            self._handle(t.TasksReported(tuple(states)))

    # --- what earlier JobMasters have deployed ----------------------------------------------------

    def adopted(self, resource_id: ResourceID, attempts: Iterable[ExecutionAttemptID]) -> None:
        """Note the attempts of earlier JobMasters that this JobMaster has taken over."""
        attempts = tuple(attempts)
        self._reconciliation.deploying(resource_id, attempts)
        self._reconciliation.deployed(resource_id, attempts)

    def reported(self, resource_id: ResourceID, running: Iterable[ExecutionAttemptID]) -> None:
        """Cancel attempts that a TaskExecutor reports when it registers, but that are not deployed
        there.
        """
        unknown = self._reconciliation.not_deployed(resource_id, running)
        if unknown:
            log.info("%s: %d tasks of no use are cancelled", resource_id, len(unknown))
            self._tell_to_cancel(resource_id, unknown)

    # --- tasks, in bulk ---------------------------------------------------------------------------

    def deploy_all(self, action: DeployTasks) -> None:
        """Begin to deploy tasks. Reports attempts that could not be deployed to the scheduler."""
        for part in action.deployments.parts:
            match part.content:
                case VertexInformation() as vertex:
                    self._vertices[part.key] = vertex
        self._job_master.create_task(self._deploy_all(action), "deploy tasks")

    async def _deploy_all(self, action: DeployTasks) -> None:
        resource_id = action.location.resource_id
        deployments = action.deployments
        token = self._job_master.fencing_token
        attempts = self._attempts(deployments)
        self._reconciliation.deploying(resource_id, attempts)
        owner = self._sources.owner
        if owner != token:
            deployments = replace(deployments, source_coordinator_owner=owner)
        await self._notes.acknowledged()
        try:
            executor = self._task_executors.get(resource_id)
            refused = await executor.submit_tasks(deployments, token, self._leaders.blob_server)
        except FlinkRayError as error:
            self._reconciliation.ended(attempts)
            if isinstance(error, RpcError):  # they may run there all the same
                self._tell_to_cancel(resource_id, attempts)
            self._handle(t.DeploymentsFailed(resource_id, tuple(attempts), str(error)))
            return
        self._reconciliation.ended(task.attempt_id for task in refused)
        self._reconciliation.deployed(resource_id, attempts)
        for task in refused:
            if task.lost_slot is not None:
                # otherwise the next attempt would fail in this slot, too
                self._slot_lost(task.lost_slot, task.cause)
            else:
                self._handle(t.DeploymentsFailed(resource_id, (task.attempt_id,), task.cause))

    def _attempts(self, deployments: TaskDeployments) -> list[ExecutionAttemptID]:
        return [
            attempt_of(deployments.graph_id, self._vertices[task.vertex], task)
            for task in deployments.tasks
        ]

    def _tell_to_cancel(self, resource_id: ResourceID, attempts: list[ExecutionAttemptID]) -> None:
        async def cancel() -> None:
            executor = self._task_executors.get(resource_id)
            await executor.cancel_tasks(tuple(attempts), self._job_master.fencing_token)

        tell(self._job_master, cancel(), resource_id)

    def cancel_all(self, action: CancelTasks) -> None:
        """Begin to cancel tasks. Each cancelled task reports its end."""
        self._job_master.create_task(self._cancel_all(action), "cancel tasks")

    async def _cancel_all(self, action: CancelTasks) -> None:
        await self._notes.acknowledged()  # their deployment may still wait to be sent
        try:
            executor = self._task_executors.get(action.location.resource_id)
            await executor.cancel_tasks(action.attempts, self._job_master.fencing_token)
        except FlinkRayError as error:
            self._reconciliation.ended(action.attempts)
            self._handle(t.CancellationsFailed(action.attempts, str(error)))

    def release(self, action: ReleasePartitions) -> None:
        """Order a TaskExecutor to release results. The order is sent once and may get lost."""
        resource_id = action.location.resource_id
        if self._task_executors.is_connected(resource_id):
            executor = self._task_executors.get(resource_id)
            release = executor.release_partitions(
                self._scheduler.job_id, self._job_master.fencing_token, action.partitions
            )
            tell(self._job_master, release, resource_id)
