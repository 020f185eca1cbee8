"""Workers on a LocalNetwork, in place of Ray."""

from __future__ import annotations

import asyncio

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.resource_manager.driver import TASK_EXECUTOR_FACTORY, WorkerGroupHandle
from flinkray.actors.resource_manager.endpoint import lead_resource_manager
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.local_cluster.worker_nodes import GroupRecord, WorkerNodes
from flinkray.local_cluster.worker_nodes_driver import WorkerNodesDriver
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint


class LocalWorkers(WorkerNodes):
    """The simulated worker nodes of a LocalNetwork. They run TaskExecutors in this process."""

    def __init__(self, network: LocalNetwork, *nodes: ResourceProfile) -> None:
        super().__init__(*nodes)
        self.network = network
        self.start_delay = 0.0
        """Seconds that a TaskExecutor takes to start."""
        self.factory = TASK_EXECUTOR_FACTORY
        """The path of the factory of the TaskExecutors' processes."""
        network.belongings[LocalWorkers] = self

    @classmethod
    def of(cls, network: LocalNetwork) -> LocalWorkers:
        """Return the workers of a network. Raises KeyError: the network has none."""
        workers: LocalWorkers = network.belongings[LocalWorkers]
        return workers

    async def removed(self, group_id: WorkerGroupId) -> None:
        """Wait until an existing worker group is removed."""
        record = self.groups[group_id]
        while group_id in self.groups:
            changed = asyncio.Event()
            record.listeners.append(changed.set)
            await changed.wait()

    def _is_alive(self, process_name: str) -> bool:
        return process_name in self.network.services

    def _end_processes(self, record: GroupRecord) -> None:
        for name in record.starts:
            self.network.kill(name)


class LocalResourceManagerDriver(WorkerNodesDriver):
    """The ResourceManager's driver that starts and releases workers on LocalWorkers.
    The ResourceManager runs in the process of *rpc_service*.
    """

    def __init__(self, rpc_service: LocalRpcService, cluster: ClusterArguments) -> None:
        self._local = LocalWorkers.of(rpc_service.network)
        super().__init__(rpc_service, cluster, self._local, self._local.factory)

    async def start_task_executor(
        self,
        resource_id: ResourceID,
        group: WorkerGroupHandle,
        bundle_index: int,
        number_of_slots: int,
    ) -> None:
        await asyncio.sleep(self._local.start_delay)
        self._task_executor_factory = self._local.factory  # a test may have changed it
        await super().start_task_executor(resource_id, group, bundle_index, number_of_slots)


async def create_local_resource_manager(
    rpc_service: LocalRpcService, arguments: ClusterArguments
) -> RpcEndpoint:
    """Create the endpoint of a ResourceManager that uses the LocalWorkers of its network."""
    driver = LocalResourceManagerDriver(rpc_service, arguments)
    return await lead_resource_manager(rpc_service, arguments, driver)
