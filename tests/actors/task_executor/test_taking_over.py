"""What a TaskExecutor does between two JobMasters of a job; both only record."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway, SlotPoolGateway, TaskExecutorGateway
from flinkray.actors.gateways.job_processes import job_master_process
from flinkray.actors.gateways.messages import (
    TaskExecutorHeartbeat,
    TaskExecutorToJobMasterRegistrationSuccess,
)
from flinkray.actors.gateways.task_errors import JobMasterAwayError, TaskError
from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.core.errors import FencingTokenError, FlinkRayError
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    IntermediateDataSetID,
    JobID,
    JobVertexID,
    KvStateID,
    ResourceID,
    ResultPartitionID,
    WorkerGroupId,
)
from flinkray.core.kv_states import KvStateRegistration
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    AwaitCheckpoint,
    CheckpointAborted,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.graph.job_graph import PYTHON, Invokable, ResultPartitionType
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import ReportedTask, TaskExecutorReport
from flinkray.scheduler.shared.tasks import (
    JobInformation,
    PartitionLocations,
    RestoredTask,
    ResultInformation,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
    pack_numbers,
)
from flinkray.testing import TestingGateway, eventually
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.user_code import dump_function
from tests.actors.resource_cluster import GRAPH, NEXT_GRAPH, RM_TOKEN, number
from tests.actors.task_executor_under_test import (
    JOB,
    MASTER,
    NEXT_MASTER,
    A,
    B,
    Bench,
    allocations,
    task,
)

Master = TestingGateway[JobMasterGateway]


async def waits(context: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def finishes(context: Any) -> None:
    pass


def vertex(value: int, function: Any, *results: IntermediateDataSetID) -> VertexInformation:
    information = tuple(ResultInformation(r, ResultPartitionType.BLOCKING, ()) for r in results)
    invokable = Invokable(PYTHON, dump_function(function))
    return VertexInformation(number(JobVertexID, value), "v", 2, 128, invokable, (), information)


def deployments(
    information: VertexInformation, *tasks: TaskDeployment, graph_id: ExecutionGraphID = GRAPH
) -> TaskDeployments:
    """Of the vertex with key 1."""
    parts = (SharedPart(0, 0, JobInformation(JOB, "job")), SharedPart(1, 0, information))
    return TaskDeployments(JOB, graph_id, 0, parts, tasks)


def reports_to(master: Master) -> list[TaskExecutorReport]:
    """Those with which the TaskExecutor has registered."""
    return [it for _, it in master.calls_of(JobMasterGateway.register_task_executor)]


def told(master: Master) -> list[Any]:
    """What was reported of tasks."""
    calls = master.calls_of(JobMasterGateway.tasks_reported)
    return [report for (reports,) in calls for report in reports]


def tasks_in(report: TaskExecutorReport) -> dict[ExecutionAttemptID, ReportedTask]:
    found = {}
    for graph in report.graphs:
        parts = {part.key: part.content for part in graph.parts}
        for one in graph.tasks:
            information = parts[one.deployment.vertex]
            assert isinstance(information, VertexInformation)
            found[attempt_of(graph.graph_id, information, one.deployment)] = one
    return found


async def answers_when(
    master: Master, may_answer: asyncio.Event, name: str = "JobMaster-2"
) -> None:
    """A registration."""

    async def answer(*_: object) -> TaskExecutorToJobMasterRegistrationSuccess:
        await may_answer.wait()
        return TaskExecutorToJobMasterRegistrationSuccess(ResourceID(name))

    master.on(JobMasterGateway.register_task_executor).calling(answer)


# --- the report -----------------------------------------------------------------------------------


@on_virtual_time
async def test_next_job_master_gets_running_and_ended_tasks(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, first = await bench.start_with_slot()
    await bench.request(executor, 1, B)
    await first.pool.wait_for(SlotPoolGateway.offer_slots, 2)
    runs, ends = task(A), task(B, attempt=3)
    restored = replace(
        runs.deployments.tasks[0], restored=RestoredTask(7, None), coordinator_attempt=2, restores=1
    )
    await executor.submit_tasks(replace(runs.deployments, tasks=(restored,)), MASTER, None)
    await ends.submit(executor)
    await asyncio.sleep(0.1)
    bench.runner.failures[ends.attempt_id].set_result(None)
    await first.wait_for(JobMasterGateway.tasks_reported)
    assert reports_to(first)[0].graphs == ()

    bench.network.crash("JobMaster-1")
    (report,) = reports_to(await bench.next_job_master(executor))

    assert report.location == bench.endpoint.location
    assert [(s.allocation_id, s.slot_index) for s in report.slots] == [(A, 0), (B, 1)]
    assert all(slot.location == report.location for slot in report.slots)
    (graph,) = report.graphs
    assert graph.graph_id == GRAPH
    found = tasks_in(report)
    assert set(found) == {runs.attempt_id, ends.attempt_id}
    running = found[runs.attempt_id]
    assert running.deployment == replace(restored, vertex=running.deployment.vertex)
    assert (running.state, running.ended) == (ExecutionState.DEPLOYING, None)
    finished = found[ends.attempt_id]
    assert finished.state is ExecutionState.FINISHED
    assert finished.ended == TaskExecutionState(JOB, ends.attempt_id, ExecutionState.FINISHED)


@on_virtual_time
async def test_task_end_while_no_job_master_leads_is_reported_to_the_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    await asyncio.sleep(0.1)
    bench.network.crash("JobMaster-1")
    bench.runner.failures[task(A).attempt_id].set_exception(TaskError("the disk is full"))
    await asyncio.sleep(1)
    second = await bench.next_job_master(executor)
    (report,) = reports_to(second)
    ended = tasks_in(report)[task(A).attempt_id].ended
    assert ended is not None
    assert (ended.state, ended.failure) == (ExecutionState.FAILED, "the disk is full")
    assert [slot.allocation_id for slot in report.slots] == [A], "held as it is"
    assert told(second) == []


@on_virtual_time
async def test_task_executor_registers_at_a_job_master_that_takes_over(tmp_path: Path) -> None:
    """Neither a Dispatcher nor a ResourceManager has announced the JobMaster."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.network.crash("JobMaster-1")
    name = job_master_process(JOB)
    second = bench.start_job_master(NEXT_MASTER, name)
    for _ in range(2):
        assert await executor.take_over_job(JOB, f"{name}/jobmaster", NEXT_MASTER)
    await second.wait_for(JobMasterGateway.register_task_executor)
    await asyncio.sleep(1)
    (report,) = reports_to(second)
    assert set(tasks_in(report)) == {task(A).attempt_id}
    other_job = number(JobID, 77)
    assert not await executor.take_over_job(other_job, f"{name}/jobmaster", NEXT_MASTER)


