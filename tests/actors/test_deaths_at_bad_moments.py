"""What random deaths have brought to light, and reading the code with them in mind: each as the
moment that it takes."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors import dispatcher
from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.task_process.context import TaskContext
from flinkray.client.python_job import PythonJobBuilder
from flinkray.core.errors import JobSubmissionError
from flinkray.core.ids import (
    AllocationID,
    FencingToken,
    JobID,
    JobMasterId,
    ResourceID,
    WorkerGroupId,
)
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import RegistrationFailure
from flinkray.rpc.envelope import unpack
from flinkray.scheduler.job_graph import FixedDelayRestart, NoRestart
from flinkray.scheduler.slots import AllocatedSlot, WorkerLocation
from flinkray.scheduler.states import ExecutionState, JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.simulation import SimulatedNetwork, SimulatedProcess, Simulation, simulate
from flinkray.testing.simulation.disk import SimulatedDisk
from flinkray.testing.simulation.link import End
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.chaos_cluster import ChaosCluster
from tests.actors.resource_cluster import ONE_CPU, ResourceCluster, number

NODE = ResourceProfile(4, 2**33)
RUNS = ["register", "wait"]

Test = Callable[..., Awaitable[None]]


def on_cluster(
    *nodes: ResourceProfile,
    configuration: dict[str, str] | None = None,
    expected_error: str | None = None,
) -> Callable[[Test], Callable[..., None]]:
    """Runs a test in a simulation, with a cluster in which everything takes a while.

    *expected_error*: what is in the first, and only, error that is logged.
    """

    def decorate(test: Test) -> Callable[..., None]:
        async def run(simulation: Simulation, **parameters: Any) -> None:
            cluster = ChaosCluster(
                simulation,
                *nodes,
                configuration=configuration or {},
                expected_error=expected_error,
            )
            cluster.set_conditions(restart=(0.0, 0.0))
            async with cluster:
                await test(cluster, **parameters)
            assert cluster.expected_error is None, "the error was not logged"

        functools.update_wrapper(run, test)
        del run.__wrapped__  # type: ignore[attr-defined]
        _, *parameters = inspect.signature(test).parameters.values()
        one = inspect.Parameter("simulation", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature(
            [
                one,
                *(  # type: ignore[attr-defined]
                    parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                    for parameter in parameters
                ),
            ]
        )
        return simulate(seeds=3)(run)

    return decorate


def starts_of(cluster: ChaosCluster, kind: str) -> int:
    """How many processes of a kind have been started."""
    return sum(name.startswith(kind) for name in cluster.starts)


def start_slowly(cluster: ChaosCluster, kind: str, delay: float) -> None:
    """From now on processes of a kind take so long, and others no time."""
    cluster.set_conditions(start=(0.0, 0.0))
    cluster.simulation.durations.start_times[kind] = delay, delay


async def until_up(cluster: ChaosCluster, kind: str) -> None:
    await eventually(lambda: cluster.processes(kind), 10, f"a {kind}")


async def until_executing(cluster: ChaosCluster, job_id: JobID) -> None:
    async def executing() -> bool:
        vertices = (await cluster.details(job_id)).vertices
        executions = [e for vertex in vertices for e in vertex.executions]
        return bool(executions) and all(e.state is ExecutionState.RUNNING for e in executions)

    await eventually(executing, 30, "all executions RUNNING")


async def dispatcher_is_back(cluster: ChaosCluster) -> None:
    async def answers() -> bool:
        await (await cluster.dispatcher()).list_jobs()
        return True

    await eventually(answers, 30, "the Dispatcher's answer")


@contextmanager
def losing(cluster: ChaosCluster, method: str, number: int = 1) -> Iterator[list[str]]:
    """The call of that method with that number, counted from 1, does not arrive; gives who sent
    it."""
    befall = SimulatedNetwork.befall
    seen: list[str] = []
    lost: list[str] = []

    def lose(network: SimulatedNetwork, end: End, frame: bytes, lane: int | None) -> None:
        if unpack(frame).method == method:
            seen.append(end.process.name)
            if len(seen) == number:
                lost.append(end.process.name)
                end.lose(frame, "lost")
                return
        befall(network, end, frame, lane)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedNetwork, "befall", lose)
        cluster.network.is_faulty = True
        yield lost


# --- the end of a job -----------------------------------------------------------------------------


@on_cluster(NODE, configuration={"cluster.registration.error-delay": "30 s"})
async def test_end_reported_to_a_new_dispatcher_before_registering_there_counts(
    cluster: ChaosCluster,
) -> None:
    """DI-13.  The job was executed a second time."""
    job_id = await cluster.submit(scripted_job(["register", "pause 5", "finish"]))
    await until_executing(cluster, job_id)
    cluster.crash("Dispatcher")
    await asyncio.sleep(6)

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "SparkDriver") == 1


@on_cluster(NODE)
async def test_result_is_stored_as_soon_as_the_storage_works_again(cluster: ChaosCluster) -> None:
    """DI-13.  The JobMaster's second report was taken for stored, and the result was lost."""
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
async def test_storage_that_fails_while_a_job_is_cleaned_up_kills_nobody(
    cluster: ChaosCluster,
) -> None:
    """DI-13."""

    def changed(process: SimulatedProcess) -> None:
        if process.kind == "JobMaster" and not process.is_alive:
            cluster.fail_storage(60)

    cluster.simulation.listeners.append(changed)
    job_id = await cluster.submit(scripted_job(["register", "finish"]))

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert asyncio.get_running_loop().time() > 60
    assert starts_of(cluster, "Dispatcher") == 1


