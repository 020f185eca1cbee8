"""A driver that refuses changes for a ResourceManager that leads no more."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.actors.resource_manager.driver import (
    ResourceManagerDriver,
    WorkerGroupHandle,
    WorkerGroupRequest,
)
from flinkray.actors.shared.leadership import Leadership, LeadershipLostError
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.scheduler.resources.cluster_resources import ClusterResources


class FencedDriver(ResourceManagerDriver):
    """Forwards calls to a driver. Calls that change anything are refused once this process leads no
    more; calls that only read are always forwarded.

    This is needed because Ray has no fencing. A ResourceManager that wakes up from a pause would
    count TaskExecutors as lost that have registered at its successor, and would release them.
    """

    def __init__(self, driver: ResourceManagerDriver, leadership: Leadership) -> None:
        self._driver = driver
        self._leadership = leadership

    async def _check(self) -> None:
        if not await self._leadership.is_certain():
            raise LeadershipLostError("another ResourceManager leads, and sees to the workers")

    async def create_worker_group(self, request: WorkerGroupRequest) -> WorkerGroupHandle:
        await self._check()
        return await self._driver.create_worker_group(request)

    async def wait_until_placed(self, group: WorkerGroupId) -> None:
        await self._driver.wait_until_placed(group)

    async def describe_placement(self, group: WorkerGroupId) -> str:
        return await self._driver.describe_placement(group)

    async def release_worker_group(self, group: WorkerGroupId) -> None:
        await self._check()
        await self._driver.release_worker_group(group)

    def new_task_executor_id(self, group: WorkerGroupHandle, bundle_index: int) -> ResourceID:
        return self._driver.new_task_executor_id(group, bundle_index)

    async def start_task_executor(
        self,
        resource_id: ResourceID,
        group: WorkerGroupHandle,
        bundle_index: int,
        number_of_slots: int,
    ) -> None:
        await self._check()
        await self._driver.start_task_executor(resource_id, group, bundle_index, number_of_slots)

    async def stop_task_executor(self, resource_id: ResourceID) -> None:
        await self._check()
        await self._driver.stop_task_executor(resource_id)

    async def kill_task_executor(self, resource_id: ResourceID) -> None:
        await self._check()
        await self._driver.kill_task_executor(resource_id)

    async def occupied_bundles(
        self, groups: Iterable[WorkerGroupId]
    ) -> dict[WorkerGroupId, dict[int, ResourceID]]:
        return await self._driver.occupied_bundles(groups)

    async def cluster_resources(self) -> ClusterResources:
        return await self._driver.cluster_resources()

    async def dashboard_url(self) -> str | None:
        return await self._driver.dashboard_url()

    async def recover(self) -> tuple[WorkerGroupHandle, ...]:
        return await self._driver.recover()
