"""The Python tasks of a TaskExecutor, in processes that only record."""

from __future__ import annotations

from collections.abc import Callable

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.task_executor import TaskExecutorArguments
from flinkray.actors.gateways.task_process import TaskProcessArguments, TaskProcessGateway
from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.actors.shared.deployment_parts import DeployedParts
from flinkray.actors.task_executor.python_tasks import PythonTasks
from flinkray.actors.task_executor.tasks_of_kind import AcceptedTask, AcceptedTasks
from flinkray.core import options
from flinkray.core.config import ReadableConfig
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    JobVertexID,
    WorkerGroupId,
)
from flinkray.core.job_options import TASK_CANCELLATION_TIMEOUT
from flinkray.rpc import (
    LocalNetwork,
    LocalRpcService,
    RpcEndpoint,
    RpcService,
)
from flinkray.scheduler.graph.job_graph import STREAM, Invokable
from flinkray.scheduler.shared.tasks import (
    JobInformation,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    VertexInformation,
    attempt_of,
)
from flinkray.testing import TestingGateway
from tests.actors.resource_cluster import GRAPH, ONE_CPU, number
from tests.actors.task_executor_under_test import JOB, MASTER, NAME

VERTEX = number(JobVertexID, 1)

_processes: list[TestingGateway[TaskProcessGateway]] = []
"""In the order in which they are started."""


def attempt(subtask: int) -> ExecutionAttemptID:
    return ExecutionAttemptID(GRAPH, ExecutionVertexID(VERTEX, subtask), 0)


def doubles(count: int) -> list[TestingGateway[TaskProcessGateway]]:
    """The processes that will be started from now on."""
    _processes.clear()
    _processes.extend(TestingGateway(TaskProcessGateway).lenient() for _ in range(count))
    return _processes


def create_double(rpc_service: RpcService, arguments: TaskProcessArguments) -> RpcEndpoint:
    number = int(rpc_service.process_name.split("-")[1])
    return _processes[number - 1].create_endpoint(rpc_service, "taskprocess")


class TasksInDoubles:
    """Those of a TaskExecutor."""

    def __init__(
        self,
        *,
        slots_per_process: int,
        on_reports: Callable[[list[TaskReport]], None] = lambda reports: None,
    ) -> None:
        endpoint = RpcEndpoint(LocalRpcService("executor", LocalNetwork()), "endpoint")
        endpoint.start()
        self.endpoint = endpoint
        arguments = TaskExecutorArguments(
            resource_id=NAME,
            worker_group=WorkerGroupId("g"),
            bundle_index=0,
            total_profile=ONE_CPU,
            number_of_slots=4,
            cluster=ClusterArguments("test", {}, "nowhere"),
        )
        self._parts = DeployedParts()
        self.tasks = PythonTasks(
            endpoint,
            arguments,
            ReadableConfig(
                {
                    options.SLOTS_PER_TASK_PROCESS.key: str(slots_per_process),
                    options.PRESTARTED_TASK_PROCESSES.key: "0",
                    TASK_CANCELLATION_TIMEOUT.key: "60 s",
                }
            ),
            self._parts,
            factory=f"{__name__}:create_double",
            on_reports=on_reports,
        )

    def begin_four(self) -> None:
        """Of them, subtask i is in slot i."""
        information = VertexInformation(VERTEX, "v", 4, 128, Invokable(STREAM, b""), (), ())
        deployments = TaskDeployments(
            JOB,
            GRAPH,
            0,
            (SharedPart(0, 0, JobInformation(JOB, "job")), SharedPart(1, 0, information)),
            tuple(TaskDeployment(1, i, 0, number(AllocationID, i)) for i in range(4)),
        )
        self._parts.add(deployments)
        accepted = [
            AcceptedTask(attempt_of(GRAPH, information, task), task, information, i)
            for i, task in enumerate(deployments.tasks)
        ]
        self.tasks.start(AcceptedTasks(deployments, accepted, MASTER, None))

    async def run_four(self) -> None:
        """And return when the processes have them."""
        self.begin_four()
        for process in _processes:
            await process.wait_for(TaskProcessGateway.run_tasks)
