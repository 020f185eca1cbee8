"""What running stream tasks have read and written, asked for on the way down to their processes."""

from __future__ import annotations

import asyncio

from flinkray.actors.gateways import TaskExecutorGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.gateways.task_executor_arguments import TaskExecutorArguments
from flinkray.actors.gateways.task_process import TaskProcessArguments, TaskProcessGateway
from flinkray.actors.job_master.running_io_metrics import RunningIOMetrics
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.actors.shared.deployment_parts import DeployedParts
from flinkray.actors.task_executor.python_tasks import PythonTasks
from flinkray.actors.task_executor.task_processes import TaskProcesses
from flinkray.actors.task_executor.tasks_of_kind import AcceptedTask
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    JobVertexID,
    ResourceID,
    WorkerGroupId,
)
from flinkray.rpc import (
    FencedRpcEndpoint,
    HeartbeatSettings,
    LocalNetwork,
    LocalRpcService,
    RpcEndpoint,
    RpcService,
)
from flinkray.scheduler.graph.job_graph import STREAM, Invokable
from flinkray.scheduler.shared.io_metrics import IOMetrics, TaskIOMetrics
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.tasks import (
    JobInformation,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    VertexInformation,
    attempt_of,
)
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import GRAPH, ONE_CPU, number
from tests.actors.task_executor_under_test import JOB, MASTER, NAME

VERTEX = number(JobVertexID, 1)
METRICS = IOMetrics(10, 20, 640, 1280, 5, 15, 80)


def attempt(subtask: int) -> ExecutionAttemptID:
    return ExecutionAttemptID(GRAPH, ExecutionVertexID(VERTEX, subtask), 0)


def measured(*subtasks: int) -> tuple[TaskIOMetrics, ...]:
    return tuple(TaskIOMetrics(attempt(subtask), METRICS) for subtask in subtasks)


# --- a TaskExecutor and its processes -------------------------------------------------------------

_processes: list[TestingGateway[TaskProcessGateway]] = []
"""In the order in which they are started."""


def create_double(rpc_service: RpcService, arguments: TaskProcessArguments) -> RpcEndpoint:
    number = int(rpc_service.process_name.split("-")[1])
    return _processes[number - 1].create_endpoint(rpc_service, "taskprocess")


def python_tasks(
    endpoint: RpcEndpoint, parts: DeployedParts, slots_per_process: int
) -> PythonTasks:
    arguments = TaskExecutorArguments(
        resource_id=NAME,
        worker_group=WorkerGroupId("g"),
        bundle_index=0,
        total_profile=ONE_CPU,
        number_of_slots=4,
        cluster=ClusterArguments("test", {}, "nowhere"),
    )
    return PythonTasks(
        endpoint,
        lambda on_died: TaskProcesses(
            endpoint,
            arguments,
            slots_per_process=slots_per_process,
            on_died=on_died,
            factory=f"{__name__}:create_double",
        ),
        parts,
        cancellation_timeout=60.0,
        on_reports=lambda states: None,
    )


async def run_four(tasks: PythonTasks, parts: DeployedParts) -> None:
    """Of them, subtask i is in slot i."""
    information = VertexInformation(VERTEX, "v", 4, 128, Invokable(STREAM, b""), (), ())
    deployments = TaskDeployments(
        JOB,
        GRAPH,
        0,
        (SharedPart(0, 0, JobInformation(JOB, "job")), SharedPart(1, 0, information)),
        tuple(TaskDeployment(1, i, 0, number(AllocationID, i)) for i in range(4)),
    )
    parts.add(deployments)
    accepted = [
        AcceptedTask(attempt_of(GRAPH, information, task), task, information, i)
        for i, task in enumerate(deployments.tasks)
    ]
    tasks.start(deployments, accepted, MASTER, None)
    for process in _processes:
        await process.wait_for(TaskProcessGateway.run_tasks)


def doubles(count: int) -> list[TestingGateway[TaskProcessGateway]]:
    _processes.clear()
    _processes.extend(TestingGateway(TaskProcessGateway).lenient() for _ in range(count))
    return _processes


@on_virtual_time
async def test_each_process_is_asked_once_for_all_its_tasks() -> None:
    endpoint = RpcEndpoint(LocalRpcService("executor", LocalNetwork()), "endpoint")
    endpoint.start()
    processes = doubles(2)
    parts = DeployedParts()
    tasks = python_tasks(endpoint, parts, slots_per_process=2)
    await run_four(tasks, parts)
    for place, process in enumerate(processes):
        answer = measured(2 * place, 2 * place + 1)
        process.on(TaskProcessGateway.request_io_metrics).returning(answer)

    found = await tasks.io_metrics(JOB)

    assert found == measured(0, 1, 2, 3)
    assert [p.calls_of(TaskProcessGateway.request_io_metrics) for p in processes] == [[(JOB,)]] * 2


@on_virtual_time
async def test_tasks_of_a_process_that_does_not_answer_stay_unknown() -> None:
    endpoint = RpcEndpoint(LocalRpcService("executor", LocalNetwork()), "endpoint")
    endpoint.start()
    answers, hangs = doubles(2)
    parts = DeployedParts()
    tasks = python_tasks(endpoint, parts, slots_per_process=2)
    await run_four(tasks, parts)
    answers.on(TaskProcessGateway.request_io_metrics).returning(measured(0, 1))
    never = asyncio.get_running_loop().create_future()
    hangs.on(TaskProcessGateway.request_io_metrics).calling(lambda _: never)

    assert await tasks.io_metrics(JOB) == measured(0, 1)


# --- a JobMaster and its TaskExecutors ------------------------------------------------------------


@on_virtual_time
async def test_task_executors_that_are_gone_or_refuse_or_hang_leave_the_others_known() -> None:
    network = LocalNetwork()
    job_master = FencedRpcEndpoint(LocalRpcService("master", network), "jobmaster", MASTER)
    job_master.start()
    connections = TaskExecutorConnections(
        job_master,
        JOB,
        HeartbeatSettings(1000.0, 5000.0),
        allocations=lambda _: (),
        on_lost=lambda *_: None,
    )
    connections.start()
    executors = {
        name: TestingGateway(TaskExecutorGateway).lenient() for name in ("first", "past", "hangs")
    }
    for name, executor in executors.items():
        executor.start(LocalRpcService(name, network), "taskexecutor")
        group = WorkerGroupId("g")
        where = WorkerLocation(ResourceID(name), executor.address, "n", "127.0.0.1", 1, group, 0)
        await connections.add(where)
    request = TaskExecutorGateway.request_io_metrics
    never = asyncio.get_running_loop().create_future()
    executors["first"].on(request).returning(measured(0, 1))
    executors["past"].on(request).raising(TaskError("it is led by another JobMaster"))
    executors["hangs"].on(request).calling(lambda *_: never)

    metrics = RunningIOMetrics(job_master, JOB, connections)
    found = await metrics.of([ResourceID(name) for name in (*executors, "gone")])

    assert found == {attempt(0): METRICS, attempt(1): METRICS}
    assert executors["first"].calls_of(request) == [(JOB, MASTER)]
