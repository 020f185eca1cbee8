"""A TaskExecutor gives out slots, offers them to JobMasters, and takes them back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flinkray.actors.gateways import (
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
)
from flinkray.actors.gateways.messages import (
    AllocatedSlotReport,
    SlotAnswer,
    WantedSlot,
)
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.core.errors import RecipientUnreachableError, SlotAllocationError
from flinkray.core.ids import (
    AllocationID,
    ResourceID,
    ResourceManagerId,
    SlotID,
)
from flinkray.scheduler.shared.slots import SlotOffer, SlotOfferAnswer
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import TaskExecutorReport
from flinkray.testing.virtual_time import block_for, on_virtual_time
from tests.actors.resource_cluster import ONE_CPU, RM_TOKEN, number
from tests.actors.task_executor_under_test import (
    JOB,
    MASTER,
    NAME,
    A,
    B,
    Bench,
    accept_all,
    accept_only,
    allocations,
    task,
)


@on_virtual_time
async def test_slot_requests_of_a_non_leading_resource_manager_are_refused(
    tmp_path: Path,
) -> None:
    """TM-08"""
    bench = Bench(tmp_path)
    executor = await bench.start_task_executor()
    await asyncio.sleep(0.01)
    with pytest.raises(SlotAllocationError, match="not registered"):
        await bench.request(executor, 0, A)
    bench.start_resource_manager()
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report)
    with pytest.raises(SlotAllocationError, match="not registered"):
        await bench.request(executor, 0, A, manager=number(ResourceManagerId, 9))
    await bench.request(executor, 0, A)


@on_virtual_time
async def test_refused_slot_does_not_affect_the_other_slots_of_the_request(
    tmp_path: Path,
) -> None:
    """TM-09, TM-19."""
    bench = Bench(tmp_path)
    executor = await bench.start()
    master = bench.start_job_master()
    wanted = (
        WantedSlot(0, A, ONE_CPU),
        WantedSlot(0, number(AllocationID, 9), ONE_CPU),
        WantedSlot(1, B, ONE_CPU),
    )

    first, second, third = await executor.request_slots(
        wanted, JOB, "JobMaster-1/jobmaster", MASTER, RM_TOKEN
    )

    assert (first, third) == (SlotAnswer(SlotID(NAME, 0)), SlotAnswer(SlotID(NAME, 1)))
    assert second.slot_id == SlotID(NAME, 0)
    assert second.refusal is not None
    _, offers = await master.pool.wait_for(SlotPoolGateway.offer_slots)
    assert [offer.allocation_id for offer in offers] == [A, B], "both by one message"


@on_virtual_time
async def test_slots_are_offered_once_the_job_master_has_started(tmp_path: Path) -> None:
    """TM-09"""
    bench = Bench(tmp_path)
    executor = await bench.start()
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    await asyncio.sleep(2)
    master = bench.start_job_master()
    location, offers = await master.pool.wait_for(SlotPoolGateway.offer_slots)
    assert location == bench.endpoint.location
    assert [(offer.allocation_id, offer.slot_index) for offer in offers] == [(A, 0), (B, 1)]
    assert master.calls_of(JobMasterGateway.register_task_executor) == [
        (JOB, TaskExecutorReport(bench.endpoint.location, (), ()))
    ]


@on_virtual_time
async def test_rejected_slot_of_two_offered_ones_is_free_again(tmp_path: Path) -> None:
    """TM-10"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    master.pool.on(SlotPoolGateway.offer_slots).calling(accept_only(A))
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    freed = await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available)
    assert freed == (bench.instance(1), SlotID(NAME, 1), B)
    await task(A).submit(executor)
    (refused,) = await task(B, attempt=1).submit(executor)
    assert "is not there" in refused.cause
    assert refused.lost_slot == B
    assert allocations(await bench.latest_report(executor)) == [A, None]
    again = number(AllocationID, 12)
    await bench.request(executor, 1, again)
    assert allocations(await bench.latest_report(executor)) == [A, again]