@on_cluster(NODE, configuration={"jobmaster.max-failovers": "0"})
async def test_job_master_that_starts_while_the_dispatcher_dies_does_not_count_as_dead(
    cluster: ChaosCluster,
) -> None:
    """The next Dispatcher counted against the job that the name of its JobMaster was not free."""
    start_slowly(cluster, "JobMaster", 1.0)
    job_id = await cluster.submit(scripted_job(["register", "finish"]))
    await until_up(cluster, "JobMaster")
    cluster.set_conditions(latency=(0.1, 0.1))  # so that it is long there before it is told to go
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "SparkDriver") == 1


@on_cluster(NODE)
async def test_cancel_at_the_moment_of_the_job_masters_death_is_told_to_the_next(
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
    """DI-06.  It was forgotten when both died before the one had told the other."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    cluster.crash("JobMaster")
    start_slowly(cluster, "JobMaster", 5.0)

    await (await cluster.dispatcher()).cancel_job(job_id)
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)

    assert (await asyncio.wait_for(cluster.result(job_id), 60)).status is JobStatus.CANCELED


@on_cluster(NODE)
async def test_cancel_whose_connection_breaks_reaches_a_job_master_that_lives(
    cluster: ChaosCluster,
) -> None:
    """DI-06.  The JobMaster was taken for dead, and its successor was to hear it."""
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
async def test_end_of_a_task_whose_report_meets_a_broken_connection_is_reported_again(
    cluster: ChaosCluster,
) -> None:
    """The JobMaster lived and never learned of it: the job was cancelling for ever."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    (master,) = cluster.processes("JobMaster")
    await (await cluster.dispatcher()).cancel_job(job_id)
    for connection in cluster.network.connections():
        if connection.far.process.name == master:
            connection.break_off("the test wants it")

    assert (await asyncio.wait_for(cluster.result(job_id), 60)).status is JobStatus.CANCELED


@on_cluster(NODE)
async def test_stage_whose_driver_does_not_come_can_be_cancelled(cluster: ChaosCluster) -> None:
    """Its placement may be gone with a node, and then it waits for as long as that takes."""
    start_slowly(cluster, "SparkDriver", 3000.0)
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_up(cluster, "SparkDriver")

    await (await cluster.dispatcher()).cancel_job(job_id)

    result = await asyncio.wait_for(cluster.result(job_id), 60)
    assert result.status is JobStatus.CANCELED


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.04, 0.05, 0.06])
@on_cluster(NODE, expected_error="did not end within 0 s; it is killed")
async def test_successor_of_a_job_master_that_is_killed_by_a_shutdown_does_not_outlive_the_cluster(
    cluster: ChaosCluster, delay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    start_slowly(cluster, "JobMaster", delay)
    monkeypatch.setattr(dispatcher, "_CANCEL_GRACE", 0.0)
    await (await cluster.dispatcher()).shut_down_cluster()
    await asyncio.sleep(5)
    assert cluster.processes() == []
    assert cluster.workers.groups == {}


@on_cluster(NODE, expected_error="did not end within 1 s; it is killed")
async def test_a_shutdown_while_the_storage_fails_ends_the_cluster_all_the_same(
    cluster: ChaosCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the cancel could not be stored was the end of it, and the cluster went on."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    monkeypatch.setattr(dispatcher, "_CANCEL_GRACE", 1.0)
    cluster.fail_storage(600)
    await (await cluster.dispatcher()).shut_down_cluster()
    await asyncio.sleep(5)
    assert cluster.processes() == []
    assert cluster.workers.groups == {}


@on_cluster(NODE)
async def test_a_cancel_that_is_being_stored_as_the_job_ends_brings_no_graph_back(
    cluster: ChaosCluster,
) -> None:
    """DI-13: the writers of a job's graph take turns, and the next Dispatcher does not run it."""
    job_id = await cluster.submit(scripted_job(["register", "pause 1", "finish"]))
    await until_executing(cluster, job_id)
    graph = f"cluster/job-graphs/{job_id}.graph"
    disk = cluster.simulation.disk()
    assert disk.holds(graph)

    cluster.set_conditions(blocking=(3.0, 3.0))
    gateway = await cluster.dispatcher()
    cancelling = asyncio.ensure_future(gateway.cancel_job(job_id))
    await asyncio.sleep(0.1)
    cluster.set_conditions(blocking=(0.0, 0.01))
    await eventually(lambda: cluster.has_result(str(job_id)), 2, "its result")
    assert not cancelling.done()

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    await asyncio.wait([cancelling])
    assert not disk.holds(graph)
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)
    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "JobMaster") == 1


