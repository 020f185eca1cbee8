"""A TaskExecutor finds, leaves and follows its ResourceManager and leading JobMasters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flinkray.actors.gateways import (
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
)
from flinkray.actors.gateways.messages import TaskExecutorRegistrationSuccess
from flinkray.actors.task_executor.resource_manager_registration import RegistrationTimeoutError
from flinkray.core.errors import FencingTokenError, RecipientUnreachableError
from flinkray.core.ids import (
    ResourceManagerId,
)
from flinkray.rpc import LocalRpcService, RegistrationRejection
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import block_for, on_virtual_time
from tests.actors.leaders import ElectedLeaders, ManualLeaders
from tests.actors.resource_cluster import RM_ADDRESS, RM_TOKEN, number
from tests.actors.task_executor_under_test import (
    MASTER,
    NAME,
    NEXT_MASTER,
    RM_NAME,
    A,
    B,
    Bench,
    allocations,
    task,
)


@on_virtual_time
async def test_task_executor_registers_at_once_and_reports_its_slots(tmp_path: Path) -> None:
    """TM-01"""
    bench = Bench(tmp_path)
    await bench.start()
    assert bench.client.clock.monotonic() < 0.1
    [(registration,)] = bench.manager.calls_of(ResourceManagerGateway.register_task_executor)
    assert registration.location == bench.endpoint.location
    assert registration.number_of_slots == 2
    [(name, instance, report)] = bench.manager.calls_of(ResourceManagerGateway.send_slot_report)
    assert (name, instance) == (NAME, bench.instance(1))
    assert allocations(report) == [None, None]


@on_virtual_time
async def test_task_executor_registers_again_after_resource_manager_restart(tmp_path: Path) -> None:
    """TM-01, TM-06"""
    bench = Bench(tmp_path)
    await bench.start()
    bench.network.crash(RM_NAME)
    await asyncio.sleep(5)
    bench.start_resource_manager()
    _, instance, _ = await bench.manager.wait_for(ResourceManagerGateway.send_slot_report)
    assert instance == bench.instance(2)
    await asyncio.sleep(200)
    assert len(bench.manager.calls_of(ResourceManagerGateway.register_task_executor)) > 1, (
        "heartbeats time out later"
    )


@on_virtual_time
async def test_task_executor_registers_again_at_a_silent_resource_manager(tmp_path: Path) -> None:
    """TM-04. The TaskExecutor sends no goodbye: a ResourceManager that was only paused would take
    all its slots for lost."""
    bench = Bench(tmp_path)
    await bench.start()
    await bench.manager.wait_for(ResourceManagerGateway.register_task_executor, 2)
    assert 50 <= bench.client.clock.monotonic() < 51
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report, 2)
    assert bench.client.clock.monotonic() < 52
    assert bench.manager.calls_of(ResourceManagerGateway.disconnect_task_executor) == []


@on_virtual_time
async def test_task_executor_registers_again_after_being_disconnected(tmp_path: Path) -> None:
    """TM-04"""
    bench = Bench(tmp_path)
    executor = await bench.start()
    await executor.disconnect_resource_manager(RM_TOKEN, "no heartbeat")
    _, instance, _ = await bench.manager.wait_for(ResourceManagerGateway.send_slot_report, 2)
    assert instance == bench.instance(2)


@on_virtual_time
async def test_task_executor_registers_again_when_a_goodbye_overtakes_the_answer(
    tmp_path: Path,
) -> None:
    """TM-04. Otherwise the TaskExecutor would take itself for registered until the heartbeat
    timeout of 50 s."""
    bench = Bench(tmp_path)
    manager = bench.start_resource_manager()
    may_answer = asyncio.Event()

    async def answers_late(_: object) -> TaskExecutorRegistrationSuccess:
        bench.instances += 1
        success = TaskExecutorRegistrationSuccess(bench.instance(bench.instances), RM_NAME)
        await may_answer.wait()
        return success

    manager.on(ResourceManagerGateway.register_task_executor).calling(answers_late)
    executor = await bench.start_task_executor()
    await manager.wait_for(ResourceManagerGateway.register_task_executor)
    await executor.disconnect_resource_manager(RM_TOKEN, "you are deaf")
    await manager.wait_for(ResourceManagerGateway.register_task_executor, 2)
    may_answer.set()

    _, instance, _ = await manager.wait_for(ResourceManagerGateway.send_slot_report)

    assert instance == bench.instance(2), "the first registration was ended by the goodbye"
    assert bench.client.clock.monotonic() < 1


@pytest.mark.parametrize(
    "error", [RecipientUnreachableError("who are you?"), KeyError("slots"), OverflowError()]
)
@on_virtual_time
async def test_task_executor_registers_again_after_any_slot_report_error(
    tmp_path: Path, error: Exception
) -> None:
    """Errors that are not flinkray's own must not end the TaskExecutor and all its tasks."""
    bench = Bench(tmp_path)
    bench.start_resource_manager()
    bench.manager.on(ResourceManagerGateway.send_slot_report).raising(error)
    await bench.start_task_executor()
    await asyncio.sleep(10.5)
    attempts = len(bench.manager.calls_of(ResourceManagerGateway.register_task_executor))
    assert 10 <= attempts <= 11, "it pauses cluster.registration.error-delay"

    bench.manager.on(ResourceManagerGateway.send_slot_report).returning(None)
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report, attempts + 1)
    await asyncio.sleep(10)

    assert not bench.endpoint.terminated.done()
    registrations = bench.manager.calls_of(ResourceManagerGateway.register_task_executor)
    assert len(registrations) == attempts + 1


