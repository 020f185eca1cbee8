"""The driver: the interface of a ResourceManager to the system that provides workers.

The ResourceManager decides what is started and released; a driver knows how. On Ray a worker group
is a placement group (:mod:`flinkray.actors.resource_manager.ray_driver`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.task_executor import NodeAddress, TaskExecutorArguments
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import EndpointSpec, Placement
from flinkray.scheduler.resources.cluster_resources import ClusterResources
from flinkray.scheduler.shared.slots import WorkerGroupOwner


class WorkerGroupStartError(FlinkRayError):
    """Raised when the provider refuses to start a worker group.
    Not raised if the cluster has no room for the group at present: the group then waits.
    """

    retryable = True


class WorkerGroupLostError(FlinkRayError):
    """Raised when a worker group that is still wanted was removed by another party."""

    retryable = True


@dataclass(frozen=True, slots=True)
class WorkerGroupRequest:
    """Request for a worker group.
    Bundle i will hold a TaskExecutor with the profile ``bundles[i]``.
    """

    owner: WorkerGroupOwner | None
    """The job and group name if the group belongs to one job. None: shared by all jobs."""
    bundles: tuple[ResourceProfile, ...]


@dataclass(frozen=True, slots=True)
class WorkerGroupHandle:
    """Id, name and bundles of a worker group that the driver has created, placed or not."""

    group_id: WorkerGroupId
    name: str
    owner: WorkerGroupOwner | None
    bundles: tuple[ResourceProfile, ...]

    @property
    def text(self) -> str:
        """The text ``<name> (<id>)``, for log lines."""
        return f"{self.name} ({self.group_id})"

    def is_own_of(self, job_id: JobID) -> bool:
        """Return whether the group belongs to this job alone."""
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
    """Return the specification of the process for a TaskExecutor in bundle *bundle_index* of
    *group*. *node* is the bundle's node if the process does not run on Ray. None: Ray will know it.
    """
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
        """Reserve a group. Returns once the request is recorded, before the group is placed.

        From then on the group outlives the ResourceManager: :meth:`recover` finds the group.
        Raises WorkerGroupStartError if the request cannot be recorded.
        """

    @abstractmethod
    async def wait_until_placed(self, group: WorkerGroupId) -> None:
        """Wait until every bundle is reserved on a node, also after a bundle was lost.

        Waits without a limit. Cancelling the wait leaves the group as it is. Raises
        WorkerGroupLostError if the group was removed.
        """

    @abstractmethod
    async def describe_placement(self, group: WorkerGroupId) -> str:
        """Return why a group is not placed, in the provider's own words, for people."""

    @abstractmethod
    async def release_worker_group(self, group: WorkerGroupId) -> None:
        """Remove a group, placed or not, and everything that runs in it.

        Returns when the provider shows the group's resources as available again. Idempotent.
        """

    @abstractmethod
    def new_task_executor_id(self, group: WorkerGroupHandle, bundle_index: int) -> ResourceID:
        """Return a new, unique name for a TaskExecutor that will be started in the bundle."""

    @abstractmethod
    async def start_task_executor(
        self,
        resource_id: ResourceID,
        group: WorkerGroupHandle,
        bundle_index: int,
        number_of_slots: int,
    ) -> None:
        """Start a TaskExecutor in a bundle of a placed group. Returns when it has started.

        The TaskExecutor registers at the ResourceManager by itself, perhaps before this returns.
        Raises RpcError if the bundle or node is gone, or the start failed.
        """

    @abstractmethod
    async def stop_task_executor(self, resource_id: ResourceID) -> None:
        """Tell a TaskExecutor to end its tasks and itself. Returns when it is gone. Idempotent."""

    @abstractmethod
    async def kill_task_executor(self, resource_id: ResourceID) -> None:
        """End a TaskExecutor at once, whatever it does. Idempotent."""

    @abstractmethod
    async def occupied_bundles(
        self, groups: Iterable[WorkerGroupId]
    ) -> dict[WorkerGroupId, dict[int, ResourceID]]:
        """Return the TaskExecutors that exist or are starting, as group -> bundle index -> id.

        Used for groups of an earlier ResourceManager. Ask for all groups in one call: a call may
        take time for every existing process.
        """

    @abstractmethod
    async def cluster_resources(self) -> ClusterResources:
        """Return the provider's total and available resources. While the provider does not answer,
        these are the last known ones, and ``outage`` of the result is set. ``groups`` and
        ``pending_groups`` of the result are empty.
        """

    @abstractmethod
    async def dashboard_url(self) -> str | None:
        """Return the URL of the provider's dashboard. None if there is none or it is not known."""

    @abstractmethod
    async def recover(self) -> tuple[WorkerGroupHandle, ...]:
        """Return the existing groups of this cluster, placed or not, oldest first."""
