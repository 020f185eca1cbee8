"""A whole cluster in one process: real masters and TaskExecutors on simulated nodes.

The wire format is real. A LocalNetwork and LocalWorkers replace Ray, and scripted drivers replace
Spark drivers (:mod:`flinkray.testing.scripted_spark_driver`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar

from flinkray.actors.dispatcher.endpoint import Dispatcher
from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments, JobMasterArguments
from flinkray.actors.job_master.endpoint import JobMaster, win_job
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership
from flinkray.core.ids import DispatcherId, LeaderSessionID
from flinkray.core.resources import ResourceProfile
from flinkray.ha.services import DISPATCHER_ADDRESS
from flinkray.rpc import EndpointSpec, LocalNetwork, LocalRpcService, RpcService
from flinkray.testing.cluster_under_test import ClusterUnderTest
from flinkray.testing.local_workers import LocalWorkers
from flinkray.testing.scripted_spark_driver import SCRIPTED_SPARK_DRIVER

_NODE = ResourceProfile(4, 8 * 2**30)


async def create_local_dispatcher(
    rpc_service: RpcService, arguments: ClusterArguments
) -> Dispatcher:
    """Factory of a Dispatcher whose JobMasters start scripted Spark drivers."""
    services = ClusterServices.create(rpc_service, arguments)
    leadership = await Leadership.win(services.high_availability.get_dispatcher_leader_election())
    factory = f"{__name__}:create_local_job_master"
    dispatcher = Dispatcher(rpc_service, services, leadership, job_master_factory=factory)
    await dispatcher.recover()
    return dispatcher


async def create_local_job_master(
    rpc_service: RpcService, arguments: JobMasterArguments
) -> JobMaster:
    """Factory of a JobMaster that starts scripted Spark drivers."""
    services = ClusterServices.create(rpc_service, arguments.cluster)
    leadership = await win_job(services, arguments)
    return JobMaster(
        rpc_service, services, arguments, leadership, spark_driver_factory=SCRIPTED_SPARK_DRIVER
    )


class MiniCluster(ClusterUnderTest):
    """An async context manager; inside it, the cluster runs on the current event loop."""

    masters: ClassVar[dict[str, str]] = {
        "ResourceManager": "flinkray.testing.local_workers:create_local_resource_manager",
        "Dispatcher": f"{__name__}:create_local_dispatcher",
    }
    """The factory of each master."""

    def __init__(
        self,
        storage_dir: str,
        *nodes: ResourceProfile,
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        """*nodes* defaults to one node of 4 CPU and 8 GiB.

        No other cluster may use *storage_dir*.
        """
        self.network = LocalNetwork()
        self.workers = LocalWorkers(self.network, *(nodes or (_NODE,)))
        self._arguments = ClusterArguments("local", dict(configuration or {}), storage_dir)

    async def __aenter__(self) -> MiniCluster:
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

    def processes(self, kind: str = "") -> list[str]:
        """Return the running processes whose names begin with *kind*, in order of their start."""
        return [name for name in self.network.services if name.startswith(kind)]

    def crash(self, kind: str) -> str:
        """Crash the first process of a kind, as by SIGKILL; return its name."""
        name = self.processes(kind)[0]
        self.network.crash(name)
        return name

    def crash_all(self, kind: str) -> None:
        """Crash all processes of a kind, as by SIGKILL."""
        for name in self.processes(kind):
            self.network.crash(name)