@on_virtual_time
async def test_task_executor_ends_when_it_finds_no_resource_manager(tmp_path: Path) -> None:
    """TM-07"""
    bench = Bench(tmp_path)
    await bench.start_task_executor()
    with pytest.raises(RegistrationTimeoutError, match=r"within 300 s \(taskmanager.*: the Res"):
        await bench.endpoint.terminated
    assert bench.client.clock.monotonic() == pytest.approx(300, abs=1)


@on_virtual_time
async def test_stalled_task_executor_tries_to_register_again_before_it_ends(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, {"cluster.registration.error-delay": "200 ms"})
    await bench.start_task_executor()
    await asyncio.sleep(299.9)
    bench.start_resource_manager()
    block_for(1000)
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report)
    await asyncio.sleep(20)
    assert not bench.endpoint.terminated.done()


@on_virtual_time
async def test_task_executor_ends_when_a_lost_resource_manager_stays_away(tmp_path: Path) -> None:
    """TM-07"""
    bench = Bench(tmp_path, {"taskmanager.registration.timeout": "20 s"})
    await bench.start()
    await asyncio.sleep(30)
    bench.network.crash(RM_NAME)
    with pytest.raises(RegistrationTimeoutError, match=r"within 20 s .*has not registered it"):
        await bench.endpoint.terminated
    assert bench.client.clock.monotonic() == pytest.approx(50, abs=1)


@on_virtual_time
async def test_task_executor_ends_when_the_resource_manager_rejects_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start_resource_manager()
    bench.manager.on(ResourceManagerGateway.register_task_executor).returning(
        RegistrationRejection("we shut down")
    )
    await bench.start_task_executor()
    await bench.endpoint.terminated


@on_virtual_time
async def test_task_executor_follows_a_change_of_leading_resource_manager(tmp_path: Path) -> None:
    """TM-01, TM-06"""
    bench = Bench(tmp_path)
    bench.leaders = leaders = ManualLeaders(bench.client.executor)
    first = bench.start_resource_manager()
    await bench.start_task_executor()
    await asyncio.sleep(10)
    assert first.calls == [], "nobody leads yet"
    leaders.manager.tell(RM_ADDRESS, RM_TOKEN)
    await first.wait_for(ResourceManagerGateway.send_slot_report)
    leaders.manager.tell(None, None)
    await asyncio.sleep(100)
    assert first.calls_of(ResourceManagerGateway.disconnect_task_executor) == [], (
        "it is not monitored any more"
    )
    assert len(first.calls_of(ResourceManagerGateway.register_task_executor)) == 1
    service = LocalRpcService("ResourceManager-2", bench.network)
    token = number(ResourceManagerId, 2)
    second = TestingGateway(ResourceManagerGateway, token).lenient()
    second.start(service, "resourcemanager")
    success = TaskExecutorRegistrationSuccess(bench.instance(5), RM_NAME)
    second.on(ResourceManagerGateway.register_task_executor).returning(success)
    leaders.manager.tell("ResourceManager-2/resourcemanager", token)
    _, instance, _ = await second.wait_for(ResourceManagerGateway.send_slot_report)
    assert instance == bench.instance(5)
    assert len(first.calls_of(ResourceManagerGateway.register_task_executor)) == 1