@on_virtual_time
async def test_late_announcement_of_a_past_job_master_is_refused_after_a_take_over(
    tmp_path: Path,
) -> None:
    """The ResourceManager had announced the past JobMaster before that one died, while the process
    of the TaskExecutor was paused (seed 1000023 of the whole cluster)."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.network.crash("JobMaster-1")
    name = job_master_process(JOB)
    second = bench.start_job_master(NEXT_MASTER, name)
    assert await executor.take_over_job(JOB, f"{name}/jobmaster", NEXT_MASTER)
    await second.wait_for(JobMasterGateway.register_task_executor)
    await asyncio.sleep(1)
    await executor.adopt_slots(JOB, NEXT_MASTER, NEXT_GRAPH, (A,))
    with pytest.raises(FencingTokenError, match="refused job_master_changed"):
        await executor.job_master_changed(JOB, "JobMaster-1/jobmaster", MASTER, RM_TOKEN)
    with pytest.raises(FencingTokenError, match="refused request_slots"):
        await bench.request(executor, 1, B)
    assert allocations(await bench.latest_report(executor)) == [A, None]
    assert await task(A, 1, graph_id=NEXT_GRAPH).submit(executor, NEXT_MASTER) == ()


@on_virtual_time
async def test_job_master_whose_process_name_was_removed_cannot_take_over_tasks(
    tmp_path: Path,
) -> None:
    """The JobMaster was taken for dead, but lives."""
    bench = Bench(tmp_path)
    executor, first = await bench.start_with_slot()
    name = job_master_process(JOB)
    second = bench.start_job_master(NEXT_MASTER, name)
    await bench.endpoint.connect(second.address, JobMasterGateway, NEXT_MASTER)
    del bench.network.services[name]
    with pytest.raises(FencingTokenError):
        await executor.take_over_job(JOB, second.address, NEXT_MASTER)
    await asyncio.sleep(1)
    assert reports_to(second) == []
    assert len(reports_to(first)) == 1


@on_virtual_time
async def test_task_executor_remembers_only_the_latest_ended_attempt_of_each_subtask(
    tmp_path: Path,
) -> None:
    """Otherwise the attempts of a job that restarts for months would be remembered for ever."""
    bench = Bench(tmp_path)
    executor, first = await bench.start_with_slot()
    for attempt in range(3):
        await task(A, attempt).submit(executor)
        await asyncio.sleep(0.1)
        bench.runner.failures[task(A, attempt).attempt_id].set_result(None)
        await first.wait_for(JobMasterGateway.tasks_reported, attempt + 1)
    bench.network.crash("JobMaster-1")
    (report,) = reports_to(await bench.next_job_master(executor))
    assert set(tasks_in(report)) == {task(A, 2).attempt_id}


@on_virtual_time
async def test_task_end_after_the_takeover_report_is_sent_once_the_report_is_answered(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    await asyncio.sleep(0.1)
    bench.network.crash("JobMaster-1")
    second = bench.start_job_master(NEXT_MASTER, "JobMaster-2")
    may_answer = asyncio.Event()
    await answers_when(second, may_answer)
    await executor.job_master_changed(JOB, "JobMaster-2/jobmaster", NEXT_MASTER, RM_TOKEN)
    await second.wait_for(JobMasterGateway.register_task_executor)
    bench.runner.failures[task(A).attempt_id].set_result(None)
    await asyncio.sleep(0.05)
    assert told(second) == []
    may_answer.set()
    await second.wait_for(JobMasterGateway.tasks_reported)
    assert [state.state for state in told(second)] == [ExecutionState.FINISHED]
    (report,) = reports_to(second)
    assert tasks_in(report)[task(A).attempt_id].ended is None


@on_virtual_time
async def test_repeated_registration_at_a_job_master_reports_the_present_tasks(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    await asyncio.sleep(0.1)
    bench.network.crash("JobMaster-1")
    second = bench.start_job_master(NEXT_MASTER, "JobMaster-2")
    end = bench.runner.failures[task(A).attempt_id]

    def fail_at_first(*_: object) -> TaskExecutorToJobMasterRegistrationSuccess:
        if not end.done():
            end.set_result(None)
            raise FlinkRayError("try again")
        return TaskExecutorToJobMasterRegistrationSuccess(ResourceID("JobMaster-2"))

    second.on(JobMasterGateway.register_task_executor).calling(fail_at_first)
    await executor.job_master_changed(JOB, "JobMaster-2/jobmaster", NEXT_MASTER, RM_TOKEN)
    await second.wait_for(JobMasterGateway.register_task_executor, 2)
    await second.wait_for(JobMasterGateway.tasks_reported)
    earlier, later = (tasks_in(report)[task(A).attempt_id] for report in reports_to(second))
    assert earlier.ended is None
    assert later.ended is not None
    assert set(told(second)) == {later.ended}, "twice does no harm"


@on_virtual_time
async def test_third_job_master_takes_over_all_tasks_if_the_second_dies_before_adoption(
    tmp_path: Path,
) -> None:
    """The third JobMaster has the full takeover timeout."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.network.crash("JobMaster-1")
    await asyncio.sleep(40)
    second = await bench.next_job_master(executor)
    bench.network.crash("JobMaster-2")
    await asyncio.sleep(40)
    master = number(type(MASTER), 3)
    third = bench.start_job_master(master, "JobMaster-3")
    await executor.job_master_changed(JOB, "JobMaster-3/jobmaster", master, RM_TOKEN)
    await third.wait_for(JobMasterGateway.register_task_executor)
    assert reports_to(third) == reports_to(second)
    with pytest.raises(FencingTokenError):
        await executor.adopt_slots(JOB, NEXT_MASTER, GRAPH, ())
    await executor.adopt_slots(JOB, master, GRAPH, (A,))
    await asyncio.sleep(30)
    assert not bench.runner.failures[task(A).attempt_id].done()
    assert await task(A, attempt=1).submit(executor, master) == ()


