"""What a TaskExecutor does for its JobMasters, and when they die: slots compared, tasks run."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from pathlib import Path

import pytest

from flinkray.actors.gateways import (
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
)
from flinkray.actors.gateways.messages import (
    AllocatedSlotReport,
    TaskExecutorToJobMasterRegistrationSuccess,
)
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.core.errors import (
    FencingTokenError,
    FlinkRayError,
    SlotAllocationError,
    UnknownTaskExecutorError,
)
from flinkray.core.ids import (
    AllocationID,
    JobID,
    LeaderSessionID,
    ResourceID,
)
from flinkray.ha import (
    LeaderRetrievalListener,
    LeaderRetrievalService,
    MemoryDirectory,
    StandaloneHaServices,
)
from flinkray.rpc import RegistrationRejection
from flinkray.scheduler.shared.slots import SlotOffer, SlotOfferAnswer, WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import GRAPH, NEXT_GRAPH, RM_TOKEN, number
from tests.actors.task_executor_under_test import (
    JOB,
    MASTER,
    NAME,
    NEXT_MASTER,
    A,
    B,
    Bench,
    accept_all,
    allocations,
    task,
)

# --- JobMasters -----------------------------------------------------------------------------------


@on_virtual_time
async def test_tasks_of_a_dead_job_master_run_on_until_the_takeover_timeout(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.network.crash("JobMaster-1")
    await asyncio.sleep(30)
    assert not bench.runner.failures[task(A).attempt_id].done()
    assert allocations(await bench.latest_report(executor)) == [A, None]
    with pytest.raises(SlotAllocationError):
        await bench.request(executor, 0, B, job_id=number(JobID, 2))

    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == A
    assert 60 <= bench.client.clock.monotonic() < 62
    assert bench.runner.failures[task(A).attempt_id].cancelled()
    assert bench.runner.cleaned == [JOB]
    assert allocations(await bench.latest_report(executor)) == [None, None]


@on_virtual_time
async def test_next_job_master_gets_slots_and_the_past_job_master_is_refused(
    tmp_path: Path,
) -> None:
    """TM-15"""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    second = bench.start_job_master(NEXT_MASTER, "JobMaster-2")
    await bench.request(executor, 1, B, master=NEXT_MASTER, address="JobMaster-2/jobmaster")
    _, offers = await second.pool.wait_for(SlotPoolGateway.offer_slots)
    assert [offer.allocation_id for offer in offers] == [B]
    with pytest.raises(TaskError, match="does not lead the job here"):
        await task(B, attempt=1).submit(executor)
    with pytest.raises(FencingTokenError):
        await executor.adopt_slots(JOB, MASTER, GRAPH, ())
    assert await task(B, graph_id=NEXT_GRAPH).submit(executor, NEXT_MASTER) == ()
    (refused,) = await task(A, 1, graph_id=NEXT_GRAPH).submit(executor, NEXT_MASTER)
    assert "is held until the job's next JobMaster has adopted it" in refused.cause
    assert refused.lost_slot == A
    await executor.adopt_slots(JOB, NEXT_MASTER, NEXT_GRAPH, ())
    _, offers = await second.pool.wait_for(SlotPoolGateway.offer_slots, 2)
    assert [offer.allocation_id for offer in offers] == [A]
    assert await task(A, 1, graph_id=NEXT_GRAPH).submit(executor, NEXT_MASTER) == ()
    assert bench.manager.calls_of(ResourceManagerGateway.notify_slot_available) == []


@on_virtual_time
async def test_slot_of_a_dead_job_master_is_offered_to_the_next_one_once_it_is_cleaned_up(
    tmp_path: Path,
) -> None:
    """TM-15: the ResourceManager announces the next JobMaster."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.runner.may_clean.clear()
    bench.network.crash("JobMaster-1")
    second = await bench.next_job_master(executor)
    await executor.adopt_slots(JOB, NEXT_MASTER, NEXT_GRAPH, ())
    assert second.pool.calls_of(SlotPoolGateway.offer_slots) == []
    bench.runner.may_clean.set()
    _, offers = await second.pool.wait_for(SlotPoolGateway.offer_slots)
    assert [offer.allocation_id for offer in offers] == [A]
    await task(A, graph_id=NEXT_GRAPH).submit(executor, NEXT_MASTER)
    assert bench.client.clock.monotonic() < 2
    await asyncio.sleep(70)
    assert bench.manager.calls_of(ResourceManagerGateway.notify_slot_available) == []


