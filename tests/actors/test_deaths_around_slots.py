"""What random deaths have brought to light among those who have slots and drivers, and in what
they register."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flinkray.actors.gateways import JobMasterGateway
from flinkray.core.errors import JobStateError
from flinkray.core.ids import (
    AllocationID,
    FencingToken,
    JobMasterId,
    ResourceID,
    WorkerGroupId,
)
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import RegistrationFailure, RegistrationRejection
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, NoRestart
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.slots import AllocatedSlot, WorkerLocation
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.slots.slot_requests import HeldSlot
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.simulation import SimulatedProcess
from flinkray.testing.virtual_time import on_virtual_time
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
from tests.actors.resource_cluster import ONE_CPU, ResourceCluster, number


@on_cluster(NODE)
async def test_slot_pool_that_dies_while_starting_is_replaced(
    cluster: ChaosCluster,
) -> None:
    """Seed 6: the death of the SlotPool ended the JobMaster."""
    start_slowly(cluster, "SlotPool", 0.3)
    job = scripted_job(["register", "finish"], restart_strategy=NoRestart())
    job_id = await cluster.submit(job)
    await until_up(cluster, "SlotPool")
    cluster.crash("SlotPool")

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "JobMaster") == 1
    assert starts_of(cluster, "SlotPool") == 2


@on_cluster(NODE)
async def test_job_is_canceled_although_task_end_is_lost_and_slot_pool_dies(
    cluster: ChaosCluster,
) -> None:
    """Seed 30065 of the cluster of fifty: the job stayed CANCELLING for ever."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    with losing(cluster, "tasks_reported") as lost:
        await (await cluster.dispatcher()).cancel_job(job_id)
        await eventually(lambda: lost, 50, "a report that is lost")
        cluster.crash("ResourceManager")  # else it gives the slots again, and they are looked at
        cluster.crash("SlotPool")
        result = await asyncio.wait_for(cluster.result(job_id), 120)

    assert result.status is JobStatus.CANCELED


@on_cluster(NODE)
async def test_new_slot_pool_knows_task_executors_registered_before_it(
    cluster: ChaosCluster,
) -> None:
    """Otherwise the offers of these TaskExecutors would be refused, and they could not register a
    second time."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=NoRestart()))
    await until_executing(cluster, job_id)
    start_slowly(cluster, "SlotPool", 2.0)
    cluster.crash("SlotPool")
    await asyncio.sleep(0.1)

    await asyncio.wait_for(until_executing(cluster, job_id), 10)
    assert len(cluster.workers.starts) == 2


@on_cluster(NODE)
async def test_spark_stage_continues_with_its_slots_when_its_slot_pool_dies(
    cluster: ChaosCluster,
) -> None:
    """Otherwise all its slots would be given back, and the stage would begin anew."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=NoRestart()))
    await until_executing(cluster, job_id)
    before = (await cluster.details(job_id)).vertices
    cluster.crash("SlotPool")
    await eventually(lambda: starts_of(cluster, "SlotPool") == 2, 50, "another SlotPool")
    await asyncio.sleep(120)  # what nobody uses has been given back by now

    assert (await cluster.details(job_id)).vertices == before
    assert (starts_of(cluster, "SparkDriver"), len(cluster.workers.starts)) == (1, 2)


@on_cluster(NODE)
async def test_next_slot_pool_keeps_the_worker_group_while_its_job_waits_to_restart(
    cluster: ChaosCluster,
) -> None:
    """SP-26: otherwise the next SlotPool would give the group back after 50 s, because nobody asks
    for it."""
    job = scripted_job(
        ["register", "fail no luck"], RUNS, restart_strategy=FixedDelayRestart(1, 300)
    )
    job_id = await cluster.submit(job)

    async def waits() -> bool:
        return await cluster.status(job_id) is JobStatus.RESTARTING

    await eventually(waits, 50, "a failure")
    cluster.crash("SlotPool")
    await eventually(lambda: starts_of(cluster, "SlotPool") == 2, 50, "another SlotPool")
    await asyncio.sleep(290)
    await until_executing(cluster, job_id)

    assert len(cluster.workers.created_groups) == 1
    assert len(cluster.workers.starts) == 2


