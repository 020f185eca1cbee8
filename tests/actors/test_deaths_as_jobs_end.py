"""What random deaths have brought to light around the end of a job: each as its moment."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.scheduler.graph.job_graph import NoRestart
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.function_tasks import TaskContext
from flinkray.testing.simulation import SimulatedProcess
from flinkray.testing.waiting import eventually
from tests.actors.bad_moments import (
    NODE,
    RUNS,
    dispatcher_is_back,
    losing,
    on_cluster,
    start_slowly,
    starts_of,
    until_executing,
    until_up,
)
from tests.actors.chaos_cluster import ChaosCluster


@on_cluster(NODE, configuration={"cluster.registration.error-delay": "30 s"})
async def test_new_dispatcher_accepts_a_job_end_before_the_job_master_registers(
    cluster: ChaosCluster,
) -> None:
    """DI-13. Otherwise the job would be executed a second time."""
    job_id = await cluster.submit(scripted_job(["register", "pause 5", "finish"]))
    await until_executing(cluster, job_id)
    cluster.crash("Dispatcher")
    await asyncio.sleep(6)

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "SparkDriver") == 1


@on_cluster(NODE)
async def test_result_is_stored_as_soon_as_the_storage_works_again(cluster: ChaosCluster) -> None:
    """DI-13. Otherwise the JobMaster's second report would be taken for stored, and the result
    would be lost."""
    job_id = await cluster.submit(scripted_job(["register", "pause 2", "finish"]))
    await until_executing(cluster, job_id)
    cluster.fail_storage(60)

    result = await cluster.result(job_id)

    assert result.status is JobStatus.FINISHED
    assert starts_of(cluster, "SparkDriver") == starts_of(cluster, "Dispatcher") == 1
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)
    assert await cluster.result(job_id) == result


@on_cluster(NODE)
async def test_job_end_not_stored_by_dead_dispatcher_is_reported_to_the_next(
    cluster: ChaosCluster,
) -> None:
    """JM-20: a JobMaster whose report is answered too early would be gone, and its job would run
    again."""
    job_id = await cluster.submit(scripted_job(["register", "pause 2", "finish"]))
    await until_executing(cluster, job_id)
    (master,) = cluster.processes("JobMaster")
    cluster.fail_storage(60)
    await asyncio.sleep(30)  # it has ended long ago
    cluster.crash("Dispatcher")
    await asyncio.sleep(20)
    assert cluster.processes("JobMaster") == [master]
    await asyncio.sleep(20)
    await dispatcher_is_back(cluster)

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "SparkDriver") == starts_of(cluster, "JobMaster") == 1


@on_cluster(NODE)
async def test_storage_failure_during_the_cleanup_of_a_job_kills_no_process(
    cluster: ChaosCluster,
) -> None:
    """DI-13."""

    def changed(process: SimulatedProcess) -> None:
        if process.kind == "JobMaster" and not process.is_alive:
            cluster.fail_storage(60)

    cluster.simulation.listeners.append(changed)
    job_id = await cluster.submit(scripted_job(["register", "finish"]))

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert asyncio.get_running_loop().time() < 60  # while the storage is away still
    assert cluster.stored_jobs.result_in("clean", job_id) is None
    await asyncio.sleep(70)
    assert cluster.stored_jobs.result_in("clean", job_id) is not None
    assert starts_of(cluster, "Dispatcher") == 1


@on_cluster(NODE, configuration={"jobmaster.max-failovers": "0"})
async def test_job_master_that_starts_while_the_dispatcher_dies_does_not_count_as_dead(
    cluster: ChaosCluster,
) -> None:
    """The next Dispatcher must not count a death because the name of its JobMaster is not free."""
    start_slowly(cluster, "JobMaster", 1.0)
    job_id = await cluster.submit(scripted_job(["register", "finish"]))
    await until_up(cluster, "JobMaster")
    cluster.set_conditions(latency=(0.1, 0.1))  # so that it is long there before it is told to go
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "SparkDriver") == 1


@on_cluster(NODE)
async def test_cancel_during_job_master_death_reaches_the_next_job_master(
    cluster: ChaosCluster,
) -> None:
    """DI-06."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    gateway = await cluster.dispatcher()
    cluster.crash("JobMaster")

    await gateway.cancel_job(job_id)

    assert (await cluster.result(job_id)).status is JobStatus.CANCELED


@on_cluster(NODE)
async def test_cancel_that_was_acknowledged_outlives_dispatcher_and_job_master(
    cluster: ChaosCluster,
) -> None:
    """DI-06. The two die before the Dispatcher has told the JobMaster of the cancel."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    cluster.crash("JobMaster")
    start_slowly(cluster, "JobMaster", 5.0)

    await (await cluster.dispatcher()).cancel_job(job_id)
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)

    assert (await asyncio.wait_for(cluster.result(job_id), 60)).status is JobStatus.CANCELED


@on_cluster(NODE)
async def test_cancel_reaches_living_job_master_after_broken_connection(
    cluster: ChaosCluster,
) -> None:
    """DI-06. Otherwise the JobMaster would be taken for dead, and only its successor would hear of
    the cancel."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    (master,) = cluster.processes("JobMaster")
    partition = cluster.simulation.partition(["Dispatcher"], [master])
    cancelling = asyncio.ensure_future((await cluster.dispatcher()).cancel_job(job_id))
    await asyncio.sleep(1)
    for connection in cluster.network.connections():
        ends = connection.near.process.name, connection.far.process.name
        if ends == ("Dispatcher", master):
            connection.break_off("the test wants it")
    cluster.simulation.heal(partition)
    await cancelling

    assert (await asyncio.wait_for(cluster.result(job_id), 60)).status is JobStatus.CANCELED
    assert starts_of(cluster, "JobMaster") == 1