@on_virtual_time
async def test_task_executor_registers_at_a_job_master_again_once_it_leads_again(
    tmp_path: Path,
) -> None:
    """TM-24"""
    bench = Bench(tmp_path)
    bench.leaders = leaders = ManualLeaders(bench.client.executor)
    bench.start_resource_manager()
    executor, master = await bench.start_task_executor(), bench.start_job_master()
    leaders.manager.tell(RM_ADDRESS, RM_TOKEN)
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report)
    await bench.request(executor, 0, A)
    leaders.master.tell("JobMaster-1/jobmaster", MASTER)
    await master.pool.wait_for(SlotPoolGateway.offer_slots)
    await task(A).submit(executor)
    bench.runner.may_clean.clear()
    leaders.master.tell(None, None)
    await asyncio.sleep(100)
    assert len(master.calls_of(JobMasterGateway.register_task_executor)) == 1
    leaders.master.tell("JobMaster-1/jobmaster", MASTER)
    await master.wait_for(JobMasterGateway.register_task_executor, 2)


@on_virtual_time
async def test_task_executor_registers_at_the_elected_job_master_not_the_one_in_a_request(
    tmp_path: Path,
) -> None:
    """TM-15, HA-28: a request that is older than the election changes nothing."""
    bench = Bench(tmp_path)
    bench.leaders = leaders = ElectedLeaders(bench.client.executor)
    bench.start_resource_manager()
    executor, named = await bench.start_task_executor(), bench.start_job_master()
    elected = bench.start_job_master(NEXT_MASTER, "JobMaster-2")
    leaders.manager.tell(RM_ADDRESS, RM_TOKEN)
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report)
    await bench.request(executor, 0, A)
    leaders.master.tell("JobMaster-2/jobmaster", NEXT_MASTER)
    await elected.pool.wait_for(SlotPoolGateway.offer_slots)
    await asyncio.sleep(1)  # it has accepted it
    await task(A).submit(executor, NEXT_MASTER)
    await bench.request(executor, 1, B)
    await elected.pool.wait_for(SlotPoolGateway.offer_slots, 2)
    (end,) = bench.runner.failures.values()
    assert not end.done(), "its task has ended"
    with pytest.raises(FencingTokenError):
        await executor.free_slot(A, MASTER, "not wanted")
    await executor.free_slot(A, NEXT_MASTER, "not wanted")
    assert len(elected.calls_of(JobMasterGateway.register_task_executor)) == 1
    assert named.calls == []


@on_virtual_time
async def test_task_executor_registers_at_the_next_elected_job_master_without_a_request(
    tmp_path: Path,
) -> None:
    """HA-28"""
    bench = Bench(tmp_path)
    bench.leaders = leaders = ElectedLeaders(bench.client.executor)
    bench.start_resource_manager()
    executor, first = await bench.start_task_executor(), bench.start_job_master()
    second = bench.start_job_master(NEXT_MASTER, "JobMaster-2")
    leaders.manager.tell(RM_ADDRESS, RM_TOKEN)
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report)
    await bench.request(executor, 0, A)
    leaders.master.tell("JobMaster-1/jobmaster", MASTER)
    await first.pool.wait_for(SlotPoolGateway.offer_slots)
    await asyncio.sleep(1)  # it has accepted it
    leaders.master.tell("JobMaster-2/jobmaster", NEXT_MASTER)
    await second.wait_for(JobMasterGateway.register_task_executor)
    with pytest.raises(FencingTokenError):
        await executor.free_slot(A, MASTER, "I still lead")
