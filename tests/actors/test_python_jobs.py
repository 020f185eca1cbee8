"""Jobs of Python tasks on real masters, TaskExecutors and task processes, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.actors.slot_pool.endpoint import SlotPool
from flinkray.actors.task_executor.spare_task_processes import REFILL_PAUSE
from flinkray.core.errors import SuppressRestartsError
from flinkray.core.ids import JobID, ResourceID, ResourceManagerId
from flinkray.scheduler.graph.job_graph import (
    DistributionPattern,
    FixedDelayRestart,
    JobGraph,
    JobType,
    NoRestart,
    ResultPartitionType,
)
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.function_jobs import PythonJobBuilder, python_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.conftest import QUICK

FOUR_SLOTS = {**QUICK, "taskmanager.numberOfTaskSlots": "4", "taskmanager.cpu.cores": "1"}
ONE_PROCESS = {**FOUR_SLOTS, "taskmanager.slots-per-task-process": "4"}
POINTWISE = DistributionPattern.POINTWISE
BLOCKING = ResultPartitionType.BLOCKING


def finishing() -> Callable[[Any], Awaitable[None]]:
    async def finishes(context: Any) -> None:
        pass

    return finishes


def waiting() -> Callable[[Any], Awaitable[None]]:
    async def waits(context: Any) -> None:
        await asyncio.get_running_loop().create_future()

    return waits


def failing(text: str, *, first_attempts: int = 1000) -> Callable[[Any], Awaitable[None]]:
    async def fails(context: Any) -> None:
        if context.attempt_number < first_attempts:
            raise ValueError(text)

    return fails


def sending(buffers: int) -> Callable[[Any], Awaitable[None]]:
    async def sends(context: Any) -> None:
        (output,) = context.outputs
        for number in range(buffers):
            for subpartition in range(output.number_of_subpartitions):
                text = f"{context.subtask_index}>{subpartition}:{number}"
                await output.write(subpartition, text.encode())

    return sends


def expecting(producers: int, buffers: int) -> Callable[[Any], Awaitable[None]]:
    async def expects(context: Any) -> None:
        (gate,) = context.inputs
        data = await gate.read_all()
        me = context.subtask_index
        assert data == [
            f"{producer}>{me}:{number}".encode()
            for producer in range(producers)
            for number in range(buffers)
        ], data

    return expects


def exchange(result_type: ResultPartitionType, job_type: JobType) -> JobGraph:
    """Three tasks hand 20 buffers each to two others, which check them."""
    builder = PythonJobBuilder("exchange", job_type=job_type, restart_strategy=NoRestart())
    sender = builder.add(sending(20), name="sender", parallelism=3)
    receiver = builder.add(expecting(3, 20), name="receiver", parallelism=2)
    builder.connect(sender, receiver, result_type=result_type)
    return builder.build()


async def executions(cluster: MiniCluster, job_id: JobID) -> list[ExecutionInfo]:
    return [e for v in (await cluster.details(job_id)).vertices for e in v.executions]


def pools(cluster: MiniCluster) -> list[SlotPool]:
    endpoints = [e for s in cluster.network.services.values() for e in s.endpoints()]
    return [endpoint for endpoint in endpoints if isinstance(endpoint, SlotPool)]


def slots_of_pool(cluster: MiniCluster) -> list[AllocatedSlot]:
    """Return the slots of the cluster's only SlotPool, sorted by allocation id."""
    return sorted(
        (slot for pool in pools(cluster) for slot in pool._pool.slots),
        key=lambda slot: slot.allocation_id,
    )


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    for _ in range(3000):
        if await condition():
            return
        await asyncio.sleep(0.01)  # virtual
    raise AssertionError(f"never saw {what}")


async def until_running(cluster: MiniCluster, job_id: JobID, attempts: int = 0) -> None:
    """All run, in so many attempts at least, all together."""

    async def running() -> bool:
        found = await executions(cluster, job_id)
        made = sum(e.attempt_number + 1 for e in found)
        return made >= max(1, attempts) and all(e.state is ExecutionState.RUNNING for e in found)

    await until(running, "all RUNNING")


