"""A whole cluster in a simulation: real masters and TaskExecutors, each in a process of its own.

The endpoints are those of a real cluster; their processes, nodes, network and storage are simulated
(:mod:`flinkray.testing.simulation`), and so is what Ray does for a ResourceManager.  Spark drivers
follow a script (:mod:`flinkray.testing.scripted_spark_driver`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import ClassVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.task_executor_arguments import NodeAddress, TaskExecutorArguments
from flinkray.actors.resource_manager.endpoint import lead_resource_manager
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.actors.task_executor.host import TaskExecutorHost
from flinkray.actors.task_executor.task_runners import RunnerTask, TaskRunner
from flinkray.core.errors import RpcConnectionError, RpcError
from flinkray.core.ids import JobID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import EndpointSpec, RpcEndpoint
from flinkray.scheduler.graph.job_graph import SPARK
from flinkray.testing.cluster_under_test import ClusterUnderTest
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.simulation import SimulatedProcess, SimulatedRpcService, Simulation
from flinkray.testing.simulation.machines import Node
from flinkray.testing.worker_nodes import GroupRecord, WorkerNodes
from flinkray.testing.worker_nodes_driver import WorkerNodesDriver

_NODE = ResourceProfile(4, 8 * 2**30)


class SimulatedCluster(ClusterUnderTest):
    """The scenario is its client, and must run in a process of the simulation.

    The masters are placed anywhere, workers by the room that their nodes have.
    """

    masters: ClassVar[dict[str, str]] = {
        "Dispatcher": MiniCluster.masters["Dispatcher"],
        "ResourceManager": f"{__name__}:create_simulated_resource_manager",
    }
    """Their factories."""

    def __init__(
        self,
        simulation: Simulation,
        *nodes: ResourceProfile,
        configuration: Mapping[str, str] | None = None,
        storage_dir: str = "simulated://shared/cluster",
    ) -> None:
        """*nodes*: what the simulation's nodes have for workers, each 4 CPU and 8 GiB if none is
        named; nodes that are missing are added."""
        self.simulation = simulation
        self.network = simulation.network
        self.workers = SimulatedWorkers(simulation, *(nodes or [_NODE] * len(simulation.nodes)))
        self.task_executor_factory = f"{__name__}:create_simulated_task_executor"
        self.arguments = ClusterArguments("simulated", dict(configuration or {}), storage_dir)
        simulation.belongings[SimulatedCluster] = self

    @classmethod
    def current(cls) -> SimulatedCluster:
        """That of the process that runs.  Raises KeyError when its simulation has none."""
        cluster: SimulatedCluster = Simulation.current().belongings[SimulatedCluster]
        return cluster

    async def start(self, within: float = 60.0) -> None:
        """Start the masters; tried again, at most for *within* virtual seconds, when faults hinder
        it."""
        self.client: SimulatedRpcService = self.simulation.service("client")
        for kind, factory in self.masters.items():
            await self._start_master(
                EndpointSpec(kind, kind, factory, self.arguments, detached=True, max_restarts=-1),
                within,
            )
        self._services = ClusterServices.create(self.client, self.arguments)

    async def _start_master(self, spec: EndpointSpec, within: float) -> str:
        """Returns its address."""

        async def start() -> str:
            return await self.client.spawn(spec)

        what = f"the start of the {spec.kind}"
        return await self.simulation.eventually(
            start, within=within, what=what, retry_on=(RpcError,)
        )

    async def dispatcher(self) -> DispatcherGateway:
        return await self._services.connect_to_dispatcher()

    def processes(self, kind: str = "") -> list[str]:
        """Names of the processes of a kind that live, in order of their start; without our own."""
        return [process.name for process in self.simulation.processes(kind)]

    def crash(self, kind: str) -> str:
        """End the first process of a kind as by SIGKILL; returns its name."""
        name = self.processes(kind)[0]
        self.simulation.crash(name)
        return name

    def leftovers_of(self, job_id: JobID) -> list[str]:
        """Processes and worker groups that the job has now."""
        groups = [g.group.name for g in self.workers.groups.values() if g.group.is_own_of(job_id)]
        return [name for name in self.processes() if job_id.hex() in name] + groups


class SimulatedWorkers(WorkerNodes):
    """Those of a simulation; they come and go with its nodes."""

    def __init__(self, simulation: Simulation, *nodes: ResourceProfile) -> None:
        super().__init__()
        self._simulation = simulation
        for total in nodes:
            self.add_node(total)
        simulation.machines.bundles = self._node_of_bundle
        simulation.machines.listeners.append(self._node_changed)

    def _new_node_id(self) -> str:
        machines = self._simulation.machines
        unused = machines.nodes[len(self.nodes) :]
        return (unused[0] if unused else machines.add()).name

    def _is_alive(self, process_name: str) -> bool:
        return self._simulation.supervisor.has(process_name)

    def _end_processes(self, record: GroupRecord) -> None:
        self._simulation.supervisor.remove_group(record.group.group_id)

    def _node_of_bundle(self, group: WorkerGroupId, index: int) -> str | None:
        node = self.node_of(group, index)
        return None if node is None else node.node_id

    def _node_changed(self, node: Node) -> None:
        if node.is_up:
            self.node_back(node.name)
        else:  # which is found out after a while
            delay = self._simulation.durations.draw("node_death_noticed")
            self._simulation.scheduler.at(
                self._simulation.now + delay, lambda: self._node_is_missed(node)
            )

    def _node_is_missed(self, node: Node) -> None:
        self.node_lost(node.name)
        if node.is_up:
            self.node_back(node.name)


class SimulatedResourceManagerDriver(WorkerNodesDriver):
    """What it asks for takes a while, before and after it has happened."""

    def __init__(self, rpc_service: SimulatedRpcService, cluster: ClusterArguments) -> None:
        simulated = SimulatedCluster.current()
        factory = simulated.task_executor_factory
        super().__init__(rpc_service, cluster, simulated.workers, factory)
        self._simulation = simulated.simulation
        self._process = rpc_service.process

    async def _take_time(self) -> None:
        if self._process.is_banished:
            raise RpcConnectionError(f"{self._process.name} is not served: it is taken for dead")
        await asyncio.sleep(self._simulation.durations.draw("provider"))

    def _waker(self, changed: asyncio.Future[None]) -> Callable[[], None]:
        wake = super()._waker(changed)
        return lambda: self._process.post(self._simulation.durations.draw("provider"), wake)


async def create_simulated_resource_manager(
    rpc_service: SimulatedRpcService, arguments: ClusterArguments
) -> RpcEndpoint:
    """Factory of a ResourceManager on the workers of its simulation."""
    driver = SimulatedResourceManagerDriver(rpc_service, arguments)
    return await lead_resource_manager(rpc_service, arguments, driver)


class SimulatedTask(TaskRunner):
    """Holds a slot until it is cancelled; cleaning up takes a while."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    async def run(self, task: RunnerTask) -> None:
        await asyncio.get_running_loop().create_future()

    async def clean_up(self, job_id: JobID) -> None:
        await asyncio.sleep(self._simulation.durations.draw("provider"))


async def create_simulated_task_executor(
    rpc_service: SimulatedRpcService, arguments: TaskExecutorArguments
) -> TaskExecutor:
    """Factory of a TaskExecutor that runs simulated tasks."""
    services = ClusterServices.create(rpc_service, arguments.cluster)
    runner = SimulatedTask(Simulation.current())
    host = simulated_host(rpc_service.process)
    return TaskExecutor(
        rpc_service,
        services,
        arguments,
        host,
        {SPARK: runner},
        task_process_factory="flinkray.testing.simulated_tasks:create_simulated_task_process",
    )


def simulated_host(process: SimulatedProcess) -> TaskExecutorHost:
    """Where a simulated process runs; its number is its pid."""
    return TaskExecutorHost(NodeAddress(process.node, "127.0.0.1"), process.number, None)