@on_cluster(NODE)
async def test_task_end_is_reported_again_after_a_broken_connection(
    cluster: ChaosCluster,
) -> None:
    """Otherwise the JobMaster, which lives, would never learn of the end, and the job would stay
    CANCELLING."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    (master,) = cluster.processes("JobMaster")
    await (await cluster.dispatcher()).cancel_job(job_id)
    for connection in cluster.network.connections():
        if connection.far.process.name == master:
            connection.break_off("the test wants it")

    assert (await asyncio.wait_for(cluster.result(job_id), 60)).status is JobStatus.CANCELED


@on_cluster(NODE)
async def test_spark_stage_whose_driver_does_not_start_can_be_cancelled(
    cluster: ChaosCluster,
) -> None:
    """The node of the driver may be lost, and the start then waits until another node is there."""
    start_slowly(cluster, "SparkDriver", 3000.0)
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_up(cluster, "SparkDriver")

    await (await cluster.dispatcher()).cancel_job(job_id)

    result = await asyncio.wait_for(cluster.result(job_id), 60)
    assert result.status is JobStatus.CANCELED


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.04, 0.05, 0.06])
@on_cluster(
    NODE,
    configuration={"cluster.shutdown-grace": "0 s"},
    expected_error="did not end within 0 s; it is killed",
)
async def test_job_master_successor_started_during_shutdown_ends_with_cluster(
    cluster: ChaosCluster, delay: float
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    start_slowly(cluster, "JobMaster", delay)
    await (await cluster.dispatcher()).shut_down_cluster()
    await asyncio.sleep(5)
    assert cluster.processes() == []
    assert cluster.workers.groups == {}


@on_cluster(
    NODE,
    configuration={"cluster.shutdown-grace": "1 s"},
    expected_error="did not end within 1 s; it is killed",
)
async def test_shutdown_ends_the_cluster_although_storage_fails(
    cluster: ChaosCluster,
) -> None:
    """A cancel that cannot be stored must not stop the shutdown."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    cluster.fail_storage(600)
    await (await cluster.dispatcher()).shut_down_cluster()
    await asyncio.sleep(5)
    assert cluster.processes() == []
    assert cluster.workers.groups == {}


@on_cluster(NODE)
async def test_cancel_that_is_stored_while_the_job_ends_does_not_store_the_job_graph_again(
    cluster: ChaosCluster,
) -> None:
    """DI-13: the writes of a job's graph are done one after the other, and the next Dispatcher does
    not run the job."""
    job_id = await cluster.submit(scripted_job(["register", "pause 1", "finish"]))
    await until_executing(cluster, job_id)
    assert cluster.stored_jobs.graph(job_id) is not None

    cluster.set_conditions(blocking=(3.0, 3.0))
    gateway = await cluster.dispatcher()
    cancelling = asyncio.ensure_future(gateway.cancel_job(job_id))
    await asyncio.sleep(0.1)
    cluster.set_conditions(blocking=(0.0, 0.01))
    await eventually(lambda: cluster.has_result(str(job_id)), 2, "its result")
    assert not cancelling.done()

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    await asyncio.wait([cancelling])
    assert cluster.stored_jobs.graph(job_id) is None
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)
    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "JobMaster") == 1


async def writes(context: TaskContext) -> None:
    await context.outputs[0].write(0, b"data")


async def reads(context: TaskContext) -> None:
    assert await context.inputs[0].read_all() == [b"data"]


@on_cluster(NODE, configuration={"taskmanager.cpu.cores": "1"})
async def test_producer_of_a_partition_finishes_although_calls_of_its_reader_are_lost(
    cluster: ChaosCluster,
) -> None:
    """Otherwise the producer would wait for its reader for ever."""
    builder = PythonJobBuilder("exchange")
    builder.connect(builder.add(writes), builder.add(reads, slot_sharing_group="other"))
    with losing(cluster, "read_partition", number=2) as lost:
        job_id = await cluster.submit(builder.build())
        result = await asyncio.wait_for(cluster.result(job_id), 120)

    assert lost
    assert result.status is JobStatus.FINISHED


async def fails_at_ten(context: TaskContext) -> None:
    await asyncio.sleep(10 - asyncio.get_running_loop().time())
    raise ValueError(f"subtask {context.subtask_index}")


async def waits(context: TaskContext) -> None:
    await asyncio.get_running_loop().create_future()


@on_cluster(NODE, configuration={"taskmanager.cpu.cores": "1"})
async def test_task_that_failed_before_the_job_was_cancelled_is_awaited_until_reported(
    cluster: ChaosCluster,
) -> None:
    """EX-04. Otherwise the exceptions of the job would say that the task could not be cancelled."""
    builder = PythonJobBuilder("two fail", restart_strategy=NoRestart())
    builder.connect(builder.add(fails_at_ten, parallelism=2), builder.add(waits))
    job_id = await cluster.submit(builder.build())
    await until_executing(cluster, job_id)
    with losing(cluster, "tasks_reported", number=2) as lost:
        result = await asyncio.wait_for(cluster.result(job_id), 120)

    assert lost
    assert result.status is JobStatus.FAILED
    (failure,) = (await cluster.details(job_id)).exceptions
    texts = {entry.text for entry in (failure, *failure.concurrent)}
    assert texts == {"ValueError: subtask 0", "ValueError: subtask 1"}