@on_cluster(NODE)
async def test_slot_pool_that_missed_the_call_to_restore_its_slots_is_replaced(
    cluster: ChaosCluster,
) -> None:
    """Seed 41304: the SlotPool gave slots again that other tasks had, and the JobMaster lost count
    of them."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=NoRestart()))
    await until_executing(cluster, job_id)
    with losing(cluster, "restore_slots") as lost:
        cluster.crash("SlotPool")
        await eventually(lambda: lost, 50, "a call that is lost")
        (second,) = cluster.processes("SlotPool")
        handled = cluster.network.services[second].metrics.handled
        await eventually(lambda: starts_of(cluster, "SlotPool") == 3, 150, "a third SlotPool")
    assert "SlotPoolGateway.connect_to_resource_manager" not in handled

    await until_executing(cluster, job_id)
    assert len(cluster.workers.starts) == 2


@on_cluster(NODE)
async def test_slot_pool_that_missed_the_report_of_a_shortage_is_replaced(
    cluster: ChaosCluster,
) -> None:
    """SM-14: the ResourceManager reports a shortage once, and the job would wait until its requests
    time out."""
    too_large = ResourceProfile(64, 2**30)
    job = scripted_job(RUNS, profile=too_large, restart_strategy=NoRestart())
    start_slowly(cluster, "SlotPool", 5.0)
    with losing(cluster, "notify_not_enough_resources", 2) as lost:  # first the JobMaster hears
        job_id = await cluster.submit(job)
        await eventually(lambda: lost, 100, "a shortage that the pool does not hear of")
        cluster.crash("SlotPool")
    result = await asyncio.wait_for(cluster.result(job_id), 60)

    assert result.status is JobStatus.FAILED
    assert [name.partition("-")[0] for name in lost] == ["JobMaster"]
    assert starts_of(cluster, "SlotPool") == 2


@on_cluster(NODE)
async def test_hung_slot_pool_is_replaced(cluster: ChaosCluster) -> None:
    """Otherwise its job would get no slot any more."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=NoRestart()))
    await until_executing(cluster, job_id)
    cluster.simulation.hang(cluster.processes("SlotPool")[0])

    await eventually(lambda: starts_of(cluster, "SlotPool") == 2, 300, "another SlotPool")
    await until_executing(cluster, job_id)


@on_cluster(NODE)
async def test_slot_pool_that_misses_its_job_masters_calls_is_replaced(
    cluster: ChaosCluster,
) -> None:
    """Otherwise the SlotPool would never learn of the ResourceManager, and its job would wait for
    ever."""
    cluster.crash("ResourceManager")
    cluster.set_conditions(restart=(10.0, 10.0))
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(1, 0.0)))
    await eventually(lambda: cluster.network.services.get("ResourceManager"), 100, "it is back")
    (pool,), (master,) = cluster.processes("SlotPool"), cluster.processes("JobMaster")
    partition = cluster.simulation.partition([master], [pool], one_way=True)
    await eventually(lambda: starts_of(cluster, "SlotPool") == 2, 300, "another SlotPool")
    cluster.simulation.heal(partition)

    await until_executing(cluster, job_id)


@on_cluster(NODE)
async def test_slot_pool_that_is_starting_notices_that_the_resource_manager_was_replaced(
    cluster: ChaosCluster,
) -> None:
    """Otherwise the SlotPool would hear of the loss once it has started, and declare nothing any
    more."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(1, 0.0)))
    await until_executing(cluster, job_id)
    start_slowly(cluster, "SlotPool", 10.0)
    cluster.crash("SlotPool")
    await eventually(lambda: starts_of(cluster, "SlotPool") == 2, 25, "another SlotPool")
    cluster.crash("ResourceManager")

    await asyncio.sleep(12)
    await until_executing(cluster, job_id)


@on_cluster(NODE)
async def test_hung_spark_driver_is_replaced(cluster: ChaosCluster) -> None:
    """Otherwise its job would run for ever."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(1, 0.0)))
    await until_executing(cluster, job_id)
    cluster.simulation.hang(cluster.processes("SparkDriver")[0])

    await eventually(lambda: starts_of(cluster, "SparkDriver") == 2, 300, "another driver")
    await until_executing(cluster, job_id)
    assert len(cluster.processes("SparkDriver")) == 1