@on_virtual_time
async def test_goodbye_of_a_lost_job_master_keeps_slots_for_its_successor(
    tmp_path: Path,
) -> None:
    """The JobMaster wakes up after the ResourceManager has reported it as lost."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await executor.job_master_lost(JOB, MASTER, RM_TOKEN, "it is deaf")
    await executor.disconnect_job_master(JOB, MASTER, "your heartbeats have timed out")
    assert allocations(await bench.latest_report(executor)) == [A, None]
    second = await bench.next_job_master(executor)
    ((_, report),) = second.calls_of(JobMasterGateway.register_task_executor)
    assert [slot.allocation_id for slot in report.slots] == [A]


class SlowToLeave(LeaderRetrievalService):
    """Follows a leader until it may stop."""

    def __init__(self, leaders: LeadersSlowToLeave, retrieval: LeaderRetrievalService) -> None:
        self._leaders = leaders
        self._retrieval = retrieval

    async def start(self, listener: LeaderRetrievalListener) -> None:
        self._leaders.followed.append(self)
        await self._retrieval.start(listener)

    async def stop(self) -> None:
        await self._leaders.may_stop.wait()
        await self._retrieval.stop()
        self._leaders.followed.remove(self)


class LeadersSlowToLeave(StandaloneHaServices):
    """As ZooKeeper is when much is asked of it."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(MemoryDirectory(), executor)
        self.may_stop = asyncio.Event()
        self.followed: list[SlowToLeave] = []

    def get_job_master_leader_retriever(
        self,
        job_id: JobID,
        default_address: str | None = None,
        default_session_id: LeaderSessionID | None = None,
    ) -> LeaderRetrievalService:
        retrieval = super().get_job_master_leader_retriever(
            job_id, default_address, default_session_id
        )
        return SlowToLeave(self, retrieval)


@on_virtual_time
async def test_leader_of_a_job_that_two_simultaneous_calls_name_is_watched_only_once(
    tmp_path: Path,
) -> None:
    """TM-14: one call requests a slot, the other announces the JobMaster, which had said
    goodbye."""
    bench = Bench(tmp_path)
    bench.leaders = leaders = LeadersSlowToLeave(bench.client.executor)
    executor, _ = await bench.start_with_slot()
    bench.runner.may_clean.clear()
    await task(A).submit(executor)
    await executor.disconnect_job_master(JOB, MASTER, "it has no slot there any more")
    both = asyncio.gather(
        bench.request(executor, 1, B),
        executor.job_master_changed(JOB, "JobMaster-1/jobmaster", MASTER, RM_TOKEN),
    )
    await asyncio.sleep(0.1)
    leaders.may_stop.set()
    await both
    assert len(leaders.followed) == 1


@on_virtual_time
async def test_slots_kept_for_a_job_that_ends_without_a_job_master_are_freed(
    tmp_path: Path,
) -> None:
    """The ResourceManager frees the slots that were kept."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    bench.network.crash("JobMaster-1")
    await executor.free_slot(A, RM_TOKEN, "job has ended")
    assert allocations(await bench.latest_report(executor)) == [None, None]
    assert bench.client.clock.monotonic() < 1


@on_virtual_time
async def test_end_of_a_past_job_masters_task_is_reported_under_the_id_of_that_job_master(
    tmp_path: Path,
) -> None:
    """JM-18. Each JobMaster numbers its attempts from 0: the next JobMaster would take the end for
    that of its own attempt."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    bench.runner.is_stubborn = True
    await task(A).submit(executor)
    second = bench.start_job_master(NEXT_MASTER, "JobMaster-2")
    await bench.request(executor, 1, B, master=NEXT_MASTER, address="JobMaster-2/jobmaster")
    await second.pool.wait_for(SlotPoolGateway.offer_slots)
    await executor.adopt_slots(JOB, NEXT_MASTER, NEXT_GRAPH, ())
    await task(B, graph_id=NEXT_GRAPH).submit(executor, NEXT_MASTER)

    bench.runner.failures[task(A).attempt_id].set_exception(TaskError("at last"))

    ((ended,),) = await second.wait_for(JobMasterGateway.tasks_reported)
    assert ended.attempt_id == task(A).attempt_id != task(B, graph_id=NEXT_GRAPH).attempt_id


