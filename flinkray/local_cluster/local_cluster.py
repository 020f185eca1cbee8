"""A cluster on the event loop of the caller, for tests and programs without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar, TypeVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.core.ids import DispatcherId, LeaderSessionID
from flinkray.core.resources import ResourceProfile
from flinkray.ha.services import DISPATCHER_ADDRESS
from flinkray.local_cluster.local_workers import LocalWorkers
from flinkray.rpc import EndpointSpec, LocalNetwork, LocalRpcService

_NODE = ResourceProfile(4, 8 * 2**30)

_Self = TypeVar("_Self", bound="LocalCluster")


class LocalCluster:
    """A whole cluster in this process. As an async context manager, it runs inside the context."""

    masters: ClassVar[dict[str, str]] = {
        "ResourceManager": "flinkray.local_cluster.local_workers:create_local_resource_manager",
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
