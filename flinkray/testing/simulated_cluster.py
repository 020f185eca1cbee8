"""Runs a whole cluster in a simulation: real masters and TaskExecutors, each in its own process.

The endpoints are those of a real cluster; their processes, nodes, network and storage are simulated
(:mod:`flinkray.testing.simulation`), and so is Ray's work for a ResourceManager. Spark drivers
follow a script (:mod:`flinkray.testing.scripted_spark_driver`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.task_executor import NodeAddress, TaskExecutorArguments
from flinkray.actors.gateways.task_process import TaskProcessArguments
from flinkray.actors.resource_manager.endpoint import lead_resource_manager
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.actors.task_executor.host import TaskExecutorHost
from flinkray.actors.task_executor.task_runners import RunnerTask, TaskRunner
from flinkray.actors.task_process.code_failure import CodeFailure
from flinkray.actors.task_process.endpoint import TaskProcess, create_task_process
from flinkray.actors.task_process.task_runtime import TaskRuntime
from flinkray.core.errors import RpcConnectionError, RpcError
from flinkray.core.ids import JobID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.local_cluster.worker_nodes import GroupRecord, WorkerNodes, WorkerNodesDriver
from flinkray.rpc import EndpointSpec, RpcEndpoint
from flinkray.scheduler.graph.job_graph import SPARK
from flinkray.streaming.network import NetworkEnvironment, NetworkSettings, Signal
from flinkray.testing.cluster_under_test import ClusterUnderTest
from flinkray.testing.function_tasks import FunctionTaskProcess
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.simulation import SimulatedProcess, SimulatedRpcService, Simulation
from flinkray.testing.simulation.data_links import SteppedTimers, SteppedTransport
from flinkray.testing.simulation.errors import ProcessDied
from flinkray.testing.simulation.machines import Node
from flinkray.testing.simulation.seeds import stream
from flinkray.testing.simulation.step_threads import StepSignal, StepThread, StepThreads

_NODE = ResourceProfile(4, 8 * 2**30)


class SimulatedCluster(ClusterUnderTest):
    """A simulated cluster. The test's scenario is its client, and must run in a simulated process.
    Masters run on any node; workers run on nodes with enough room."""

    masters: ClassVar[dict[str, str]] = {
        "Dispatcher": MiniCluster.masters["Dispatcher"],
        "ResourceManager": f"{__name__}:create_simulated_resource_manager",
    }
    """The factory of each master."""

    def __init__(
        self,
        simulation: Simulation,
        *nodes: ResourceProfile,
        configuration: Mapping[str, str] | None = None,
        storage_dir: str = "simulated://shared/cluster",
    ) -> None:
        """Prepare a cluster of simulated processes; :meth:`start` starts it. *nodes*: the resources
        that each node of the simulation has for workers; by default 4 CPU and 8 GiB. If the
        simulation has fewer nodes, nodes are added to it."""
        self.simulation = simulation
        self.network = simulation.network
        self.workers = SimulatedWorkers(simulation, *(nodes or [_NODE] * len(simulation.nodes)))
        self.workers.factory = f"{__name__}:create_simulated_task_executor"
        self.arguments = ClusterArguments("simulated", dict(configuration or {}), storage_dir)
        simulation.belongings[SimulatedCluster] = self

    @classmethod
    def current(cls) -> SimulatedCluster:
        """Return the cluster in whose simulation the running process is. Raises KeyError: there is
        none."""
        cluster: SimulatedCluster = Simulation.current().belongings[SimulatedCluster]
        return cluster

    async def start(self, within: float = 60.0) -> None:
        """Start the masters. If faults prevent a start, it is tried again for at most *within*
        virtual seconds."""
        self.client: SimulatedRpcService = self.simulation.service("client")
        for kind, factory in self.masters.items():
            await self._start_master(
                EndpointSpec(kind, kind, factory, self.arguments, detached=True, max_restarts=-1),
                within,
            )
        self._services = ClusterServices.create(self.client, self.arguments)

    async def _start_master(self, spec: EndpointSpec, within: float) -> str:

        async def start() -> str:
            return await self.client.spawn(spec)

        what = f"the start of the {spec.kind}"
        return await self.simulation.eventually(
            start, within=within, what=what, retry_on=(RpcError,)
        )

    async def dispatcher(self) -> DispatcherGateway:
        return await self._services.connect_to_dispatcher()

    def processes(self, kind: str = "") -> list[str]:
        """Return the names of the living processes that begin with *kind*, in order of their start.
        The process of the scenario is left out."""
        return [process.name for process in self.simulation.processes(kind)]

    def crash(self, kind: str) -> str:
        """Crash the first process whose name begins with *kind*, as by SIGKILL; return its name."""
        name = self.processes(kind)[0]
        self.simulation.crash(name)
        return name

    def leftovers_of(self, job_id: JobID) -> list[str]:
        """Return the names of the processes and worker groups of the job that still exist."""
        groups = [g.group.name for g in self.workers.groups.values() if g.group.is_own_of(job_id)]
        return [name for name in self.processes() if job_id.hex() in name] + groups


class SimulatedWorkers(WorkerNodes):
    """The worker nodes of a simulation: each appears and disappears with a simulated node."""

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
        else:  # the loss is noticed after a while
            delay = self._simulation.durations.draw("node_death_noticed")
            self._simulation.scheduler.at(
                self._simulation.now + delay, lambda: self._node_is_missed(node)
            )

    def _node_is_missed(self, node: Node) -> None:
        self.node_lost(node.name)
        if node.is_up:
            self.node_back(node.name)


class SimulatedResourceManagerDriver(WorkerNodesDriver):
    """Starts and ends simulated workers for a ResourceManager. Each request takes virtual time
    before it takes effect, and again before its answer comes."""

    def __init__(self, rpc_service: SimulatedRpcService, cluster: ClusterArguments) -> None:
        simulated = SimulatedCluster.current()
        super().__init__(rpc_service, cluster, simulated.workers)
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
    """Create a ResourceManager whose workers are simulated processes."""
    driver = SimulatedResourceManagerDriver(rpc_service, arguments)
    return await lead_resource_manager(rpc_service, arguments, driver)


class SimulatedTask(TaskRunner):
    """Runs Spark's tasks in simulated TaskExecutors: a task occupies its slot until it is
    cancelled. Cleaning up after a job takes virtual time."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    async def run(self, task: RunnerTask) -> None:
        await asyncio.get_running_loop().create_future()

    async def clean_up(self, job_id: JobID) -> None:
        await asyncio.sleep(self._simulation.durations.draw("provider"))