@on_virtual_time
async def test_task_executor_registers_again_when_a_goodbye_overtakes_the_answer(
    tmp_path: Path,
) -> None:
    """TM-14. Otherwise the TaskExecutor would take itself for registered, and offer slots to a
    JobMaster that does not know it, until the heartbeat timeout of 50 s."""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    known: list[None] = []
    may_answer = asyncio.Event()
    success = TaskExecutorToJobMasterRegistrationSuccess(ResourceID("JobMaster-1"))

    async def answers_late(*_: object) -> TaskExecutorToJobMasterRegistrationSuccess:
        known.append(None)
        await may_answer.wait()
        return success

    def take(location: WorkerLocation, offers: tuple[SlotOffer, ...]) -> SlotOfferAnswer:
        if not known:
            raise UnknownTaskExecutorError(f"{location.resource_id} is not registered here")
        return accept_all(location, offers)

    master.on(JobMasterGateway.register_task_executor).calling(answers_late)
    master.pool.on(SlotPoolGateway.offer_slots).calling(take)
    await bench.request(executor, 0, A)
    await master.wait_for(JobMasterGateway.register_task_executor)
    known.clear()
    await executor.disconnect_job_master(JOB, MASTER, "you are deaf")
    may_answer.set()
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == A

    await bench.request(executor, 1, B)
    await master.pool.wait_for(SlotPoolGateway.offer_slots)
    await task(B).submit(executor)

    assert len(master.calls_of(JobMasterGateway.register_task_executor)) == 2
    assert bench.client.clock.monotonic() < 1


@on_virtual_time
async def test_slot_request_for_a_disconnected_job_master_causes_a_new_registration_there(
    tmp_path: Path,
) -> None:
    """TM-14: another slot of the JobMaster is still being cleaned up."""
    bench = Bench(tmp_path)
    executor, master = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.runner.may_clean.clear()
    await executor.disconnect_job_master(JOB, MASTER, "you are deaf")
    ((ended,),) = await master.wait_for(JobMasterGateway.tasks_reported)
    assert ended.state is ExecutionState.CANCELED, "who has left hears how its tasks have ended"

    await bench.request(executor, 1, B)
    await master.wait_for(JobMasterGateway.register_task_executor, 2)
    _, offers = await master.pool.wait_for(SlotPoolGateway.offer_slots, 2)

    assert [offer.allocation_id for offer in offers] == [B]
    assert bench.client.clock.monotonic() < 1


@on_virtual_time
async def test_announcing_the_present_job_master_again_causes_no_further_registration(
    tmp_path: Path,
) -> None:
    """Seed 18212 of the whole cluster: the ResourceManager announced the JobMaster that led the job
    all the time. The TaskExecutor left the JobMaster and registered once more, and reports in
    between were lost: a task stayed DEPLOYING."""
    bench = Bench(tmp_path)
    executor, master = await bench.start_with_slot()
    success = TaskExecutorToJobMasterRegistrationSuccess(ResourceID("JobMaster-1"))
    answers = [None, success]

    def register(*_: object) -> TaskExecutorToJobMasterRegistrationSuccess:
        answer = answers.pop(0)
        if answer is None:
            raise FlinkRayError("it is cut off")
        return answer

    master.on(JobMasterGateway.register_task_executor).calling(register)
    await master.wait_for(JobMasterGateway.register_task_executor, 2)  # it has been silent
    await executor.disconnect_job_master(JOB, MASTER, "you are deaf")
    await master.wait_for(JobMasterGateway.register_task_executor, 3)
    await asyncio.sleep(0.1)
    await executor.adopt_slots(JOB, MASTER, GRAPH, ())
    await master.pool.wait_for(SlotPoolGateway.offer_slots, 2)

    await executor.job_master_changed(JOB, "JobMaster-1/jobmaster", MASTER, RM_TOKEN)
    await task(A).submit(executor)
    (end,) = bench.runner.failures.values()
    end.set_result(None)

    ((ended,),) = await master.wait_for(JobMasterGateway.tasks_reported)
    assert ended.state is ExecutionState.FINISHED
    assert len(master.calls_of(JobMasterGateway.register_task_executor)) == 3


@on_virtual_time
async def test_silent_job_master_gets_goodbye_and_a_new_registration(tmp_path: Path) -> None:
    """TM-05"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    bench.runner.may_clean.clear()
    await master.pool.wait_for(SlotPoolGateway.offer_slots)
    await task(A).submit(executor)
    resource_id, reason = await master.wait_for(JobMasterGateway.disconnect_task_executor)
    assert resource_id == NAME
    assert "no heartbeat" in reason
    assert 50 <= bench.client.clock.monotonic() < 51
    await master.wait_for(JobMasterGateway.register_task_executor, 2)
    assert bench.client.clock.monotonic() < 52


@on_virtual_time
async def test_a_job_master_that_rejects_the_registration_gets_no_slots(tmp_path: Path) -> None:
    """TM-17"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    master.on(JobMasterGateway.register_task_executor).returning(
        RegistrationRejection("I run another job")
    )
    await bench.request(executor, 0, A)
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == A
    assert bench.client.clock.monotonic() < 1
    assert master.pool.calls_of(SlotPoolGateway.offer_slots) == []


