"""What running stream tasks have read and written, asked for on the way down to their processes."""

from __future__ import annotations

import asyncio

from flinkray.actors.gateways import TaskExecutorGateway
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.gateways.task_process import TaskProcessGateway
from flinkray.actors.job_master.running_io_metrics import RunningIOMetrics
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.ids import (
    ResourceID,
    WorkerGroupId,
)
from flinkray.rpc import (
    FencedRpcEndpoint,
    HeartbeatSettings,
    LocalNetwork,
    LocalRpcService,
)
from flinkray.scheduler.shared.io_metrics import IOMetrics, TaskIOMetrics
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.task_executor_under_test import JOB, MASTER
from tests.actors.task_process_doubles import TasksInDoubles, attempt, doubles

METRICS = IOMetrics(10, 20, 640, 1280, 5, 15, 80)


def measured(*subtasks: int) -> tuple[TaskIOMetrics, ...]:
    return tuple(TaskIOMetrics(attempt(subtask), METRICS) for subtask in subtasks)


# --- a TaskExecutor and its processes -------------------------------------------------------------


@on_virtual_time
async def test_each_process_is_asked_once_for_the_io_metrics_of_all_its_tasks() -> None:
    processes = doubles(2)
    executor = TasksInDoubles(slots_per_process=2)
    await executor.run_four()
    for place, process in enumerate(processes):
        answer = measured(2 * place, 2 * place + 1)
        process.on(TaskProcessGateway.request_io_metrics).returning(answer)

    found = await executor.tasks.io_metrics(JOB)

    assert found == measured(0, 1, 2, 3)
    assert [p.calls_of(TaskProcessGateway.request_io_metrics) for p in processes] == [[(JOB,)]] * 2


@on_virtual_time
async def test_io_metrics_leave_out_tasks_of_a_process_that_does_not_answer() -> None:
    answers, hangs = doubles(2)
    executor = TasksInDoubles(slots_per_process=2)
    await executor.run_four()
    answers.on(TaskProcessGateway.request_io_metrics).returning(measured(0, 1))
    never = asyncio.get_running_loop().create_future()
    hangs.on(TaskProcessGateway.request_io_metrics).calling(lambda _: never)

    assert await executor.tasks.io_metrics(JOB) == measured(0, 1)


# --- a JobMaster and its TaskExecutors ------------------------------------------------------------


@on_virtual_time
async def test_io_metrics_of_other_task_executors_are_known_when_some_do_not_answer() -> None:
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