async def writes(context: TaskContext) -> None:
    await context.outputs[0].write(0, b"data")


async def reads(context: TaskContext) -> None:
    assert await context.inputs[0].read_all() == [b"data"]


@on_cluster(NODE, configuration={"taskmanager.cpu.cores": "1"})
async def test_producer_whose_reader_cannot_say_that_all_is_read_hears_it_later(
    cluster: ChaosCluster,
) -> None:
    """It waited for that for ever."""
    builder = PythonJobBuilder("exchange")
    builder.connect(builder.add(writes), builder.add(reads, slot_sharing_group="other"))
    with losing(cluster, "read_partition", number=2) as lost:
        job_id = await cluster.submit(builder.build())
        result = await asyncio.wait_for(cluster.result(job_id), 120)

    assert lost
    assert result.status is JobStatus.FINISHED


# --- submitting and listing -----------------------------------------------------------------------


@on_cluster(NODE)
async def test_who_waits_for_a_job_that_is_refused_is_told(cluster: ChaosCluster) -> None:
    job = scripted_job(RUNS)
    gateway = await cluster.dispatcher()
    cluster.fail_storage(1)

    answers = await asyncio.gather(
        gateway.submit_job(job),
        gateway.request_job_result(job.job_id),
        return_exceptions=True,
    )

    assert [type(answer) for answer in answers] == [JobSubmissionError, JobSubmissionError]
    await asyncio.sleep(1)
    await gateway.submit_job(job)