@on_virtual_time
async def test_slot_known_only_to_the_job_master_fails_and_one_it_does_not_know_is_freed(
    tmp_path: Path,
) -> None:
    """TM-16"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    await master.pool.wait_for(SlotPoolGateway.offer_slots)
    await task(A).submit(executor)
    await task(B, attempt=1).submit(executor)
    only_there = number(AllocationID, 12)
    report = AllocatedSlotReport(JOB, (A, only_there))
    await executor.heartbeat_from_job_master(ResourceID("JobMaster-1"), MASTER, report)
    name, lost, _ = await master.wait_for(JobMasterGateway.fail_slot)
    assert (name, lost) == (NAME, only_there)
    assert allocations(await bench.latest_report(executor)) == [A, B], "one report may be late"
    await executor.heartbeat_from_job_master(ResourceID("JobMaster-1"), MASTER, report)
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == B
    assert allocations(await bench.latest_report(executor)) == [A, None]
    _, payload = await master.wait_for(JobMasterGateway.heartbeat_from_task_executor)
    assert set(payload.attempts) == {task(A).attempt_id, task(B, attempt=1).attempt_id}


# --- tasks ----------------------------------------------------------------------------------------


@on_virtual_time
async def test_cancelled_task_is_reported_and_the_other_task_runs(tmp_path: Path) -> None:
    """TM-26"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    await master.pool.wait_for(SlotPoolGateway.offer_slots)
    first, second = task(A), task(B, attempt=1)
    await first.submit(executor)
    await second.submit(executor)
    with pytest.raises(TaskError, match="does not lead"):
        await executor.cancel_tasks((first.attempt_id,), NEXT_MASTER)
    await executor.cancel_tasks((first.attempt_id,), MASTER)
    ((state,),) = await master.wait_for(JobMasterGateway.tasks_reported)
    assert (state.attempt_id, state.state) == (first.attempt_id, ExecutionState.CANCELED)
    await executor.cancel_tasks((first.attempt_id,), MASTER)  # it does not run any more
    await asyncio.sleep(1)
    assert len(master.calls_of(JobMasterGateway.tasks_reported)) == 1
    assert allocations(await bench.latest_report(executor)) == [A, B], "the slot stays the job's"


@on_virtual_time
async def test_a_failed_task_is_reported_with_its_cause(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, master = await bench.start_with_slot()
    await task(A).submit(executor)
    await asyncio.sleep(0.1)
    bench.runner.failures[task(A).attempt_id].set_exception(TaskError("the disk is full"))
    ((state,),) = await master.wait_for(JobMasterGateway.tasks_reported)
    assert (state.state, state.failure) == (ExecutionState.FAILED, "the disk is full")


@on_virtual_time
async def test_task_of_an_unknown_kind_or_of_a_past_job_master_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    (refused,) = await task(A, kind="cobol").submit(executor)
    assert refused.cause == "it is of kind 'cobol', which this TaskExecutor does not run"
    assert refused.lost_slot is None
    with pytest.raises(TaskError, match="does not lead the job here"):
        await task(A).submit(executor, NEXT_MASTER)
    assert await task(A).submit(executor) == ()
    (refused,) = await task(A).submit(executor)
    assert "already" in refused.cause


@on_virtual_time
async def test_task_executor_stops_when_all_its_tasks_have_ended(tmp_path: Path) -> None:
    """TM-18"""
    bench = Bench(tmp_path)
    executor, _ = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await task(A).submit(executor)
    bench.runner.may_clean.clear()
    stopped = bench.endpoint.close()
    await asyncio.sleep(2)
    assert not stopped.done()
    with pytest.raises(SlotAllocationError, match="shutting down"):
        await bench.request(executor, 1, B)
    bench.runner.may_clean.set()
    await stopped
    assert bench.runner.cleaned == [JOB]
    assert bench.manager.calls_of(ResourceManagerGateway.disconnect_task_executor) == [
        (NAME, bench.instance(1), "it stops")
    ]


@on_virtual_time
async def test_task_executor_stops_although_a_slot_is_not_cleaned_up_in_time(
    tmp_path: Path,
) -> None:
    """TM-18: after 10 s, and with a goodbye."""
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    await task(A).submit(executor)
    bench.runner.may_clean.clear()
    stopped = bench.endpoint.close()
    await asyncio.sleep(9)
    assert not stopped.done()
    await asyncio.wait_for(stopped, 2)
    assert bench.manager.calls_of(ResourceManagerGateway.disconnect_task_executor) == [
        (NAME, bench.instance(1), "it stops")
    ]
