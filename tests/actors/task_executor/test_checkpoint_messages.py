"""What passes through one TaskExecutor about checkpoints; its JobMasters only record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from flinkray.actors.gateways import JobMasterGateway, TaskExecutorGateway
from flinkray.actors.gateways.task_process import TaskProcessListenerGateway
from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.actors.task_process.endpoint import TaskProcess
from flinkray.checkpoint.handles import InlineState, OperatorStateHandle, TaskState
from flinkray.checkpoint.handles import OperatorSubtaskState as SubtaskState
from flinkray.core.ids import ExecutionAttemptID, JobVertexID
from flinkray.rpc import LocalRpcService
from flinkray.rpc.wire.envelope import MAX_FRAME_SIZE
from flinkray.scheduler.checkpoints.errors import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint, DeclineCheckpoint
from flinkray.scheduler.graph.job_graph import PYTHON, Invokable
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import (
    JobInformation,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
)
from flinkray.spark.user_code import dump_function
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import GRAPH, number
from tests.actors.task_executor_under_test import JOB, MASTER, A, B, Bench


async def waits(context: Any) -> None:
    await asyncio.get_running_loop().create_future()


VERTEX = VertexInformation(
    number(JobVertexID, 1), "v", 1, 128, Invokable(PYTHON, dump_function(waits)), (), ()
)
TASK = TaskDeployment(1, 0, 0, A)
ATTEMPT = attempt_of(GRAPH, VERTEX, TASK)


def acknowledgement(checkpoint_id: int, state: TaskState | None = None) -> AcknowledgeCheckpoint:
    return AcknowledgeCheckpoint(JOB, checkpoint_id, ATTEMPT, state)


class Heard:
    """What a JobMaster hears of tasks; it answers when it may."""

    def __init__(self, master: TestingGateway[JobMasterGateway]) -> None:
        self.all: list[TaskReport] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._changed = asyncio.Event()
        master.on(JobMasterGateway.tasks_reported).calling(self._add)

    async def _add(self, reports: tuple[TaskReport, ...]) -> None:
        self.all += reports
        self._changed.set()
        await self.may_answer.wait()

    async def until(self, number: int) -> list[TaskReport]:
        while len(self.all) < number:
            self._changed.clear()
            await self._changed.wait()
        return self.all


async def run_task(bench: Bench) -> tuple[TaskExecutorGateway, Heard, TaskProcess]:
    executor, master = await bench.start_with_slot()
    await bench.request(executor, 1, B)  # so that the job does not end with its task
    heard = Heard(master)
    parts = (SharedPart(0, 0, JobInformation(JOB, "job")), SharedPart(1, 0, VERTEX))
    await executor.submit_tasks(TaskDeployments(JOB, GRAPH, 0, parts, (TASK,)), MASTER, None)
    (running,) = await heard.until(1)
    assert running == TaskExecutionState(JOB, ATTEMPT, ExecutionState.RUNNING)
    (process,) = (
        endpoint
        for service in bench.network.services.values()
        for endpoint in service.endpoints()
        if isinstance(endpoint, TaskProcess) and ATTEMPT in endpoint._tasks
    )
    return executor, heard, process


@on_virtual_time
async def test_acknowledgements_are_told_before_the_end_of_their_task(tmp_path: Path) -> None:
    """A task that ends before it has acknowledged would fail the checkpoint."""
    bench = Bench(tmp_path)
    executor, heard, process = await run_task(bench)
    heard.may_answer.clear()
    process._reports.add((acknowledgement(1),))
    await heard.until(2)
    process._reports.add((acknowledgement(2),))
    await executor.cancel_tasks((ATTEMPT,), MASTER)
    await executor.free_slot(A, MASTER, "its end has come as far as here")
    assert heard.all[1:] == [acknowledgement(1)], "one message at a time"

    heard.may_answer.set()

    assert (await heard.until(4))[1:] == [
        acknowledgement(1),
        acknowledgement(2),
        TaskExecutionState(JOB, ATTEMPT, ExecutionState.CANCELED),
    ]


@on_virtual_time
async def test_a_process_tells_of_acknowledgements_before_the_end_of_their_task(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, _, process = await run_task(bench)
    listener = TestingGateway(TaskProcessListenerGateway)
    listener.start(LocalRpcService("listener", bench.network), "listener")
    heard: list[TaskReport] = []
    may_answer = asyncio.Event()

    async def tell(_: str, reports: tuple[TaskReport, ...]) -> None:
        heard.extend(reports)
        await may_answer.wait()

    listener.on(TaskProcessListenerGateway.tasks_reported).calling(tell)
    connect = process.rpc_service.connect
    process._task_executor = await connect(listener.address, TaskProcessListenerGateway)
    process._reports.add((acknowledgement(1),))
    await listener.wait_for(TaskProcessListenerGateway.tasks_reported)
    process._reports.add((acknowledgement(2),))
    await executor.cancel_tasks((ATTEMPT,), MASTER)
    while ATTEMPT in process._tasks:  # noqa: ASYNC110 - no event tells of the report
        await asyncio.sleep(0)
    assert heard == [acknowledgement(1)], "one message at a time"

    may_answer.set()

    await listener.wait_for(TaskProcessListenerGateway.tasks_reported, 2)
    assert heard == [
        acknowledgement(1),
        acknowledgement(2),
        TaskExecutionState(JOB, ATTEMPT, ExecutionState.CANCELED),
    ]


@on_virtual_time
async def test_answers_of_a_task_that_is_not_there_any_more_are_told_too(tmp_path: Path) -> None:
    """What was written for them is discarded by whoever knows of it."""
    bench = Bench(tmp_path)
    _, heard, process = await run_task(bench)
    past = ExecutionAttemptID(GRAPH, ATTEMPT.vertex, 7)
    late = AcknowledgeCheckpoint(JOB, 1, past, None)
    process._reports.add((late,))
    assert (await heard.until(2))[1:] == [late]


@on_virtual_time
async def test_an_acknowledgement_that_no_message_can_hold_declines(tmp_path: Path) -> None:
    """The checkpoint would wait for it until it expires."""
    bench = Bench(tmp_path)
    _, heard, process = await run_task(bench)
    handle = OperatorStateHandle(InlineState(bytes(MAX_FRAME_SIZE)), ())
    huge = TaskState({"an operator": SubtaskState((handle,))})
    process._reports.add((acknowledgement(1, huge), acknowledgement(2)))
    declined, other = (await heard.until(3))[1:]
    assert isinstance(declined, DeclineCheckpoint)
    assert (declined.checkpoint_id, declined.attempt_id) == (1, ATTEMPT)
    assert declined.reason is CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
    assert "does not fit into a message" in declined.text
    assert other == acknowledgement(2)
