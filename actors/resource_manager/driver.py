"""What a ResourceManager needs of the system that provides workers.

The ResourceManager decides (through its SlotManager) *what* is started and released; a driver knows
*how*.  On Ray a worker group is a placement group and a TaskExecutor an actor in one of its bundles
(:mod:`flinkray.actors.resource_manager.ray_driver`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.task_executor_arguments import NodeAddress, TaskExecutorArguments
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import EndpointSpec, Placement
from flinkray.scheduler.resources.shortages import ClusterResources
from flinkray.scheduler.shared.slots import WorkerGroupOwner


class WorkerGroupStartError(FlinkRayError):
    """The provider refused a worker group (not: it has no room for it now)."""

    retryable = True


class WorkerGroupLostError(FlinkRayError):
    """A worker group was removed by someone else while it was still wanted."""

    retryable = True


@dataclass(frozen=True, slots=True)
class WorkerGroupRequest:
    """A worker group to be started: bundle i holds a TaskExecutor of profile ``bundles[i]``."""

    owner: WorkerGroupOwner | None
    """Whose own the group is; None: shared by all jobs."""
    bundles: tuple[ResourceProfile, ...]


@dataclass(frozen=True, slots=True)
class WorkerGroupHandle:
    """A worker group as the driver knows it, placed or not."""

    group_id: WorkerGroupId
    name: str
    owner: WorkerGroupOwner | None
    bundles: tuple[ResourceProfile, ...]

    def is_own_of(self, job_id: JobID) -> bool:
        """Whether it is a job's own."""
        return self.owner is not None and self.owner.job_id == job_id


TASK_EXECUTOR_FACTORY = "flinkray.actors.task_executor.endpoint:create_task_executor"


def task_executor_spec(
    resource_id: ResourceID,
    group: WorkerGroupHandle,
    bundle_index: int,
    number_of_slots: int,
    cluster: ClusterArguments,
    *,
    factory: str = TASK_EXECUTOR_FACTORY,
    node: NodeAddress | None = None,
) -> EndpointSpec:
    """The process of a TaskExecutor; *node* is where its bundle is, when it is not on Ray."""
    return EndpointSpec(
        kind="TaskExecutor",
        name=resource_id,
        factory=factory,
        arguments=TaskExecutorArguments(
            resource_id=resource_id,
            worker_group=group.group_id,
            bundle_index=bundle_index,
            total_profile=group.bundles[bundle_index],
            number_of_slots=number_of_slots,
            cluster=cluster,
            is_dedicated=group.owner is not None,
            node=node,
        ),
        placement=Placement(worker_group=group.group_id, bundle_index=bundle_index),
        detached=True,
    )


class ResourceManagerDriver(ABC):
    """Starts and releases worker groups and the TaskExecutors in them.

    All methods are called on the ResourceManager's main thread and never block it.
    """

    @abstractmethod
    async def create_worker_group(self, request: WorkerGroupRequest) -> WorkerGroupHandle:
        """Reserve a group; returns as soon as the request is recorded, placed or not.

        From then on the group outlives the ResourceManager: :meth:`recover` finds it.

        Raises:
            WorkerGroupStartError: it cannot be recorded.
        """

    @abstractmethod
    async def wait_until_placed(self, group: WorkerGroupId) -> None:
        """Return when every bundle is reserved on a node (again, after one was lost).

        Waits as long as it takes; cancelling the wait leaves the group as it is.

        Raises:
            WorkerGroupLostError: the group was removed.
        """

    @abstractmethod
    async def describe_placement(self, group: WorkerGroupId) -> str:
        """What the provider itself says about a group that is not placed, for people."""

    @abstractmethod
    async def release_worker_group(self, group: WorkerGroupId) -> None:
        """Remove a group, placed or not, and everything that runs in it.

        Answers when the provider shows its resources as available again; idempotent.
        """

    @abstractmethod
    def new_task_executor_id(self, group: WorkerGroupHandle, bundle_index: int) -> ResourceID:
        """The name of a TaskExecutor that is going to be started there; none is given twice."""

    @abstractmethod
    async def start_task_executor(
        self,
        resource_id: ResourceID,
        group: WorkerGroupHandle,
        bundle_index: int,
        number_of_slots: int,
    ) -> None:
        """Start a TaskExecutor in a bundle of a placed group; returns when it has started.

        It registers at the ResourceManager by itself, perhaps before this returns.

        Raises:
            RpcError: it could not be started (its bundle or node is gone, its start failed).
        """

    @abstractmethod
    async def stop_task_executor(self, resource_id: ResourceID) -> None:
        """Let a TaskExecutor end its tasks and itself; returns when it is gone.  Idempotent."""

    @abstractmethod
    async def kill_task_executor(self, resource_id: ResourceID) -> None:
        """End a TaskExecutor at once, whatever it does.  Idempotent."""

    @abstractmethod
    async def occupied_bundles(
        self, groups: Iterable[WorkerGroupId]
    ) -> dict[WorkerGroupId, dict[int, ResourceID]]:
        """The bundles of groups that hold a TaskExecutor process, also one that is still starting.

        For groups that a ResourceManager of the past started: it may take time for all processes
        that there are, and asks once for all groups.
        """

    @abstractmethod
    async def cluster_resources(self) -> ClusterResources:
        """What the provider has now; its texts about groups are left out."""

    @abstractmethod
    async def dashboard_url(self) -> str | None:
        """Where people can look at the provider; None: nowhere, or it does not say."""

    @abstractmethod
    async def recover(self) -> tuple[WorkerGroupHandle, ...]:
        """The groups of this cluster that exist already, placed or not, oldest first."""
