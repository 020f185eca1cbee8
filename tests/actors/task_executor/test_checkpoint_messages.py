"""What passes through one TaskExecutor about checkpoints; its JobMasters only record."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway, TaskExecutorGateway
from flinkray.actors.gateways.task_process import TaskProcessGateway, TaskProcessListenerGateway
from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.actors.task_process.endpoint import TaskProcess
from flinkray.checkpoint.handles import InlineState, OperatorStateHandle, TaskState
from flinkray.checkpoint.handles import OperatorSubtaskState as SubtaskState
from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.core.errors import FlinkRayError, RpcConnectionError, RpcTimeoutError
from flinkray.core.ids import ExecutionAttemptID, JobVertexID
from flinkray.rpc import LocalRpcService
from flinkray.rpc.wire.envelope import MAX_FRAME_SIZE
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointOrder,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
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
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.user_code import dump_function
from tests.actors.resource_cluster import GRAPH, number
from tests.actors.task_executor_under_test import JOB, MASTER, A, B, Bench
from tests.actors.task_process_doubles import TasksInDoubles, attempt, doubles


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
async def test_task_executor_reports_acknowledgements_before_the_end_of_their_task(
    tmp_path: Path,
) -> None:
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
async def test_task_process_reports_acknowledgements_before_the_end_of_their_task(
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
async def test_late_checkpoint_acknowledgement_of_an_unknown_task_is_still_forwarded(
    tmp_path: Path,
) -> None:
    """The receiver discards the files that were written for the checkpoint."""
    bench = Bench(tmp_path)
    _, heard, process = await run_task(bench)
    past = ExecutionAttemptID(GRAPH, ATTEMPT.vertex, 7)
    late = AcknowledgeCheckpoint(JOB, 1, past, None)
    process._reports.add((late,))
    assert (await heard.until(2))[1:] == [late]


@on_virtual_time
async def test_checkpoint_acknowledgement_for_a_job_without_slots_is_dropped(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, heard, process = await run_task(bench)
    name = process.rpc_service.process_name
    await executor.free_slot(A, MASTER, "done")
    await executor.free_slot(B, MASTER, "done")
    await executor.tasks_reported(name, (acknowledgement(1),))
    assert bench.endpoint._task_table._jobs == {}
    assert acknowledgement(1) not in heard.all


@on_virtual_time
async def test_acknowledgement_that_exceeds_the_message_limit_declines_the_checkpoint(
    tmp_path: Path,
) -> None:
    """Otherwise the checkpoint would wait for the acknowledgement until the checkpoint expires."""
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


# --- orders ---------------------------------------------------------------------------------------

TRIGGER = TriggerCheckpoint(
    3, 1000, CheckpointProperties(SnapshotKind.CHECKPOINT), "nowhere", 0, is_whole=False
)
LATER = (CheckpointCompleted(3), CheckpointAborted(3, 0))
ORDERS = TaskProcessGateway.order_checkpoint


@on_virtual_time
async def test_checkpoint_trigger_or_outcome_is_sent_once_per_process_after_deployment() -> None:
    processes = doubles(2)
    executor = TasksInDoubles(slots_per_process=2)
    told: list[list[str]] = [[], []]
    for process, calls in zip(processes, told, strict=True):
        process.on(TaskProcessGateway.run_tasks).calling(lambda *_, to=calls: to.append("run"))
        process.on(ORDERS).calling(lambda order, _, to=calls: to.append(type(order).__name__))
        process.on(TaskProcessGateway.cancel_tasks).calling(lambda _, to=calls: to.append("cancel"))
    executor.begin_four()
    four = [attempt(subtask) for subtask in range(4)]
    for order in (TRIGGER, *LATER):
        executor.tasks.order_checkpoint(order, [*four, attempt(4)])
    executor.tasks.cancel(four)
    for place, process in enumerate(processes):
        await process.wait_for(TaskProcessGateway.cancel_tasks)
        mine = (attempt(2 * place), attempt(2 * place + 1))
        assert process.calls_of(ORDERS) == [(order, mine) for order in (TRIGGER, *LATER)]
    in_order = ["run", "TriggerCheckpoint", "CheckpointCompleted", "CheckpointAborted", "cancel"]
    assert told == [in_order, in_order]


@pytest.mark.parametrize("order", LATER)
@on_virtual_time
async def test_outcome_of_a_checkpoint_is_sent_to_the_task_process_until_it_arrives(
    order: CheckpointOrder,
) -> None:
    """A sink may wait for the outcome, or a job that is stopped with a savepoint."""
    (process,) = doubles(1)
    reported: list[TaskReport] = []
    executor = TasksInDoubles(slots_per_process=4, on_reports=reported.extend)
    await executor.run_four()
    answers: list[FlinkRayError | None] = [
        RpcConnectionError("it broke"),
        RpcTimeoutError("it hangs"),
        None,
    ]
    process.on(ORDERS).calling(partial(give, answers))
    executor.tasks.order_checkpoint(order, (attempt(0),))
    await process.wait_for(ORDERS, 3)
    await asyncio.sleep(60)
    assert process.calls_of(ORDERS) == [(order, (attempt(0),))] * 3
    assert reported == []


@on_virtual_time
async def test_checkpoint_outcome_is_not_repeated_to_a_killed_process() -> None:
    (process,) = doubles(1)
    executor = TasksInDoubles(slots_per_process=4)
    await executor.run_four()
    process.on(ORDERS).raising(RpcConnectionError("it broke"))
    executor.tasks.order_checkpoint(CheckpointCompleted(3), (attempt(0),))
    await process.wait_for(ORDERS, 2)
    place = executor.tasks.processes.place_of(0, JOB)
    executor.tasks.processes.kill(place, "it is stubborn")
    await asyncio.sleep(60)
    made = executor.endpoint.rpc_service.metrics.called["TaskProcessGateway.order_checkpoint"]
    assert made.calls == 2


@on_virtual_time
async def test_checkpoint_trigger_that_may_be_lost_is_declined_and_not_repeated() -> None:
    """A repeated trigger could arrive after the abort of the checkpoint."""
    (process,) = doubles(1)
    reported: list[TaskReport] = []
    executor = TasksInDoubles(slots_per_process=4, on_reports=reported.extend)
    await executor.run_four()
    process.on(ORDERS).raising(RpcConnectionError("it broke"))
    executor.tasks.order_checkpoint(TRIGGER, (attempt(0), attempt(1)))
    await process.wait_for(ORDERS)
    while not reported:  # noqa: ASYNC110 - no event tells of the report
        await asyncio.sleep(0)
    assert [answer.attempt_id for answer in reported] == [attempt(0), attempt(1)]
    for answer in reported:
        assert isinstance(answer, DeclineCheckpoint)
        assert answer.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
        assert "it broke" in answer.text
    assert len(process.calls_of(ORDERS)) == 1


def give(answers: list[FlinkRayError | None], *_: object) -> None:
    answer = answers.pop(0)
    if answer is not None:
        raise answer


@on_virtual_time
async def test_checkpoint_trigger_for_a_task_that_does_not_run_is_declined(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, heard, _ = await run_task(bench)
    past = ExecutionAttemptID(GRAPH, ATTEMPT.vertex, 7)
    for order in (*LATER, TRIGGER):
        await executor.order_checkpoint(JOB, MASTER, order, (past,))
    (declined,) = (await heard.until(2))[1:]
    assert isinstance(declined, DeclineCheckpoint)
    assert (declined.job_id, declined.checkpoint_id, declined.attempt_id) == (JOB, 3, past)
    assert declined.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
    assert "it does not run" in declined.text
