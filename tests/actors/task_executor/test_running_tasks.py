"""Tasks that a TaskExecutor runs itself: how they end, and what is told of it."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.actors.task_executor.running_tasks import RunningTasks
from flinkray.actors.task_executor.task_runners import RunnerTask, TaskRunner
from flinkray.actors.task_executor.tasks_of_kind import AcceptedTask, AcceptedTasks
from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    JobID,
    JobMasterId,
    JobVertexID,
)
from flinkray.rpc import LocalRpcService, RpcEndpoint
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.graph.job_graph import Invokable
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import (
    TaskDeployment,
    TaskDeployments,
    TaskExecutionState,
    VertexInformation,
)
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import GRAPH, number

JOB = number(JobID, 1)
MASTER = number(JobMasterId, 1)
SLOT = number(AllocationID, 1)
VERTEX = number(JobVertexID, 1)
ATTEMPT = ExecutionAttemptID(GRAPH, ExecutionVertexID(VERTEX, 0), 0)
KIND = "counting"


class Runner(TaskRunner):
    """Runs until it is told how to end, and counts what it cleans up."""

    def __init__(self) -> None:
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cleaned_up: list[JobID] = []

    async def run(self, task: RunnerTask) -> None:
        await self.end

    async def clean_up(self, job_id: JobID) -> None:
        self.cleaned_up.append(job_id)


class Bench:
    """One task that runs."""

    def __init__(self) -> None:
        self.endpoint = RpcEndpoint(LocalRpcService(), "executor")
        self.endpoint.start()
        self.runner = Runner()
        self.told: asyncio.Queue[TaskExecutionState] = asyncio.Queue()
        self.answers: list[TaskReport] = []
        """To checkpoints."""
        self.tasks = RunningTasks(self.endpoint, {KIND: self.runner}, self._tell)
        deployment = TaskDeployment(1, 0, 0, SLOT)
        vertex = VertexInformation(VERTEX, "v", 1, 128, Invokable(KIND, b""), (), ())
        self.tasks.start(
            AcceptedTasks(
                TaskDeployments(JOB, GRAPH, 0, (), (deployment,)),
                [AcceptedTask(ATTEMPT, deployment, vertex, 0)],
                MASTER,
                None,
            )
        )

    def _tell(self, reports: list[TaskReport]) -> None:
        for report in reports:
            if isinstance(report, TaskExecutionState):
                self.told.put_nowait(report)
            else:
                self.answers.append(report)

    async def began(self) -> None:
        """The runner has the task."""
        await asyncio.sleep(0)


@on_virtual_time
async def test_running_task_that_is_told_to_fail_ends_as_failed_with_the_first_cause() -> None:
    bench = Bench()
    await bench.began()
    bench.tasks.fail(ATTEMPT, "nobody knows of it")
    bench.tasks.fail(ATTEMPT, "again")
    state = await bench.told.get()
    assert (state.state, state.failure) == (ExecutionState.FAILED, "nobody knows of it")
    bench.tasks.fail(ATTEMPT, "it is over")
    bench.tasks.cancel((ATTEMPT,))
    assert bench.told.empty()


@on_virtual_time
async def test_a_task_that_is_being_cancelled_does_not_fail() -> None:
    bench = Bench()
    await bench.began()
    bench.tasks.cancel((ATTEMPT,))
    bench.tasks.fail(ATTEMPT, "nobody knows of it")
    state = await bench.told.get()
    assert (state.state, state.failure) == (ExecutionState.CANCELED, None)


@on_virtual_time
async def test_task_in_a_separate_runner_declines_checkpoints_while_it_runs() -> None:
    bench = Bench()
    await bench.began()
    trigger = TriggerCheckpoint(
        3, 1000, CheckpointProperties(SnapshotKind.CHECKPOINT), "nowhere", 0, is_whole=False
    )
    for order in (trigger, CheckpointAborted(3, 0), CheckpointCompleted(3)):
        bench.tasks.order_checkpoint(order, (ATTEMPT,))
    (declined,) = bench.answers
    assert isinstance(declined, DeclineCheckpoint)
    assert (declined.job_id, declined.checkpoint_id, declined.attempt_id) == (JOB, 3, ATTEMPT)
    assert declined.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY

    bench.runner.end.set_result(None)
    await bench.told.get()
    bench.tasks.order_checkpoint(trigger, (ATTEMPT,))
    assert bench.answers == [declined], "its end was told"


@pytest.mark.parametrize(
    ("error", "state"),
    [(None, ExecutionState.FINISHED), (FlinkRayError("no Java"), ExecutionState.FAILED)],
)
@on_virtual_time
async def test_task_ends_with_the_outcome_of_its_runner(
    error: FlinkRayError | None, state: ExecutionState
) -> None:
    bench = Bench()
    await bench.began()
    if error is None:
        bench.runner.end.set_result(None)
    else:
        bench.runner.end.set_exception(error)
    told = await bench.told.get()
    assert (told.job_id, told.attempt_id, told.state) == (JOB, ATTEMPT, state)
    assert told.failure == (None if error is None else "no Java")


@on_virtual_time
async def test_used_slot_is_cleaned_up_once_by_the_runners_of_its_tasks() -> None:
    bench = Bench()
    await bench.tasks.clean_up(number(AllocationID, 2), JOB)
    assert bench.runner.cleaned_up == []
    await bench.tasks.clean_up(SLOT, JOB)
    await bench.tasks.clean_up(SLOT, JOB)
    assert bench.runner.cleaned_up == [JOB]
    assert await bench.tasks.io_metrics(JOB) == ()