@on_virtual_time
async def test_next_job_master_has_the_full_timeout_to_adopt_slots(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.network.crash("JobMaster-1")
    await asyncio.sleep(40)
    second = bench.start_job_master(NEXT_MASTER, "JobMaster-2")
    begin = bench.client.clock.monotonic()

    def answer_late(*_: object) -> TaskExecutorToJobMasterRegistrationSuccess:
        if bench.client.clock.monotonic() < begin + 40:
            raise FlinkRayError("it is busy")
        return TaskExecutorToJobMasterRegistrationSuccess(ResourceID("JobMaster-2"))

    second.on(JobMasterGateway.register_task_executor).calling(answer_late)
    await executor.job_master_changed(JOB, "JobMaster-2/jobmaster", NEXT_MASTER, RM_TOKEN)
    await asyncio.sleep(80)
    await executor.adopt_slots(JOB, NEXT_MASTER, GRAPH, (A,))
    await asyncio.sleep(1)
    assert not bench.runner.failures[task(A).attempt_id].done()


@on_virtual_time
async def test_goodbye_of_a_lost_job_master_keeps_tasks_for_its_successor(tmp_path: Path) -> None:
    """The JobMaster wakes up after the ResourceManager has reported it as lost."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    await executor.job_master_lost(JOB, MASTER, RM_TOKEN, "it is deaf")
    await executor.disconnect_job_master(JOB, MASTER, "your heartbeats have timed out")
    await asyncio.sleep(0.1)
    bench.runner.failures[task(A).attempt_id].set_result(None)
    await asyncio.sleep(0.1)
    report = reports_to(await bench.next_job_master(executor))[-1]
    assert tasks_in(report)[task(A).attempt_id].state is ExecutionState.FINISHED


@on_virtual_time
async def test_task_executor_forgets_the_ends_of_earlier_attempts_and_execution_graphs(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, first = await bench.start_with_slot()

    async def run(attempt: int, graph_id: ExecutionGraphID, *, until_its_end: bool) -> None:
        deployed = task(A, attempt, graph_id=graph_id)
        assert await deployed.submit(executor) == ()
        await asyncio.sleep(0.1)
        if until_its_end:
            bench.runner.failures[deployed.attempt_id].set_result(None)
            await asyncio.sleep(0.1)

    def remembered() -> list[tuple[ExecutionGraphID, int, ExecutionState]]:
        graphs, _ = bench.endpoint._task_table.report_for(JOB, MASTER)
        return [
            (graph.graph_id, one.deployment.attempt_number, one.state)
            for graph in graphs
            for one in graph.tasks
        ]

    await run(0, GRAPH, until_its_end=True)
    assert remembered() == [(GRAPH, 0, ExecutionState.FINISHED)]
    await run(1, GRAPH, until_its_end=False)
    assert remembered() == [(GRAPH, 1, ExecutionState.DEPLOYING)]
    bench.runner.failures[task(A, 1).attempt_id].set_result(None)
    await asyncio.sleep(0.1)
    other = deployments(vertex(3, finishes), TaskDeployment(1, 1, 5, A), graph_id=NEXT_GRAPH)
    assert await executor.submit_tasks(other, MASTER, None) == ()
    assert {graph_id for graph_id, _, _ in remembered()} == {NEXT_GRAPH}
    await eventually(lambda: remembered()[0][2] is ExecutionState.FINISHED, 50, "its end")
    await executor.adopt_slots(JOB, MASTER, GRAPH, (A,))
    assert remembered() == []
    graphs, _ = bench.endpoint._task_table.report_for(JOB, MASTER)
    assert [graph.graph_id for graph in graphs] == [NEXT_GRAPH]  # its tasks were started here
    assert first.calls_of(JobMasterGateway.tasks_reported) != []


@on_virtual_time
async def test_task_adopted_by_the_next_job_master_continues_and_its_end_is_reported(
    tmp_path: Path,
) -> None:
    """The JobMaster died so briefly that this TaskExecutor has not noticed."""
    bench = Bench(tmp_path)
    executor, first = await bench.start_with_slot()
    await task(A).submit(executor)
    second = await bench.next_job_master(executor)
    await second.wait_for(JobMasterGateway.register_task_executor)
    heartbeat = bench.endpoint.heartbeat_payload(JOB)
    assert heartbeat == TaskExecutorHeartbeat(()), "nobody takes it for unknown"
    await executor.adopt_slots(JOB, NEXT_MASTER, GRAPH, (A,))
    await executor.adopt_slots(JOB, NEXT_MASTER, GRAPH, (A,))
    assert bench.endpoint.heartbeat_payload(JOB).attempts == (task(A).attempt_id,)
    assert allocations(await bench.latest_report(executor)) == [A, None]
    assert second.pool.calls_of(SlotPoolGateway.offer_slots) == []
    bench.runner.failures[task(A).attempt_id].set_result(None)
    await second.wait_for(JobMasterGateway.tasks_reported)
    assert told(second) == [TaskExecutionState(JOB, task(A).attempt_id, ExecutionState.FINISHED)]
    assert told(first) == []
    assert bench.runner.cleaned == []


@on_virtual_time
async def test_tasks_of_another_execution_graph_are_cancelled_when_their_slots_are_adopted(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    second = await bench.next_job_master(executor)
    await executor.adopt_slots(JOB, NEXT_MASTER, NEXT_GRAPH, (A,))
    await second.wait_for(JobMasterGateway.tasks_reported)
    assert [state.state for state in told(second)] == [ExecutionState.CANCELED]
    assert await task(A, graph_id=NEXT_GRAPH).submit(executor, NEXT_MASTER) == ()
    bench.network.crash("JobMaster-2")
    third = bench.start_job_master(number(type(MASTER), 3), "JobMaster-3")
    await executor.job_master_changed(
        JOB, "JobMaster-3/jobmaster", number(type(MASTER), 3), RM_TOKEN
    )
    await third.wait_for(JobMasterGateway.register_task_executor)
    (report,) = reports_to(third)
    assert set(tasks_in(report)) == {task(A, graph_id=NEXT_GRAPH).attempt_id}


# --- what is remembered of tasks ------------------------------------------------------------------


@on_virtual_time
async def test_stop_with_savepoint_of_a_task_is_reported_to_a_job_master_that_takes_over(
    tmp_path: Path,
) -> None:
    """Unless the savepoint was given up."""
    bench = Bench(tmp_path)
    executor, first = await bench.start_with_slot()
    await bench.request(executor, 1, B)
    await first.pool.wait_for(SlotPoolGateway.offer_slots, 2)
    stops, goes_on = task(A), task(B, attempt=1)
    await stops.submit(executor)
    await goes_on.submit(executor)
    stop = CheckpointProperties(SnapshotKind.SAVEPOINT, is_synchronous=True)
    both: tuple[ExecutionAttemptID, ...] = (stops.attempt_id, goes_on.attempt_id)
    for properties, attempts in (
        (CheckpointProperties(SnapshotKind.CHECKPOINT), both),
        (stop, both),
    ):
        trigger = TriggerCheckpoint(5, 1000, properties, "nowhere", 0, is_whole=True)
        await executor.order_checkpoint(JOB, MASTER, trigger, attempts)
    for given_up, of in ((4, both), (5, (goes_on.attempt_id,))):
        await executor.order_checkpoint(JOB, MASTER, CheckpointAborted(given_up, 0), of)
    (report,) = reports_to(await bench.next_job_master(executor))
    found = tasks_in(report)
    assert found[stops.attempt_id].is_stopping
    assert not found[goes_on.attempt_id].is_stopping


def registration(attempt_id: ExecutionAttemptID, value: int) -> KvStateRegistration:
    return KvStateRegistration(
        JOB, attempt_id, "op", 0, 127, "counts", number(KvStateID, value), "there", "value", None
    )


@on_virtual_time
async def test_queryable_states_of_running_tasks_are_reported_to_the_next_job_master(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, first = await bench.start_with_slot()
    await bench.request(executor, 1, B)
    await first.pool.wait_for(SlotPoolGateway.offer_slots, 2)
    await task(A).submit(executor)
    await task(B, attempt=1).submit(executor)
    await asyncio.sleep(0.1)
    kept, gone = registration(task(A).attempt_id, 1), registration(task(A).attempt_id, 2)
    ended = registration(task(B, attempt=1).attempt_id, 3)
    await executor.notify_kv_states_registered(JOB, (kept, gone, ended))
    await executor.notify_kv_states_unregistered(JOB, (gone,))
    bench.runner.failures[ended.attempt_id].set_result(None)
    await first.wait_for(JobMasterGateway.tasks_reported)
    bench.network.crash("JobMaster-1")
    await asyncio.sleep(0.1)
    late = registration(task(A).attempt_id, 4)
    with pytest.raises(JobMasterAwayError):
        await executor.notify_kv_states_registered(JOB, (late,))
    (report,) = reports_to(await bench.next_job_master(executor))
    assert report.kv_states == (kept, late)


@on_virtual_time
async def test_checkpoint_acknowledgements_for_a_past_job_master_are_dropped(
    tmp_path: Path,
) -> None:
    """But the report to the next JobMaster says for which checkpoint a task waits."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.network.crash("JobMaster-1")
    await asyncio.sleep(0.1)
    attempt_id = task(A).attempt_id
    waits_for, answer = AwaitCheckpoint(JOB, attempt_id, 6), AcknowledgeCheckpoint
    bench.endpoint._task_table.reported([answer(JOB, 7, attempt_id, None), waits_for])
    second = await bench.next_job_master(executor)
    (report,) = reports_to(second)
    assert tasks_in(report)[attempt_id].awaits_checkpoint == 6
    bench.endpoint._task_table.reported([answer(JOB, 8, attempt_id, None)])
    await second.wait_for(JobMasterGateway.tasks_reported)
    assert told(second) == [answer(JOB, 8, attempt_id, None)]


@on_virtual_time
async def test_task_report_at_a_take_over_names_the_producers_the_task_was_deployed_with(
    tmp_path: Path,
) -> None:
    """Other tasks of the vertex were deployed later, with later attempts of the producers."""
    bench = Bench(tmp_path)
    executor, first = await bench.start_with_slot()
    await bench.request(executor, 1, B)
    await first.pool.wait_for(SlotPoolGateway.offer_slots, 2)
    where = WorkerLocation(ResourceID("w"), "w/w", "n", "127.0.0.1", 1, WorkerGroupId("g"), 0)

    def locations(attempt: int) -> PartitionLocations:
        data_set = number(IntermediateDataSetID, 1)
        return PartitionLocations(
            GRAPH, data_set, 0, (where,), pack_numbers([0]), pack_numbers([attempt])
        )

    for subtask, allocation in enumerate((A, B)):
        deployed = task(allocation).deployments
        one = replace(deployed.tasks[0], subtask_index=subtask, inputs=(2,))
        parts = (*deployed.parts, SharedPart(2, subtask, locations(subtask)))
        await executor.submit_tasks(replace(deployed, parts=parts, tasks=(one,)), MASTER, None)
    (report,) = reports_to(await bench.next_job_master(executor))
    (graph,) = report.graphs
    contents = {part.key: part.content for part in graph.parts}
    found = {t.deployment.subtask_index: contents[t.deployment.inputs[0]] for t in graph.tasks}
    assert found == {0: locations(0), 1: locations(1)}


# --- Python tasks and their results ---------------------------------------------------------------

RESULT = number(IntermediateDataSetID, 7)
PARTITION = ResultPartitionID(GRAPH, RESULT, 0, 0)


async def with_result(bench: Bench) -> TaskExecutorGateway:
    """A task has finished and left a result; another one runs."""
    executor, first = await bench.start_with_slot()
    await bench.request(executor, 1, B)
    await first.pool.wait_for(SlotPoolGateway.offer_slots, 2)
    produces = vertex(1, finishes, RESULT)
    parts = (SharedPart(2, 0, vertex(2, waits)),)
    message = deployments(produces, TaskDeployment(1, 0, 0, A), TaskDeployment(2, 0, 0, B))
    message = replace(message, parts=message.parts + parts)
    assert await executor.submit_tasks(message, MASTER, None) == ()

    def is_set() -> bool:
        states = {(s.attempt_id.vertex.job_vertex_id, s.state) for s in told(first)}
        return states >= {
            (number(JobVertexID, 1), ExecutionState.FINISHED),
            (number(JobVertexID, 2), ExecutionState.RUNNING),
        }

    await eventually(is_set, 50, "a result")
    bench.network.crash("JobMaster-1")
    return executor


async def results(executor: TaskExecutorGateway) -> tuple[ResultPartitionID, ...]:
    found = (await executor.find_partitions(JOB, RESULT)).partitions
    return tuple(partition for here in found for partition in here)


@pytest.mark.parametrize("graph_id", [GRAPH, NEXT_GRAPH])
@on_virtual_time
async def test_results_are_kept_only_for_a_next_job_master_with_the_same_execution_graph(
    tmp_path: Path, graph_id: ExecutionGraphID
) -> None:
    """TM-28"""
    bench = Bench(tmp_path)
    executor = await with_result(bench)
    await asyncio.sleep(30)
    second = await bench.next_job_master(executor)
    assert await results(executor) == (PARTITION,)
    (report,) = reports_to(second)
    states = sorted(one.state.name for one in tasks_in(report).values())
    assert states == ["FINISHED", "RUNNING"]
    assert all(
        part.content.invokable.code == b""
        for part in report.graphs[0].parts
        if isinstance(part.content, VertexInformation)
    ), "code is not sent about"
    await executor.adopt_slots(JOB, NEXT_MASTER, graph_id, (A, B))
    await asyncio.sleep(1)
    assert await results(executor) == ((PARTITION,) if graph_id == GRAPH else ())
    assert len(told(second)) == (0 if graph_id == GRAPH else 1), "the other one's task has ended"


@on_virtual_time
async def test_results_that_no_job_master_takes_over_are_dropped_with_their_slots(
    tmp_path: Path,
) -> None:
    """TM-28"""
    bench = Bench(tmp_path)
    executor = await with_result(bench)
    await asyncio.sleep(61)
    assert await results(executor) == ()
    assert await executor.can_be_released(RM_TOKEN)


@on_virtual_time
async def test_deployment_data_of_the_next_job_master_replaces_that_of_the_last(
    tmp_path: Path,
) -> None:
    """Each JobMaster numbers its parts: key 1 means one part for a JobMaster and another part for
    the next."""
    bench = Bench(tmp_path)
    executor = await with_result(bench)
    second = await bench.next_job_master(executor)
    await executor.adopt_slots(JOB, NEXT_MASTER, GRAPH, (A, B))
    message = deployments(vertex(3, finishes), TaskDeployment(2, 0, 0, B))
    parts = (message.parts[0], replace(message.parts[1], key=2))
    assert await executor.submit_tasks(replace(message, parts=parts), NEXT_MASTER, None) == (), (
        "in the process in which key 2 is a vertex that waits"
    )
    await second.wait_for(JobMasterGateway.tasks_reported)
    await eventually(lambda: told(second)[-1].state.is_terminal, 50, "its end")
    assert told(second)[-1].state is ExecutionState.FINISHED
    assert told(second)[-1].attempt_id.vertex.job_vertex_id == number(JobVertexID, 3)


# --- large reports --------------------------------------------------------------------------------


@pytest.mark.parametrize(("failures", "are_told"), [(1, True), (200, False)])
@on_virtual_time
async def test_task_report_at_a_take_over_that_exceeds_the_message_limit_is_shortened(
    tmp_path: Path, failures: int, are_told: bool
) -> None:
    """At first most texts are left out, and if that is not enough, everything but the tasks: a
    JobMaster cannot adopt a task that is not reported."""
    bench = Bench(tmp_path, {"rpc.frame-size": "64 kb"})
    executor, first = await bench.start_with_slot()
    await bench.request(executor, 1, B)
    await first.pool.wait_for(SlotPoolGateway.offer_slots, 2)
    running = task(B, attempt=1)
    await running.submit(executor)
    for subtask in range(1, failures + 1):
        deployed = task(A).deployments
        one = replace(deployed.tasks[0], subtask_index=subtask)
        await executor.submit_tasks(replace(deployed, tasks=(one,)), MASTER, None)
        await asyncio.sleep(0.01)
        attempt_id = next(a for a in bench.runner.failures if a.vertex.subtask_index == subtask)
        bench.runner.failures[attempt_id].set_exception(TaskError("x" * (100_000 // failures)))
        await first.wait_for(JobMasterGateway.tasks_reported, subtask)
    second = await bench.next_job_master(executor)
    report = reports_to(second)[-1]
    if are_told:
        ended = [one.ended for one in tasks_in(report).values() if one.ended is not None]
        assert [len(end.failure or "") <= 1024 for end in ended] == [True]
        assert not bench.runner.failures[running.attempt_id].done()
    else:
        assert (report.slots, report.graphs) == ((), ())
        _, offers = await second.pool.wait_for(SlotPoolGateway.offer_slots)
        assert {o.allocation_id for o in offers} <= {A, B}
        assert bench.runner.failures[running.attempt_id].cancelled()


# --- what tasks ask -------------------------------------------------------------------------------


@on_virtual_time
async def test_requests_of_tasks_fail_while_no_job_master_has_adopted_the_tasks(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)

    async def ask() -> None:
        await executor.request_partition_state(JOB, PARTITION)

    bench.network.crash("JobMaster-1")
    await asyncio.sleep(1)
    with pytest.raises(JobMasterAwayError):
        await ask()
    second = await bench.next_job_master(executor)
    with pytest.raises(JobMasterAwayError):
        await ask()  # it may not know the task yet
    await executor.adopt_slots(JOB, NEXT_MASTER, GRAPH, (A,))
    await ask()
    assert second.calls_of(JobMasterGateway.request_partition_state) == [(PARTITION,)]