def users(cluster: MiniCluster) -> set[str]:
    """The task processes that were sent tasks."""

    def was_used(name: str) -> bool:
        handled = cluster.network.services[name].metrics.handled
        method = handled.get("TaskProcessGateway.run_tasks")
        return method is not None and method.calls > 0

    return {name for name in cluster.processes("TaskProcess") if was_used(name)}


async def until_only_waiting(cluster: MiniCluster, number: int) -> None:
    """So many task processes are there, and none has had a job."""

    def are_new() -> bool:
        return len(cluster.processes("TaskProcess")) == number and not users(cluster)

    await eventually(are_new, 50, "processes of ended jobs gone and replaced")


async def cancelled(cluster: MiniCluster, job_id: JobID) -> JobStatus:
    await (await cluster.dispatcher()).cancel_job(job_id)
    return (await cluster.result(job_id)).status


@on_virtual_time
async def test_a_job_of_one_function_finishes(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        result = await cluster.result(await cluster.submit(python_job(finishing())))

        assert result.status is JobStatus.FINISHED, result.failure


@on_virtual_time
async def test_cancelled_tasks_end_and_give_their_slots_back(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        job_id = await cluster.submit(python_job(waiting(), parallelism=4))
        await until_running(cluster, job_id)

        assert await cancelled(cluster, job_id) is JobStatus.CANCELED
        assert [e.state for e in await executions(cluster, job_id)] == [ExecutionState.CANCELED] * 4

        result = await cluster.result(await cluster.submit(python_job(finishing(), parallelism=4)))
        assert result.status is JobStatus.FINISHED
        assert len(cluster.processes("TaskExecutor")) == 1, "the same slots again"


@on_virtual_time
async def test_a_failing_task_fails_the_job_with_its_traceback(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        job = python_job(failing("the disk is full"), restart_strategy=NoRestart())

        result = await cluster.result(await cluster.submit(job))

        assert (result.status, result.failure) == (JobStatus.FAILED, "ValueError: the disk is full")
        assert "in fails" in (result.failure_traceback or "")


@on_virtual_time
async def test_a_task_that_fails_twice_is_restarted_and_finishes(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        job = python_job(
            failing("again", first_attempts=2), restart_strategy=FixedDelayRestart(2, 0.1)
        )
        job_id = await cluster.submit(job)

        assert (await cluster.result(job_id)).status is JobStatus.FINISHED
        details = await cluster.details(job_id)
        assert details.restarts == 2
        assert [entry.text for entry in details.exceptions] == ["ValueError: again"] * 2


@on_virtual_time
async def test_task_that_suppresses_restarts_is_not_restarted(tmp_path: Path) -> None:
    async def gives_up(context: Any) -> None:
        raise SuppressRestartsError("there is no such table")

    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        job_id = await cluster.submit(python_job(gives_up))

        assert (await cluster.result(job_id)).status is JobStatus.FAILED
        assert (await cluster.details(job_id)).restarts == 0


@on_virtual_time
async def test_pipelined_results_are_read_while_they_are_written(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        job = exchange(ResultPartitionType.PIPELINED_BOUNDED, JobType.STREAMING)

        result = await cluster.result(await cluster.submit(job))

        assert result.status is JobStatus.FINISHED, result.failure


@on_virtual_time
async def test_blocking_results_are_read_once_finished_and_then_released(
    tmp_path: Path,
) -> None:
    """JM-21."""
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        job_id = await cluster.submit(exchange(BLOCKING, JobType.BATCH))

        result = await cluster.result(job_id)

        assert result.status is JobStatus.FINISHED, result.failure
        sent, received = (v.executions for v in (await cluster.details(job_id)).vertices)
        ends = [e.end_time for e in sent if e.end_time is not None]
        starts = [e.start_time for e in received if e.start_time is not None]
        assert len(ends) == 3
        assert max(ends) <= min(starts)
        await until_only_waiting(cluster, 4)


@on_virtual_time
async def test_a_lost_blocking_result_is_produced_again(tmp_path: Path) -> None:
    """TM-26: the reader does not find the partition of a process that died, and fails. Both the
    producer and the reader are executed again."""

    async def sends_late(context: Any) -> None:
        await asyncio.sleep(0.1)
        await context.outputs[0].write(0, b"data")

    async def reads_late(context: Any) -> None:
        await asyncio.sleep(5)
        assert await context.inputs[0].read_all() == [b"data"]

    configuration = {**QUICK, "taskmanager.network.request-backoff.max": "200 ms"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        builder = PythonJobBuilder("two", job_type=JobType.BATCH)
        sender = builder.add(sends_late, cpu=1, slot_sharing_group="a")
        receiver = builder.add(reads_late, cpu=1, slot_sharing_group="b")
        builder.connect(sender, receiver, result_type=BLOCKING)
        job_id = await cluster.submit(builder.build())

        async def receiver_runs() -> bool:
            found = await executions(cluster, job_id)
            return len(found) == 2 and found[1].state is ExecutionState.RUNNING

        await until(receiver_runs, "the receiver RUNNING")
        sent = (await executions(cluster, job_id))[0]
        where = (sent.location or "").split()[0]
        (process,) = (p for p in cluster.processes("TaskProcess") if p.endswith(where))
        cluster.network.crash(process)

        result = await cluster.result(job_id)
        assert result.status is JobStatus.FINISHED, result.failure
        sent = (await executions(cluster, job_id))[0]
        assert sent.attempt_number == 1
        exceptions = (await cluster.details(job_id)).exceptions
        assert any("ResultPartitionNotFoundError" in e.text or "died" in e.text for e in exceptions)


@on_virtual_time
async def test_one_restart_reproduces_all_results_lost_with_a_task_process(
    tmp_path: Path,
) -> None:
    """TM-26: a reader that cannot read one result reports which other results are missing."""

    async def reads_late(context: Any) -> None:
        await asyncio.sleep(5)
        assert len(await context.inputs[0].read_all()) == 4

    configuration = {**ONE_PROCESS, "taskmanager.network.request-backoff.max": "200 ms"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        builder = PythonJobBuilder(
            "two", job_type=JobType.BATCH, restart_strategy=FixedDelayRestart(9, 0.01)
        )
        sender = builder.add(sending(1), parallelism=4)
        receiver = builder.add(reads_late)
        builder.connect(sender, receiver, result_type=BLOCKING)
        job_id = await cluster.submit(builder.build())

        async def receiver_runs() -> bool:
            found = await executions(cluster, job_id)
            return len(found) == 5 and found[4].state is ExecutionState.RUNNING

        await until(receiver_runs, "the receiver RUNNING")
        (process,) = cluster.processes("TaskProcess")
        cluster.network.crash(process)
        assert (await cluster.result(job_id)).status is JobStatus.FINISHED
        found = await executions(cluster, job_id)
        assert [one.attempt_number for one in found] == [1, 1, 1, 1, 2]
        assert (await cluster.details(job_id)).restarts == 2


@on_virtual_time
async def test_death_of_a_task_process_restarts_only_its_region_and_not_its_task_executor(
    tmp_path: Path,
) -> None:
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        builder = PythonJobBuilder("pairs")
        first = builder.add(waiting(), name="first", parallelism=4)
        second = builder.add(waiting(), name="second", parallelism=4)
        builder.connect(first, second, pattern=POINTWISE)
        job_id = await cluster.submit(builder.build())
        await until_running(cluster, job_id)
        before = cluster.processes("TaskExecutor")

        died = cluster.crash("TaskProcess-2")
        await until_running(cluster, job_id, attempts=10)

        details = await cluster.details(job_id)
        restarted = [[e.attempt_number for e in v.executions] for v in details.vertices]
        assert restarted[0] == restarted[1]
        assert sorted(restarted[0]) == [0, 0, 0, 1]
        assert cluster.processes("TaskExecutor") == before
        assert died in details.exceptions[0].text
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_prestarted_task_process_replaces_a_dead_one_and_is_itself_replaced(
    tmp_path: Path,
) -> None:
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        job_id = await cluster.submit(python_job(waiting(), parallelism=4))
        await until_running(cluster, job_id)
        running = cluster.processes("TaskProcess")

        def are_waiting() -> bool:
            return len(cluster.processes("TaskProcess")) == 8

        await eventually(are_waiting, 50, "as many that wait as slots")
        waiting_ones = cluster.processes("TaskProcess")[4:]
        died = cluster.crash(running[1])
        began = asyncio.get_running_loop().time()
        await until_running(cluster, job_id, attempts=5)
        assert asyncio.get_running_loop().time() - began < REFILL_PAUSE, "nothing was started"
        assert died in (await cluster.details(job_id)).exceptions[0].text

        await eventually(are_waiting, 50, "another one that waits")
        cluster.crash(waiting_ones[3])
        await eventually(are_waiting, 50, "one in its stead")
        cluster.crash(waiting_ones[0])
        await until_running(cluster, job_id, attempts=6)
        assert (await cluster.details(job_id)).restarts == 2
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_each_job_has_own_task_processes_that_end_with_the_job(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        first = await cluster.submit(python_job(waiting(), parallelism=2))
        await until_running(cluster, first)
        of_first = users(cluster)
        second = await cluster.submit(python_job(waiting(), parallelism=2))
        await until_running(cluster, second)
        of_second = users(cluster) - of_first
        assert len(of_first) == len(of_second) == 2

        assert await cancelled(cluster, first) is JobStatus.CANCELED
        await eventually(lambda: not of_first & {*cluster.processes()}, 50, "its processes gone")

        third = await cluster.submit(python_job(waiting(), parallelism=2))
        await until_running(cluster, third)
        assert len(users(cluster) - of_second) == 2
        assert of_second <= {*cluster.processes()}, "another job's go on"


@on_virtual_time
async def test_each_job_has_its_own_task_process_though_slots_of_a_job_share_one(
    tmp_path: Path,
) -> None:
    async with MiniCluster(str(tmp_path), configuration=ONE_PROCESS) as cluster:
        for number in (1, 2):
            job_id = await cluster.submit(python_job(waiting(), parallelism=2))
            await until_running(cluster, job_id)
            assert len(users(cluster)) == number
        assert len(cluster.processes("TaskExecutor")) == 1


@on_virtual_time
async def test_each_job_in_a_slot_gets_a_new_process(tmp_path: Path) -> None:
    """Ten jobs in a row: no job sees what another job has done to its process."""
    async with MiniCluster(str(tmp_path), configuration=ONE_PROCESS) as cluster:
        seen: set[str] = set()
        for _ in range(10):
            job_id = await cluster.submit(python_job(waiting()))
            await until_running(cluster, job_id)
            (process,) = users(cluster)
            assert process not in seen
            seen.add(process)
            assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_task_process_in_a_freed_slot_lives_until_its_results_are_released(
    tmp_path: Path,
) -> None:
    """TM-28"""
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        builder = PythonJobBuilder("job", job_type=JobType.BATCH)
        producer = builder.add(sending(1), parallelism=2)
        reader = builder.add(waiting())
        builder.connect(producer, reader, result_type=BLOCKING)
        job_id = await cluster.submit(builder.build())

        async def reader_runs() -> bool:
            found = await executions(cluster, job_id)
            return len(found) == 3 and found[2].state is ExecutionState.RUNNING

        await until(reader_runs, "the reader RUNNING")
        await asyncio.sleep(100)
        assert len(slots_of_pool(cluster)) == 1, "the other slot of the producers is free"
        assert len(users(cluster)) == 2

        assert await cancelled(cluster, job_id) is JobStatus.CANCELED
        await eventually(lambda: not users(cluster), 300, "both processes gone")


@on_virtual_time
async def test_only_the_regions_on_a_dead_task_executor_restart(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), configuration=ONE_PROCESS) as cluster:
        job_id = await cluster.submit(python_job(waiting(), parallelism=8))
        await until_running(cluster, job_id)

        cluster.crash("TaskExecutor")
        await until_running(cluster, job_id, attempts=12)

        attempts = [e.attempt_number for e in await executions(cluster, job_id)]
        assert sorted(attempts) == [0] * 4 + [1] * 4
        assert (await cluster.details(job_id)).restarts == 1
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_death_of_the_slot_pool_of_a_job_restarts_none_of_its_tasks(tmp_path: Path) -> None:
    """Otherwise all tasks would be started again, because the next SlotPool knows of no slot."""
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        job_id = await cluster.submit(python_job(waiting(), parallelism=4))
        await until_running(cluster, job_id)
        before, slots = await executions(cluster, job_id), slots_of_pool(cluster)

        cluster.crash("SlotPool")
        await eventually(lambda: cluster.processes("SlotPool"), 50, "another SlotPool")
        await asyncio.sleep(120)  # what nobody uses has been given back by now

        assert await executions(cluster, job_id) == before
        assert slots_of_pool(cluster) == slots
        assert (await cluster.details(job_id)).restarts == 0
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_pending_slot_requests_of_a_dead_slot_pool_are_served_by_the_next_pool(
    tmp_path: Path,
) -> None:
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        job_id = await cluster.submit(python_job(waiting(), parallelism=4))
        await eventually(lambda: pools(cluster), 50, "a SlotPool")
        await eventually(lambda: pools(cluster)[0]._pool.number_pending, 50, "its requests")
        assert not slots_of_pool(cluster)

        cluster.crash("SlotPool")
        await until_running(cluster, job_id)

        assert (await cluster.details(job_id)).restarts == 0
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@pytest.mark.parametrize(
    ("of_cluster", "of_job"),
    [({"task.cancellation.timeout": "7 s"}, {}), ({}, {"task.cancellation.timeout": "7 s"})],
)
@on_virtual_time
async def test_task_process_is_ended_when_a_task_ignores_its_cancellation(
    tmp_path: Path, of_cluster: dict[str, str], of_job: dict[str, str]
) -> None:
    async def stubborn(context: Any) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async with MiniCluster(str(tmp_path), configuration={**QUICK, **of_cluster}) as cluster:
        job_id = await cluster.submit(python_job(stubborn, configuration=of_job))
        await until_running(cluster, job_id)
        (before,) = cluster.processes("TaskProcess")
        began = asyncio.get_running_loop().time()

        assert await cancelled(cluster, job_id) is JobStatus.CANCELED

        assert 7 <= asyncio.get_running_loop().time() - began < 8
        assert before not in cluster.processes("TaskProcess")
        texts = [entry.text for entry in (await cluster.details(job_id)).exceptions]
        assert any("did not end within 7 s after it was cancelled" in text for text in texts)


@on_virtual_time
async def test_later_attempt_in_the_same_slot_sees_python_variables_of_earlier_attempts(
    tmp_path: Path,
) -> None:
    """TM-25."""
    calls: list[int] = []

    async def counts(context: Any) -> None:
        calls.append(context.attempt_number)  # of the unpickled copy
        if len(calls) < 3:
            raise ValueError(f"call {len(calls)}")

    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        job_id = await cluster.submit(python_job(counts))

        assert (await cluster.result(job_id)).status is JobStatus.FINISHED
        texts = [entry.text for entry in (await cluster.details(job_id)).exceptions]
        assert texts == ["ValueError: call 1", "ValueError: call 2"]
        result = await cluster.result(
            await cluster.submit(python_job(counts, restart_strategy=NoRestart()))
        )
        assert result.failure == "ValueError: call 1", "not what another job has left"


@on_virtual_time
async def test_number_of_deployment_messages_does_not_grow_with_the_number_of_tasks(
    tmp_path: Path,
) -> None:
    async def deployment(parallelism: int, storage: str) -> dict[str, int]:
        async with MiniCluster(storage, configuration=ONE_PROCESS) as cluster:
            job_id = await cluster.submit(python_job(waiting(), parallelism=parallelism))
            await until_running(cluster, job_id)
            calls: dict[str, int] = {}
            for service in cluster.network.services.values():
                for name, metrics in service.metrics.called.items():
                    calls[name] = calls.get(name, 0) + metrics.calls
            return calls

    one = await deployment(1, str(tmp_path / "one"))
    four = await deployment(4, str(tmp_path / "four"))
    for method in (
        "SlotPoolGateway.request_slots",
        "TaskExecutorGateway.request_slots",
        "SlotPoolGateway.offer_slots",
        "TaskExecutorGateway.submit_tasks",
        "TaskProcessGateway.run_tasks",
        "TaskProcessListenerGateway.tasks_reported",
        "JobMasterGateway.tasks_reported",
    ):
        assert one[method] == four[method] == 1, method


MESSAGES = (
    "DispatcherGateway.submit_job",
    "DispatcherGateway.register_job_master",
    "ResourceManagerGateway.register_job_master",
    "JobMasterGateway.request_job_status",  # by the ResourceManager, which looks who is there
    "SlotPoolGateway.connect_to_resource_manager",
    "SlotPoolGateway.request_slots",
    "ResourceManagerGateway.declare_required_resources",
    "TaskExecutorGateway.request_slots",
    "JobMasterGateway.register_task_executor",
    "SlotPoolGateway.register_task_executors",
    "SlotPoolGateway.offer_slots",
    "JobMasterGateway.slots_changed",
    "SlotPoolGateway.keep",  # before the deployment, for the next JobMaster
    "TaskExecutorGateway.submit_tasks",
    "TaskProcessGateway.run_tasks",
    "TaskProcessListenerGateway.tasks_reported",
    "JobMasterGateway.tasks_reported",
)


def calls(cluster: MiniCluster) -> Counter[str]:
    """Of all processes, by method."""
    found: Counter[str] = Counter()
    for service in cluster.network.services.values():
        for name, metrics in service.metrics.called.items():
            found[name] += metrics.calls
    return found


@on_virtual_time
async def test_job_with_one_task_on_a_running_cluster_takes_seventeen_rpc_messages(
    tmp_path: Path,
) -> None:
    """On a cluster that runs already. Before, there were 19 messages: the SlotPool was told of each
    TaskExecutor before its offer and was asked for a heartbeat at its start, and the task process
    of the next job was started."""
    async with MiniCluster(str(tmp_path), configuration=ONE_PROCESS) as cluster:
        warm_up = await cluster.submit(python_job(waiting()))
        await until_running(cluster, warm_up)
        assert await cancelled(cluster, warm_up) is JobStatus.CANCELED

        before = calls(cluster)
        job_id = await cluster.submit(python_job(waiting()))
        await until_running(cluster, job_id)
        made = calls(cluster) - before

        asked = {name for name in made if name.endswith("request_job_details")}  # by this test
        assert Counter({n: made[n] for n in made.keys() - asked}) == Counter(MESSAGES)


@on_virtual_time
async def test_task_executor_death_that_is_reported_repeatedly_counts_as_one_failure(
    tmp_path: Path,
) -> None:
    """The ResourceManager reports the death for each slot, then the watch reports it, and the
    SlotPool last."""
    async with MiniCluster(str(tmp_path), configuration=ONE_PROCESS) as cluster:
        job = python_job(waiting(), parallelism=4, restart_strategy=FixedDelayRestart(1, 0.0))
        job_id = await cluster.submit(job)
        await until_running(cluster, job_id)
        (name,) = cluster.processes("JobMaster")
        (master,) = cluster.network.services[name].endpoints()
        assert isinstance(master, JobMaster)
        executor = ResourceID(cluster.processes("TaskExecutor")[0])

        gateway = master._leaders._resource_manager.target_gateway
        assert gateway is not None
        manager = gateway.fencing_token
        assert isinstance(manager, ResourceManagerId)
        for _ in master._slots.ledger.on(executor):
            await master.notify_task_executor_lost(manager, executor, "it was faster")
        cluster.network.crash(executor)
        await until_running(cluster, job_id, attempts=8)

        assert (await cluster.details(job_id)).restarts == 1