@on_cluster(NODE)
async def test_second_submission_of_a_job_that_is_being_stored_is_refused_with_the_first(
    cluster: ChaosCluster,
) -> None:
    """It was told that the job had been submitted before, and then the job could not be stored."""
    job = scripted_job(RUNS)
    gateway = await cluster.dispatcher()
    cluster.fail_storage(1)

    answers = await asyncio.gather(
        gateway.submit_job(job), gateway.submit_job(job), return_exceptions=True
    )

    assert [type(answer) for answer in answers] == [JobSubmissionError, JobSubmissionError]


@on_cluster(NODE)
async def test_job_that_was_refused_is_not_run_by_a_later_dispatcher(
    cluster: ChaosCluster,
) -> None:
    """Its graph had been stored, and what failed was to make it durable."""
    job = scripted_job(RUNS)
    disk = cluster.simulation.disk()
    sync = SimulatedDisk.sync_directory

    def fail(self: SimulatedDisk, directory: str) -> None:
        sync(self, directory)
        if directory.endswith("job-graphs") and not failed:
            failed.append(directory)
            raise OSError("it is stored, and yet it fails")

    failed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedDisk, "sync_directory", fail)
        with pytest.raises(JobSubmissionError, match="could not be stored"):
            await cluster.submit(job)
    assert not disk.holds(f"cluster/job-graphs/{job.job_id}.graph")
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)

    assert await (await cluster.dispatcher()).list_jobs() == ()


@on_cluster(NODE)
async def test_submitter_is_told_when_it_cannot_be_known_whether_the_job_is_stored(
    cluster: ChaosCluster,
) -> None:
    job = scripted_job(["register", "finish"])
    cluster.fail_storage(30)
    with pytest.raises(JobSubmissionError, match="submit it again under this id"):
        await cluster.submit(job)

    async def submitted() -> bool:
        await cluster.submit(job)
        return True

    await eventually(submitted, 60, "the submission")
    assert (await cluster.result(job.job_id)).status is JobStatus.FINISHED


@on_cluster(NODE, configuration={"jobstore.expiration-time": "100 s", "jobstore.max-capacity": "2"})
async def test_ended_jobs_are_forgotten_when_they_are_old_or_too_many(
    cluster: ChaosCluster,
) -> None:
    jobs = [scripted_job(["register", "finish"]) for _ in range(3)]
    for job in jobs:
        await cluster.submit(job)
        await cluster.result(job.job_id)

    async def listed() -> set[JobID]:
        return {job.job_id for job in await (await cluster.dispatcher()).list_jobs()}

    async def newest_are_listed() -> bool:
        return await listed() == {job.job_id for job in jobs[1:]}

    await eventually(newest_are_listed, 10, "the last two")
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)
    assert await newest_are_listed()
    await asyncio.sleep(120)
    assert await listed() == set()
    assert not any(cluster.has_result(job.job_id.hex()) for job in jobs)


@on_cluster(NODE)
async def test_jobs_can_be_listed_while_others_are_submitted(cluster: ChaosCluster) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    gateway = await cluster.dispatcher()

    listing = asyncio.ensure_future(gateway.list_jobs())
    await asyncio.gather(*(gateway.submit_job(scripted_job(RUNS)) for _ in range(3)))

    assert job_id in {job.job_id for job in await listing}


# --- slots ----------------------------------------------------------------------------------------


@on_cluster(NODE)
async def test_slot_pool_that_dies_while_it_starts_is_followed_by_another(
    cluster: ChaosCluster,
) -> None:
    """Seed 6.  It was the end of the JobMaster."""
    start_slowly(cluster, "SlotPool", 0.3)
    job = scripted_job(["register", "finish"], restart_strategy=NoRestart())
    job_id = await cluster.submit(job)
    await until_up(cluster, "SlotPool")
    cluster.crash("SlotPool")

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "JobMaster") == 1
    assert starts_of(cluster, "SlotPool") == 2


