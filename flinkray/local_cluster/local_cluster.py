"""A cluster on the caller's event loop, and its workers, for tests and programs without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar, TypeVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.resource_manager.endpoint import lead_resource_manager
from flinkray.core.ids import DispatcherId, LeaderSessionID
from flinkray.core.resources import ResourceProfile
from flinkray.ha.services import DISPATCHER_ADDRESS
from flinkray.local_cluster.worker_nodes import GroupRecord, WorkerNodes, WorkerNodesDriver
from flinkray.rpc import EndpointSpec, LocalNetwork, LocalRpcService, RpcEndpoint

_NODE = ResourceProfile(4, 8 * 2**30)

_Self = TypeVar("_Self", bound="LocalCluster")


class LocalCluster:
    """A whole cluster in this process. As an async context manager, it runs inside the context."""

    masters: ClassVar[dict[str, str]] = {
        "ResourceManager": "flinkray.local_cluster.local_cluster:create_local_resource_manager",
        "Dispatcher": "flinkray.actors.dispatcher.endpoint:create_dispatcher",
    }
    """Name of each master's process -> path of the factory of its endpoint."""

    def __init__(
        self,
        storage_dir: str,
        *nodes: ResourceProfile,
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        """Create a cluster that is not started. *nodes* defaults to one node of 4 CPU and 8 GiB.

        No other cluster may use *storage_dir*.
        """
        self.network = LocalNetwork()
        self.workers = LocalWorkers(self.network, *(nodes or (_NODE,)))
        self._arguments = ClusterArguments("local", dict(configuration or {}), storage_dir)

    async def __aenter__(self: _Self) -> _Self:
        self.client = LocalRpcService("client", self.network)
        for name, factory in self.masters.items():
            spec = EndpointSpec(
                name, name, factory, self._arguments, detached=True, max_restarts=-1
            )
            await self.client.spawn(spec)
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.network.close()

    async def dispatcher(self) -> DispatcherGateway:
        """Return a gateway to the current Dispatcher."""
        token = DispatcherId.of(LeaderSessionID.standalone())
        return await self.client.connect(DISPATCHER_ADDRESS, DispatcherGateway, token)


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
    """The ResourceManager's driver that starts and releases workers on LocalWorkers. The
    ResourceManager runs in the process of *rpc_service*."""

    def __init__(self, rpc_service: LocalRpcService, cluster: ClusterArguments) -> None:
        super().__init__(rpc_service, cluster, LocalWorkers.of(rpc_service.network))


async def create_local_resource_manager(
    rpc_service: LocalRpcService, arguments: ClusterArguments
) -> RpcEndpoint:
    """Create the endpoint of a ResourceManager that uses the LocalWorkers of its network."""
    driver = LocalResourceManagerDriver(rpc_service, arguments)
    return await lead_resource_manager(rpc_service, arguments, driver)