async def create_simulated_task_executor(
    rpc_service: SimulatedRpcService, arguments: TaskExecutorArguments
) -> TaskExecutor:
    """Create a TaskExecutor whose tasks of Spark stages only occupy their slots."""
    services = ClusterServices.create(rpc_service, arguments.cluster)
    runner = SimulatedTask(Simulation.current())
    host = simulated_host(rpc_service.process)
    return TaskExecutor(
        rpc_service,
        services,
        arguments,
        host,
        {SPARK: runner},
        task_process_factory="flinkray.testing.simulated_cluster:create_simulated_task_process",
    )


def simulated_host(process: SimulatedProcess) -> TaskExecutorHost:
    """Return the description of a TaskExecutor's host and process, for a TaskExecutor in a
    simulated process. The number of *process* becomes the pid."""
    return TaskExecutorHost(NodeAddress(process.node, "127.0.0.1"), process.number, None)


_GIVES_WAY = 0.2
"""The fraction of a task's steps before which other threads get a turn."""


class SimulatedClock:
    """The clock of the simulated threads of a process; a wait takes virtual time."""

    def __init__(self, service: SimulatedRpcService) -> None:
        self.time = service.clock.time
        self.monotonic = service.clock.monotonic

    def wait(self, seconds: float, woken: threading.Event) -> None:
        thread = StepThread.current()
        assert thread is not None
        thread.wait(seconds)


class SteppedCode:
    """Runs a function in a simulated thread of a simulated process."""

    def __init__(
        self, process: SimulatedProcess, threads: StepThreads, function: Callable[[], object]
    ) -> None:
        self.returned: asyncio.Future[CodeFailure | None] = process.create_future()
        self._function = function
        threads.begin(self._run)

    def interrupt(self) -> None:
        """Do nothing: when a task is cancelled, each wait of its function ends anyway."""

    def _run(self) -> None:
        failure: CodeFailure | None = None
        try:
            self._function()
        except ProcessDied:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raised
            failure = CodeFailure.of(error)
        if not self.returned.done():
            self.returned.set_result(failure)


class SimulatedTaskRuntime(TaskRuntime):
    """Provides threads, signals, time and network to the tasks of one simulated task process."""

    def __init__(self, service: SimulatedRpcService) -> None:
        self.clock = SimulatedClock(service)
        self._service = service
        self._random = stream(service.simulation.seed, "threads", service.incarnation)
        self._threads = StepThreads(service.process, self._random)
        self._is_closed = False

    def run(self, function: Callable[[], object], name: str) -> SteppedCode:
        return SteppedCode(self._service.process, self._threads, function)

    def signal(self, network: NetworkEnvironment | None = None) -> Signal:
        return StepSignal()

    def between_steps(self, check: Callable[[], None]) -> Callable[[], None]:
        def check_in_turn() -> None:
            if self._random.random() < _GIVES_WAY:
                thread = StepThread.current()
                assert thread is not None
                thread.give_way()
            check()

        return check_in_turn

    def submit(self, work: Callable[[], None]) -> None:
        if not self._is_closed:
            self._threads.begin(work)

    def network(self, settings: NetworkSettings) -> NetworkEnvironment:
        service, incarnation = self._service, f"data of {self._service.incarnation}"
        return NetworkEnvironment(
            service.process_name,
            b"",
            settings=settings,
            incarnation=incarnation,
            timers=SteppedTimers(service),
            transport=partial(SteppedTransport, service, incarnation),
        )

    def abandon(self, work: Callable[[], None]) -> None:
        """Do nothing: the threads of an ended process never run again, and its connections are
        broken."""

    def close(self) -> None:
        self._is_closed = True


async def create_simulated_task_process(
    rpc_service: SimulatedRpcService, arguments: TaskProcessArguments
) -> TaskProcess:
    """Create a task process whose stream tasks run in simulated threads, and which also runs
    functions of tests."""
    return await create_task_process(
        rpc_service, arguments, SimulatedTaskRuntime(rpc_service), FunctionTaskProcess
    )