@on_virtual_time
async def test_task_that_is_submitted_before_its_slot_offer_is_answered_runs(
    tmp_path: Path,
) -> None:
    """TM-11"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    may_answer = asyncio.Event()

    async def accept_none(_: ResourceID, offers: tuple[SlotOffer, ...]) -> SlotOfferAnswer:
        await may_answer.wait()
        return SlotOfferAnswer(())

    master.pool.on(SlotPoolGateway.offer_slots).calling(accept_none)
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    await master.pool.wait_for(SlotPoolGateway.offer_slots)
    await task(A).submit(executor)
    may_answer.set()
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == B
    await asyncio.sleep(1)
    assert allocations(await bench.latest_report(executor)) == [A, None]
    assert master.calls_of(JobMasterGateway.tasks_reported) == []


@on_virtual_time
async def test_slot_offer_without_an_answer_is_repeated_and_the_slot_is_kept(
    tmp_path: Path,
) -> None:
    """TM-13"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()

    async def never(*_: object) -> SlotOfferAnswer:
        await asyncio.Event().wait()
        raise AssertionError

    master.pool.on(SlotPoolGateway.offer_slots).calling(never)
    await bench.request(executor, 0, A)
    await asyncio.sleep(5)
    await task(A).submit(executor)  # active: it does not time out itself
    await bench.request(executor, 1, B)
    await asyncio.sleep(5.1)
    master.pool.on(SlotPoolGateway.offer_slots).calling(accept_all)
    _, offers = await master.pool.wait_for(SlotPoolGateway.offer_slots, 2)
    assert [offer.allocation_id for offer in offers] == [B]
    await asyncio.sleep(20)
    assert allocations(await bench.latest_report(executor)) == [A, B]


@on_virtual_time
async def test_slot_offer_is_repeated_until_the_job_master_has_a_slot_pool(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    master.pool.on(SlotPoolGateway.offer_slots).raising(
        RecipientUnreachableError("no SlotPool at present")
    )
    await bench.request(executor, 0, A)
    await master.pool.wait_for(SlotPoolGateway.offer_slots, 3)
    master.pool.on(SlotPoolGateway.offer_slots).calling(accept_all)
    await asyncio.sleep(20)
    assert allocations(await bench.latest_report(executor)) == [A, None]


@on_virtual_time
async def test_a_slot_that_no_job_takes_is_free_after_10_seconds(tmp_path: Path) -> None:
    """TM-21"""
    bench = Bench(tmp_path)
    executor = await bench.start()
    await bench.request(executor, 0, A)
    freed = await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available)
    assert freed[2] == A
    assert 10 <= bench.client.clock.monotonic() < 10.5
    assert bench.runner.cleaned == [], "nothing ran there"


@on_virtual_time
async def test_slot_is_offered_again_after_a_stall_before_its_timeout_frees_the_slot(
    tmp_path: Path,
) -> None:
    """TM-21. The JobMaster has started during the stall of the TaskExecutor."""
    bench = Bench(tmp_path)
    executor = await bench.start()
    await bench.request(executor, 0, A)
    await asyncio.sleep(9.5)
    master = bench.start_job_master()
    block_for(100)
    await master.pool.wait_for(SlotPoolGateway.offer_slots)
    await asyncio.sleep(30)
    assert bench.manager.calls_of(ResourceManagerGateway.notify_slot_available) == []


@on_virtual_time
async def test_freeing_a_slot_ends_its_task_and_is_answered_once_the_slot_is_clean(
    tmp_path: Path,
) -> None:
    """TM-21"""
    bench = Bench(tmp_path)
    executor, master = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.runner.may_clean.clear()
    freeing = asyncio.ensure_future(executor.free_slot(A, RM_TOKEN, "enough"))
    ((state,),) = await master.wait_for(JobMasterGateway.tasks_reported)
    assert state.state is ExecutionState.CANCELED
    await asyncio.sleep(1)
    assert not freeing.done()
    assert bench.manager.calls_of(ResourceManagerGateway.notify_slot_available) == []
    assert allocations(await bench.latest_report(executor)) == [A, None]
    bench.runner.may_clean.set()
    await freeing
    assert bench.runner.cleaned == [JOB]
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == A
    await executor.free_slot(A, RM_TOKEN, "again")


@on_virtual_time
async def test_task_executor_leaves_the_job_master_with_the_last_slot_of_the_job(
    tmp_path: Path,
) -> None:
    """TM-14"""
    bench = Bench(tmp_path)
    executor, master = await bench.start_with_slot()
    await executor.free_slot(A, RM_TOKEN, "enough")
    await asyncio.sleep(0.1)
    with pytest.raises(TaskError, match="does not lead the job here"):
        await task(A).submit(executor)
    await executor.heartbeat_from_job_master(
        ResourceID("JobMaster-1"), MASTER, AllocatedSlotReport(JOB, ())
    )
    await asyncio.sleep(1)
    assert master.calls_of(JobMasterGateway.heartbeat_from_task_executor) == []
    bench.network.crash("JobMaster-1")
    await asyncio.sleep(5)
    assert len(bench.manager.calls_of(ResourceManagerGateway.notify_slot_available)) == 1
