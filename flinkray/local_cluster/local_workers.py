"""Workers on a LocalNetwork, in place of Ray."""

from __future__ import annotations

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.resource_manager.endpoint import lead_resource_manager
from flinkray.core.resources import ResourceProfile
from flinkray.local_cluster.worker_nodes import GroupRecord, WorkerNodes
from flinkray.local_cluster.worker_nodes_driver import WorkerNodesDriver
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint


class LocalWorkers(WorkerNodes):
    """The simulated worker nodes of a LocalNetwork. They run TaskExecutors in this process."""

    def __init__(self, network: LocalNetwork, *nodes: ResourceProfile) -> None:
        super().__init__(*nodes)
        self.network = network
        network.belongings[LocalWorkers] = self

    @classmethod
    def of(cls, network: LocalNetwork) -> LocalWorkers:
        """Return the workers of a network. Raises KeyError: the network has none."""
        workers: LocalWorkers = network.belongings[LocalWorkers]
        return workers

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
        super().__init__(rpc_service, cluster, LocalWorkers.of(rpc_service.network))


async def create_local_resource_manager(
    rpc_service: LocalRpcService, arguments: ClusterArguments
) -> RpcEndpoint:
    """Create the endpoint of a ResourceManager that uses the LocalWorkers of its network."""
    driver = LocalResourceManagerDriver(rpc_service, arguments)
    return await lead_resource_manager(rpc_service, arguments, driver)
