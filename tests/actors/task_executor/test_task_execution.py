"""Python tasks of one TaskExecutor; its ResourceManager and JobMasters only record."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway, SlotPoolGateway, TaskExecutorGateway
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import AllocationID, IntermediateDataSetID, JobVertexID, ResultPartitionID
from flinkray.scheduler.graph.job_graph import PYTHON, Invokable, ResultPartitionType
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import (
    JobInformation,
    ResultInformation,
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
from tests.actors.resource_cluster import GRAPH, NEXT_GRAPH, RM_TOKEN, number
from tests.actors.task_executor_under_test import JOB, MASTER, NEXT_MASTER, A, B, Bench

DATA_SET = number(IntermediateDataSetID, 7)
PARTITION = ResultPartitionID(GRAPH, DATA_SET, 0, 0)


async def waits(context: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def finishes(context: Any) -> None:
    pass


def vertex(function: Any, *results: ResultInformation) -> VertexInformation:
    invokable = Invokable(PYTHON, dump_function(function))
    return VertexInformation(number(JobVertexID, 1), "v", 2, 128, invokable, (), results)


def deployments(
    information: VertexInformation, *allocations: AllocationID, with_parts: bool = True
) -> TaskDeployments:
    """Subtask i in the i-th slot."""
    parts = (
        SharedPart(0, 0, JobInformation(JOB, "job")),
        SharedPart(1, 0, information),
    )
    tasks = tuple(TaskDeployment(1, i, 0, slot) for i, slot in enumerate(allocations))
    return TaskDeployments(JOB, GRAPH, 0, parts if with_parts else (), tasks)


class States:
    """What a JobMaster hears of tasks."""

    def __init__(self, master: TestingGateway[JobMasterGateway]) -> None:
        self.all: list[TaskExecutionState] = []
        self.answers: list[TaskReport] = []
        """To checkpoints."""
        self._changed = asyncio.Event()
        master.on(JobMasterGateway.tasks_reported).calling(self._add)

    def _add(self, reports: tuple[TaskReport, ...]) -> None:
        for report in reports:
            if isinstance(report, TaskExecutionState):
                self.all.append(report)
            else:
                self.answers.append(report)
        self._changed.set()

    async def until(self, *wanted: ExecutionState) -> list[TaskExecutionState]:
        """The states when these are the last ones of as many tasks, in any order."""
        while True:
            last = {state.attempt_id: state for state in self.all}
            if sorted(s.state.name for s in last.values()) == sorted(s.name for s in wanted):
                return [last[key] for key in sorted(last, key=str)]
            self._changed.clear()
            await self._changed.wait()


async def start(bench: Bench) -> tuple[TaskExecutorGateway, TestingGateway[JobMasterGateway]]:
    """With both slots given to the job."""
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    await master.pool.wait_for(SlotPoolGateway.offer_slots)
    return executor, master


@on_virtual_time
async def test_cancelling_a_task_lets_the_other_task_run(tmp_path: Path) -> None:
    """TM-26"""
    bench = Bench(tmp_path)
    executor, master = await start(bench)
    states = States(master)
    two = deployments(vertex(waits), A, B)
    assert await executor.submit_tasks(two, MASTER, None) == ()
    await states.until(ExecutionState.RUNNING, ExecutionState.RUNNING)
    first = attempt_of(GRAPH, vertex(waits), two.tasks[0])

    await executor.cancel_tasks((first,), MASTER)

    ended, running = await states.until(ExecutionState.CANCELED, ExecutionState.RUNNING)
    assert (ended.attempt_id, running.state) == (first, ExecutionState.RUNNING)
    await executor.cancel_tasks((first,), MASTER)
    assert states.all[-1] is ended, "a task that does not run any more is passed over"


@on_virtual_time
async def test_a_task_whose_state_cannot_be_reported_fails(tmp_path: Path) -> None:
    """TM-27"""
    bench = Bench(tmp_path)
    executor, master = await start(bench)
    heard: list[TaskExecutionState] = []

    def refuse_running(states: tuple[TaskExecutionState, ...]) -> None:
        heard.extend(states)
        if states[0].state is ExecutionState.RUNNING:
            raise FlinkRayError("I do not know that task")

    master.on(JobMasterGateway.tasks_reported).calling(refuse_running)
    await executor.submit_tasks(deployments(vertex(waits), A), MASTER, None)
    await master.wait_for(JobMasterGateway.tasks_reported, 2)

    assert [state.state for state in heard] == [ExecutionState.RUNNING, ExecutionState.FAILED]
    assert "its state cannot be reported: I do not know that task" in (heard[1].failure or "")


@on_virtual_time
async def test_deployment_refuses_only_the_task_for_an_unknown_slot(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, master = await start(bench)
    states = States(master)
    unknown = number(AllocationID, 99)

    (refused,) = await executor.submit_tasks(deployments(vertex(waits), A, unknown), MASTER, None)

    assert refused.lost_slot == unknown
    assert refused.attempt_id.vertex.subtask_index == 1
    await states.until(ExecutionState.RUNNING)


@on_virtual_time
async def test_tasks_of_a_job_master_that_does_not_lead_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, _ = await start(bench)
    with pytest.raises(TaskError, match="does not lead the job here"):
        await executor.submit_tasks(deployments(vertex(waits), A), NEXT_MASTER, None)


@on_virtual_time
async def test_deployment_data_is_remembered_and_missing_deployment_data_raises_an_error(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, master = await start(bench)
    states = States(master)
    with pytest.raises(TaskError, match=r"part 0 of execution graph .* is not here"):
        await executor.submit_tasks(deployments(vertex(waits), A, with_parts=False), MASTER, None)
    await executor.submit_tasks(deployments(vertex(waits), A), MASTER, None)
    await states.until(ExecutionState.RUNNING)

    more = deployments(vertex(waits), A, B, with_parts=False)
    second = TaskDeployments(JOB, GRAPH, 0, (), more.tasks[1:])
    assert await executor.submit_tasks(second, MASTER, None) == ()
    await states.until(ExecutionState.RUNNING, ExecutionState.RUNNING)


@on_virtual_time
async def test_deployment_that_lacks_data_of_one_of_its_tasks_starts_no_task(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, _ = await start(bench)
    both = deployments(vertex(waits), A, B)
    lacks = replace(both.tasks[1], inputs=(7,))
    with pytest.raises(TaskError, match=r"part 7 of execution graph .* is not here"):
        await executor.submit_tasks(replace(both, tasks=(both.tasks[0], lacks)), MASTER, None)
    assert bench.endpoint._task_table.of_job(JOB) == ()
    assert await executor.submit_tasks(both, MASTER, None) == ()
    assert len(bench.endpoint._task_table.of_job(JOB)) == 2


@on_virtual_time
async def test_deployment_that_lacks_the_job_data_starts_no_task(
    tmp_path: Path,
) -> None:
    """An earlier message with the part was lost. A task that never began would have no end,
    either."""
    bench = Bench(tmp_path)
    executor, _ = await start(bench)
    whole = deployments(vertex(waits), A)
    with pytest.raises(TaskError, match=r"part 0 of execution graph .* is not here"):
        await executor.submit_tasks(replace(whole, parts=whole.parts[1:]), MASTER, None)
    assert bench.endpoint._task_table.of_job(JOB) == ()


@on_virtual_time
async def test_task_executor_with_job_results_may_be_released_once_the_job_master_is_gone(
    tmp_path: Path,
) -> None:
    """TM-28"""
    bench = Bench(tmp_path)
    executor, master = await start(bench)
    states = States(master)
    blocking = ResultInformation(DATA_SET, ResultPartitionType.BLOCKING, ())
    await executor.submit_tasks(deployments(vertex(finishes, blocking), A), MASTER, None)
    await states.until(ExecutionState.FINISHED)
    places = await executor.find_partitions(JOB, DATA_SET)
    assert places.partitions == ((PARTITION,),)
    await executor.free_slot(A, MASTER, "done")
    await executor.free_slot(B, MASTER, "done")
    assert not await executor.can_be_released(RM_TOKEN), "somebody may read it yet"

    await executor.disconnect_job_master(JOB, MASTER, "the job has ended")

    assert (await executor.find_partitions(JOB, DATA_SET)).partitions == ()
    assert await executor.can_be_released(RM_TOKEN)


@on_virtual_time
async def test_deployment_data_of_a_past_execution_graph_is_not_used_for_the_next_graph(
    tmp_path: Path,
) -> None:
    """Both graphs number their parts alike: tasks of the next graph would run code of the past
    graph."""
    bench = Bench(tmp_path)
    executor, master = await start(bench)
    states = States(master)
    await executor.submit_tasks(deployments(vertex(waits), A), MASTER, None)
    await states.until(ExecutionState.RUNNING)

    theirs = deployments(vertex(finishes), B, with_parts=False)
    with pytest.raises(TaskError, match=r"part 0 of execution graph .* is not here"):
        await executor.submit_tasks(replace(theirs, graph_id=NEXT_GRAPH), MASTER, None)


@on_virtual_time
async def test_tasks_of_equal_name_in_two_execution_graphs_are_separate_tasks(
    tmp_path: Path,
) -> None:
    """One task runs on when the other is cancelled."""
    bench = Bench(tmp_path)
    executor, master = await start(bench)
    states = States(master)
    one = deployments(vertex(waits), A)
    other = replace(deployments(vertex(waits), B), graph_id=NEXT_GRAPH)
    await executor.submit_tasks(one, MASTER, None)
    assert await executor.submit_tasks(other, MASTER, None) == ()
    await states.until(ExecutionState.RUNNING, ExecutionState.RUNNING)

    await executor.cancel_tasks((attempt_of(GRAPH, vertex(waits), one.tasks[0]),), MASTER)

    ended, running = await states.until(ExecutionState.CANCELED, ExecutionState.RUNNING)
    assert (ended.attempt_id.graph_id, running.attempt_id.graph_id) == (GRAPH, NEXT_GRAPH)