@on_cluster(NODE)
async def test_new_slot_pool_knows_task_executors_that_registered_before_it_was_there(
    cluster: ChaosCluster,
) -> None:
    """Their offers were refused, and they could not register a second time."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(1, 0.0)))
    await until_executing(cluster, job_id)
    start_slowly(cluster, "SlotPool", 2.0)
    cluster.crash("SlotPool")
    await asyncio.sleep(0.1)

    await asyncio.wait_for(until_executing(cluster, job_id), 10)
    assert len(cluster.workers.starts) == 2


@on_cluster(NODE)
async def test_hung_slot_pool_is_replaced(cluster: ChaosCluster) -> None:
    """Nobody noticed, and its job got no slot any more."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(1, 0.0)))
    await until_executing(cluster, job_id)
    cluster.simulation.hang(cluster.processes("SlotPool")[0])

    await eventually(lambda: starts_of(cluster, "SlotPool") == 2, 100, "another SlotPool")
    await until_executing(cluster, job_id)


@on_cluster(NODE)
async def test_slot_pool_that_misses_what_its_job_master_says_is_replaced(
    cluster: ChaosCluster,
) -> None:
    """It never learned of the ResourceManager, and its job waited for ever."""
    cluster.crash("ResourceManager")
    cluster.set_conditions(restart=(10.0, 10.0))
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(1, 0.0)))
    await eventually(lambda: cluster.network.services.get("ResourceManager"), 20, "it is back")
    (pool,), (master,) = cluster.processes("SlotPool"), cluster.processes("JobMaster")
    partition = cluster.simulation.partition([master], [pool], one_way=True)
    await eventually(lambda: starts_of(cluster, "SlotPool") == 2, 100, "another SlotPool")
    cluster.simulation.heal(partition)

    await until_executing(cluster, job_id)


@on_cluster(NODE)
async def test_resource_manager_that_is_lost_and_back_while_a_slot_pool_starts_is_known_to_it(
    cluster: ChaosCluster,
) -> None:
    """It was told of the loss when it was there at last, and declared nothing any more."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(1, 0.0)))
    await until_executing(cluster, job_id)
    start_slowly(cluster, "SlotPool", 10.0)
    cluster.crash("SlotPool")
    await eventually(lambda: starts_of(cluster, "SlotPool") == 2, 5, "another SlotPool")
    cluster.crash("ResourceManager")

    await asyncio.sleep(12)
    await until_executing(cluster, job_id)


@on_cluster(NODE)
async def test_hung_spark_driver_is_replaced(cluster: ChaosCluster) -> None:
    """Its job ran for ever."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(1, 0.0)))
    await until_executing(cluster, job_id)
    cluster.simulation.hang(cluster.processes("SparkDriver")[0])

    await eventually(lambda: starts_of(cluster, "SparkDriver") == 2, 100, "another driver")
    await until_executing(cluster, job_id)
    assert len(cluster.processes("SparkDriver")) == 1


@on_cluster(NODE)
async def test_slot_pool_whose_news_are_lost_is_replaced(cluster: ChaosCluster) -> None:
    """Its JobMaster waited for slots that the pool had."""
    with losing(cluster, "slots_changed") as lost:
        restarts = FixedDelayRestart(1, 0.0)
        job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=restarts))
        await until_executing(cluster, job_id)

    assert lost
    assert starts_of(cluster, "SlotPool") == 2