@on_cluster(NODE)
async def test_slot_pool_with_a_lost_report_of_slots_is_replaced(cluster: ChaosCluster) -> None:
    """Otherwise the JobMaster would wait for slots that the SlotPool has."""
    with losing(cluster, "slots_changed") as lost:
        job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=NoRestart()))
        await until_executing(cluster, job_id)

    assert lost
    assert starts_of(cluster, "SlotPool") == 2


@on_cluster(NODE)
async def test_spark_driver_that_cannot_be_connected_to_is_ended(
    cluster: ChaosCluster,
) -> None:
    """Otherwise the driver would run on, beside the driver of the next attempt."""
    job = scripted_job(RUNS, restart_strategy=FixedDelayRestart(5, 0.0))
    await cluster.submit(job)

    def cut(process: SimulatedProcess) -> None:
        if process.kind == "SparkDriver" and process.is_alive and not cuts:
            (master,) = cluster.processes("JobMaster")
            cuts.append(cluster.simulation.partition([master], [process.name]))

    cuts: list[object] = []
    cluster.simulation.listeners.append(cut)
    await eventually(lambda: starts_of(cluster, "SparkDriver") == 2, 300, "another driver")
    await until_executing(cluster, job.job_id)

    assert len(cluster.processes("SparkDriver")) == 1


@on_cluster(NODE)
async def test_late_report_of_a_lost_task_executor_does_not_bring_back_its_slots(
    cluster: ChaosCluster,
) -> None:
    """Seed 41: all restarts of the job were used up at one moment."""
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
    await master.slots_changed(1, 1, (HeldSlot(slot),), (), ())

    details = await cluster.details(job.job_id)
    assert (details.status, details.exceptions) == (JobStatus.RUNNING, ())


@on_cluster()
async def test_pending_reason_of_a_job_does_not_name_a_shortage_of_a_dead_resource_manager(
    cluster: ChaosCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))

    async def reason() -> str:
        return (await cluster.details(job_id)).pending_reason or ""

    async def is_explained() -> bool:
        return "no nodes" in await reason()

    await eventually(is_explained, 50, "the ResourceManager's reason")
    cluster.set_conditions(restart=(60.0, 60.0))
    cluster.crash("ResourceManager")
    await asyncio.sleep(0.1)

    assert await reason() == "2 slots (1 CPU, 1g memory each) have not come yet."


@on_virtual_time
async def test_late_registration_of_a_dead_job_master_does_not_replace_its_successor(
    tmp_path: Path,
) -> None:
    """Seed 28. The call was sent before the death, and the connection back reached the new process
    at the same address: the requirements of the successor were refused from then on."""
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
async def test_death_of_a_leader_is_noticed_although_its_successor_has_the_same_address(
    cluster: ChaosCluster,
) -> None:
    """Seed 1259 with slow messages. The watch was set up by address and found the successor, at
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
    await eventually(registered, 150, "the JobMaster at the new Dispatcher")
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)
    await asyncio.sleep(5)
    await (await cluster.dispatcher()).cancel_job(job_id)

    assert (await asyncio.wait_for(cluster.result(job_id), 10)).status is JobStatus.CANCELED


@on_cluster(NODE)
async def test_past_job_master_can_neither_register_nor_report_at_new_dispatcher(
    cluster: ChaosCluster,
) -> None:
    """Seed 300455: the Dispatcher did not know yet which JobMaster leads the job, and accepted the
    report."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=NoRestart()))
    await until_executing(cluster, job_id)
    details = await cluster.details(job_id)
    result = JobResult(job_id, "job", JobStatus.FAILED, 1.0, "it failed there")
    with losing(cluster, "register_job_master") as lost:
        cluster.crash("Dispatcher")
        await eventually(lambda: lost, 150, "a registration that is lost")
        dispatcher = await cluster.dispatcher()
        past, (master,) = number(JobMasterId, 9), cluster.processes("JobMaster")
        with pytest.raises(JobStateError, match="it is not led by"):
            await dispatcher.job_reached_terminal_state(job_id, past, result, details)
        answer = await dispatcher.register_job_master(job_id, past, f"{master}/jobmaster")
        assert isinstance(answer, RegistrationRejection)

    await until_executing(cluster, job_id)
