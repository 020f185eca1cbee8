"""Defines a LocalCluster whose processes a test can crash, with Spark stages that follow a script.

Scripted drivers replace Spark drivers (:mod:`flinkray.testing.scripted_spark_driver`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from flinkray.actors.dispatcher.endpoint import Dispatcher
from flinkray.actors.gateways.messages import ClusterArguments, JobMasterArguments
from flinkray.actors.gateways.task_executor import TaskExecutorArguments
from flinkray.actors.job_master.endpoint import JobMaster, win_job
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership
from flinkray.actors.task_executor.endpoint import TaskExecutor, create_task_executor
from flinkray.core.resources import ResourceProfile
from flinkray.local_cluster.local_cluster import LocalCluster
from flinkray.rpc import RpcService
from flinkray.testing.cluster_under_test import ClusterUnderTest
from flinkray.testing.function_tasks import FUNCTION_TASK_PROCESS
from flinkray.testing.scripted_spark_driver import SCRIPTED_SPARK_DRIVER


async def create_local_dispatcher(
    rpc_service: RpcService, arguments: ClusterArguments
) -> Dispatcher:
    """Create a Dispatcher whose JobMasters start scripted Spark drivers."""
    services = ClusterServices.create(rpc_service, arguments)
    leadership = await Leadership.win(services.high_availability.get_dispatcher_leader_election())
    factory = f"{__name__}:create_local_job_master"
    dispatcher = Dispatcher(rpc_service, services, leadership, job_master_factory=factory)
    await dispatcher.recover()
    return dispatcher


async def create_local_job_master(
    rpc_service: RpcService, arguments: JobMasterArguments
) -> JobMaster:
    """Create a JobMaster that starts scripted Spark drivers."""
    services = ClusterServices.create(rpc_service, arguments.cluster)
    leadership = await win_job(services, arguments)
    return JobMaster(
        rpc_service, services, arguments, leadership, spark_driver_factory=SCRIPTED_SPARK_DRIVER
    )


async def create_local_task_executor(
    rpc_service: RpcService, arguments: TaskExecutorArguments
) -> TaskExecutor:
    """Create a TaskExecutor whose task processes also run functions of tests."""
    return await create_task_executor(rpc_service, arguments, FUNCTION_TASK_PROCESS)


class MiniCluster(LocalCluster, ClusterUnderTest):
    """A cluster in this process, whose simulated processes a test can crash."""

    masters: ClassVar[dict[str, str]] = {
        **LocalCluster.masters,
        "Dispatcher": f"{__name__}:create_local_dispatcher",
    }

    def __init__(
        self,
        storage_dir: str,
        *nodes: ResourceProfile,
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        """Create a cluster that is not started. *storage_dir*: the cluster's storage, which no
        other cluster uses. *nodes*: the resources for workers of each node; by default one node of
        4 CPU and 8 GiB."""
        super().__init__(storage_dir, *nodes, configuration=configuration)
        self.workers.factory = f"{__name__}:create_local_task_executor"

    def processes(self, kind: str = "") -> list[str]:
        """Return the names of the running processes that begin with *kind*, in order of their
        start."""
        return [name for name in self.network.services if name.startswith(kind)]

    def crash(self, kind: str) -> str:
        """Crash the first process whose name begins with *kind*, as by SIGKILL; return its name."""
        name = self.processes(kind)[0]
        self.network.crash(name)
        return name

    def crash_all(self, kind: str) -> None:
        """Crash all processes whose names begin with *kind*, as by SIGKILL."""
        for name in self.processes(kind):
            self.network.crash(name)