@on_cluster(NODE)
async def test_spark_driver_that_cannot_be_connected_to_is_not_left_behind(
    cluster: ChaosCluster,
) -> None:
    """It ran on, beside the driver of the next attempt."""
    job = scripted_job(RUNS, restart_strategy=FixedDelayRestart(5, 0.0))
    await cluster.submit(job)

    def cut(process: SimulatedProcess) -> None:
        if process.kind == "SparkDriver" and process.is_alive and not cuts:
            (master,) = cluster.processes("JobMaster")
            cuts.append(cluster.simulation.partition([master], [process.name]))

    cuts: list[object] = []
    cluster.simulation.listeners.append(cut)
    await eventually(lambda: starts_of(cluster, "SparkDriver") == 2, 100, "another driver")
    await until_executing(cluster, job.job_id)

    assert len(cluster.processes("SparkDriver")) == 1


@on_cluster(NODE)
async def test_slots_of_a_lost_task_executor_are_not_used_when_a_late_report_lists_them(
    cluster: ChaosCluster,
) -> None:
    """Seed 41.  All restarts of the job were used up at one moment."""
    cluster.workers.nodes.clear()
    job = scripted_job(RUNS, parallelism=1, restart_strategy=NoRestart())
    await cluster.submit(job)
    await until_up(cluster, "SlotPool")
    await asyncio.sleep(0.5)
    name = cluster.processes("JobMaster")[0]
    (endpoint,) = cluster.network.services[name].endpoints()
    token = getattr(endpoint, "fencing_token", None)
    assert isinstance(token, FencingToken)
    master = await cluster.client.connect(endpoint.address, JobMasterGateway, token)
    lost = WorkerLocation(
        ResourceID("lost"), "lost/taskexecutor", "node", "127.0.0.1", 1, WorkerGroupId("g"), 0
    )

    slot = AllocatedSlot(number(AllocationID, 1), 0, ONE_CPU, lost)
    await master.slots_changed(1, 1, (slot,), (), ())

    details = await cluster.details(job.job_id)
    assert (details.status, details.exceptions) == (JobStatus.RUNNING, ())


@on_cluster()
async def test_what_a_dead_resource_manager_said_of_shortages_is_forgotten(
    cluster: ChaosCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))

    async def reason() -> str:
        return (await cluster.details(job_id)).pending_reason or ""

    async def is_explained() -> bool:
        return "no nodes" in await reason()

    await eventually(is_explained, 10, "the ResourceManager's reason")
    cluster.set_conditions(restart=(60.0, 60.0))
    cluster.crash("ResourceManager")
    await asyncio.sleep(0.1)

    assert "0 of 2 slots" in await reason()


@on_virtual_time
async def test_registration_of_a_dead_job_master_does_not_replace_its_successors(
    tmp_path: Path,
) -> None:
    """Seed 28.  The call had been sent before the death, and the connection back reached the new
    process at the same address: its requirements were refused from then on."""
    cluster = ResourceCluster(tmp_path, ONE_CPU)
    manager = await cluster.start_resource_manager()
    present = cluster.job(1, attempt=1)
    await present.register()

    answer = await manager.register_job_master(
        number(JobMasterId, 1000), present.resource_id, present.address, present.job_id
    )

    assert isinstance(answer, RegistrationFailure)
    await present.declare(1)
    await present.has_slots(1)


@on_cluster(NODE)
async def test_leader_that_dies_right_after_a_registration_is_missed_though_its_successor_is_there(
    cluster: ChaosCluster,
) -> None:
    """Seed 1259 with slow messages.  The watch was set up by address and found the successor, at
    which the JobMaster never registered: no cancel reached the job any more."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    cluster.set_conditions(latency=(0.1, 0.1))
    cluster.crash("Dispatcher")

    def registered() -> bool:
        return any(
            line.endswith("jobmaster: registered at Dispatcher/dispatcher")
            for line in cluster.log_lines[seen:]
        )

    seen = len(cluster.log_lines)
    await eventually(registered, 30, "the JobMaster at the new Dispatcher")
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)
    await asyncio.sleep(5)
    await (await cluster.dispatcher()).cancel_job(job_id)

    assert (await asyncio.wait_for(cluster.result(job_id), 10)).status is JobStatus.CANCELED
