"""The ResourceManager's driver that creates worker groups on simulated nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.task_executor_arguments import NodeAddress
from flinkray.actors.resource_manager.driver import (
    ResourceManagerDriver,
    WorkerGroupHandle,
    WorkerGroupLostError,
    WorkerGroupRequest,
    task_executor_spec,
)
from flinkray.core.errors import RpcConnectionError
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.local_cluster.worker_nodes import WorkerNodes
from flinkray.rpc import RpcService
from flinkray.scheduler.resources.shortages import ClusterResources


class WorkerNodesDriver(ResourceManagerDriver):
    """The ResourceManager's driver that starts and releases workers on WorkerNodes.
    The ResourceManager runs in the process of *rpc_service*.

    A subclass may let each request take time, before and after it takes effect.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        cluster: ClusterArguments,
        workers: WorkerNodes,
    ) -> None:
        self._rpc_service = rpc_service
        self._cluster = cluster
        self._workers = workers

    async def _take_time(self) -> None:
        """Return at once.
        A subclass overrides this to delay a request, before and after its effect.
        """

    def _waker(self, changed: asyncio.Future[None]) -> Callable[[], None]:
        """Return a function that any process may call to complete the future *changed*.
        The future belongs to this process.
        """

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        return wake

    async def create_worker_group(self, request: WorkerGroupRequest) -> WorkerGroupHandle:
        await self._take_time()
        group = self._workers.create(request)
        await self._take_time()
        return group

    async def wait_until_placed(self, group: WorkerGroupId) -> None:
        while True:
            record = self._workers.groups.get(group)
            if record is None:
                raise WorkerGroupLostError(f"group {group} was removed")
            if record.is_placed:
                break
            changed: asyncio.Future[None] = self._rpc_service.loop.create_future()
            record.listeners.append(self._waker(changed))
            await changed
        await self._take_time()

    async def describe_placement(self, group: WorkerGroupId) -> str:
        return f"group {group}: no room"

    async def release_worker_group(self, group: WorkerGroupId) -> None:
        await self._take_time()
        self._workers.remove(group)
        await self._take_time()

    def new_task_executor_id(self, group: WorkerGroupHandle, bundle_index: int) -> ResourceID:
        number = self._workers.next_start()
        return ResourceID(f"TaskExecutor-{group.group_id}-{bundle_index}-{number}")

    async def start_task_executor(
        self,
        resource_id: ResourceID,
        group: WorkerGroupHandle,
        bundle_index: int,
        number_of_slots: int,
    ) -> None:
        workers = self._workers
        await self._take_time()
        record = workers.groups.get(group.group_id)
        node = None if record is None else record.nodes[bundle_index]
        if node is None:
            raise RpcConnectionError(f"{resource_id} has no place: its bundle is gone")
        workers.started(group.group_id, bundle_index, resource_id)
        await self._rpc_service.spawn(
            task_executor_spec(
                resource_id,
                group,
                bundle_index,
                number_of_slots,
                self._cluster,
                factory=workers.factory,
                node=NodeAddress(node.node_id, "127.0.0.1"),
            )
        )

    async def stop_task_executor(self, resource_id: ResourceID) -> None:
        await self._rpc_service.stop(resource_id)

    async def kill_task_executor(self, resource_id: ResourceID) -> None:
        await self._rpc_service.kill(resource_id)

    async def occupied_bundles(
        self, groups: Iterable[WorkerGroupId]
    ) -> dict[WorkerGroupId, dict[int, ResourceID]]:
        self._workers.lists += 1
        occupied = {group: self._workers.occupied(group) for group in groups}
        await self._take_time()
        return occupied

    async def cluster_resources(self) -> ClusterResources:
        return self._workers.resources

    async def dashboard_url(self) -> str | None:
        return None

    async def recover(self) -> tuple[WorkerGroupHandle, ...]:
        groups = tuple(record.group for record in self._workers.groups.values())
        await self._take_time()
        return groups
