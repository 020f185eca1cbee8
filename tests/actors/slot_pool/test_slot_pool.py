"""The SlotPool actor between doubles: what it declares, tells, frees and repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from flinkray.actors.gateways import (
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
    TaskExecutorGateway,
)
from flinkray.actors.gateways.messages import ClusterArguments, SlotPoolArguments
from flinkray.actors.gateways.slot_pool import HandedOver
from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.actors.slot_pool.endpoint import SlotPool
from flinkray.core.errors import (
    FencingTokenError,
    JobNotFoundError,
    RecipientUnreachableError,
    RpcError,
    RpcTimeoutError,
    SlotAllocationError,
    UnknownTaskExecutorError,
)
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResourceManagerId,
    SlotRequestId,
    WorkerGroupId,
)
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceShortage,
    SlotOffer,
    WorkerLocation,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes
from flinkray.scheduler.shared.tasks import TaskExecutionState, pack_numbers
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotAllocated,
    SlotEvent,
    SlotRequest,
    SlotRequestFailed,
    SlotRequests,
    SlotsLost,
)
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import block_for, on_virtual_time
from tests.actors.resource_cluster import ONE_CPU, number

JOB = number(JobID, 1)
MASTER_ID = number(JobMasterId, 1)
ALLOCATION = number(AllocationID, 7)
OTHER_ALLOCATION = number(AllocationID, 8)


def notes(graph: int, attempt: int) -> JobNotes:
    attempts = pack_numbers([attempt + 1])
    return JobNotes(number(ExecutionGraphID, graph), (1,), attempts, restores=0)


def finished(around: Surroundings, graph: int, subtask: int, attempt: int = 0) -> FinishedTask:
    vertex = ExecutionVertexID(number(JobVertexID, 1), subtask)
    attempt_id = ExecutionAttemptID(number(ExecutionGraphID, graph), vertex, attempt)
    slot = AllocatedSlot(ALLOCATION, 0, ONE_CPU, around.location)
    return FinishedTask(TaskExecutionState(JOB, attempt_id, ExecutionState.FINISHED), slot)


class Surroundings:
    """A SlotPool with doubles of a JobMaster, a ResourceManager and a TaskExecutor."""

    def __init__(self) -> None:
        self.network = LocalNetwork()
        self.start_job_master(MASTER_ID)
        self.managers = [self._manager(n) for n in (1, 2)]
        self.executor = (
            TestingGateway(TaskExecutorGateway)
            .on(TaskExecutorGateway.free_slot)
            .returning(None)
            .start(LocalRpcService("te", self.network), "taskexecutor")
        )
        self.location = WorkerLocation(
            ResourceID("te"), self.executor.address, "n0", "127.0.0.1", 1, WorkerGroupId("g"), 0
        )

    def start_job_master(self, token: JobMasterId) -> None:
        self.master = (
            TestingGateway(JobMasterGateway, token)
            .on(JobMasterGateway.request_job_status)
            .returning(JobStatus.RUNNING)
            .start(LocalRpcService("JobMaster", self.network), "jobmaster")
        )

    def _manager(self, n: int) -> TestingGateway[ResourceManagerGateway]:
        service = LocalRpcService(f"ResourceManager-{n}", self.network)
        return (
            TestingGateway(ResourceManagerGateway, number(ResourceManagerId, n))
            .on(ResourceManagerGateway.declare_required_resources)
            .returning(None)
            .start(service, "resourcemanager")
        )

    async def start(
        self, configuration: dict[str, str] | None = None, *, is_registered: bool = True
    ) -> SlotPoolGateway:
        service = LocalRpcService("SlotPool", self.network)
        cluster = ClusterArguments("test", configuration or {}, "nowhere")
        arguments = SlotPoolArguments(cluster, JOB, MASTER_ID, self.master.address)
        master = await service.connect(self.master.address, JobMasterGateway, MASTER_ID)
        self.pool = SlotPool(service, arguments, master)
        self.pool.start()
        client = LocalRpcService("client", self.network)
        pool = await client.connect(self.pool.address, SlotPoolGateway, MASTER_ID)
        if is_registered:
            await pool.register_task_executors((self.location,))
        return pool

    async def connect(self, pool: SlotPoolGateway, n: int = 1) -> None:
        manager = self.managers[n - 1]
        await pool.connect_to_resource_manager(manager.address, number(ResourceManagerId, n))

    def declared(self, n: int = 1) -> list[int]:
        """The totals that a ResourceManager was told."""
        calls = self.managers[n - 1].calls_of(ResourceManagerGateway.declare_required_resources)
        return [sum(r.count for r in wanted.requirements) for _, wanted in calls]

    async def is_declared(self, count: int, n: int = 1) -> None:
        """Return when so many declarations have arrived."""
        method = ResourceManagerGateway.declare_required_resources
        await self.managers[n - 1].wait_for(method, count)

    async def events(self, count: int) -> list[SlotEvent]:
        """All slot events, when there are so many messages."""
        await self.master.wait_for(JobMasterGateway.slots_changed, count)
        calls = self.master.calls_of(JobMasterGateway.slots_changed)
        return [event for *_, events in calls for event in events]

    async def offer(self, pool: SlotPoolGateway, allocation_id: AllocationID, index: int) -> bool:
        offer = SlotOffer(allocation_id, index, ONE_CPU)
        answer = await pool.offer_slots(self.location, (offer,))
        return answer.accepted == (allocation_id,)


def wanted(*numbers: int, timeout: float | None = None) -> SlotRequests:
    requests = tuple(SlotRequest(number(SlotRequestId, n)) for n in numbers)
    return SlotRequests(ONE_CPU, requests, timeout=timeout)


# --- declarations ---------------------------------------------------------------------------------


@on_virtual_time
async def test_requirements_are_declared_when_a_resource_manager_is_connected() -> None:
    """SP-27: and not before."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1, 2))
    await asyncio.sleep(10.0)
    assert around.declared() == []
    await around.connect(pool)
    await around.is_declared(1)
    assert around.declared() == [2]


@on_virtual_time
async def test_failed_declaration_of_required_slots_is_repeated_until_it_arrives() -> None:
    """SP-27."""
    around = Surroundings()
    pool = await around.start()
    manager = around.managers[0]
    manager.on(ResourceManagerGateway.declare_required_resources).raising(
        JobNotFoundError(JOB, "not registered yet")
    )
    await around.connect(pool)
    await pool.request_slots(wanted(1))
    await around.is_declared(3)
    manager.on(ResourceManagerGateway.declare_required_resources).returning(None)
    await around.is_declared(4)
    await asyncio.sleep(10.0)
    assert around.declared() == [1, 1, 1, 1]


@on_virtual_time
async def test_newer_declaration_of_required_slots_replaces_the_one_being_repeated() -> None:
    """SP-27."""
    around = Surroundings()
    pool = await around.start()
    manager = around.managers[0]
    manager.on(ResourceManagerGateway.declare_required_resources).raising(
        JobNotFoundError(JOB, "not registered yet")
    )
    await around.connect(pool)
    await pool.request_slots(wanted(1))
    await around.is_declared(2)
    await pool.request_slots(wanted(2))
    await around.is_declared(5)
    assert around.declared()[2:] == [2, 2, 2]


@on_virtual_time
async def test_slots_declared_after_a_disconnect_go_only_to_the_next_resource_manager() -> None:
    """SP-27."""
    around = Surroundings()
    pool = await around.start()
    around.managers[0].on(ResourceManagerGateway.declare_required_resources).raising(
        JobNotFoundError(JOB, "not registered yet")
    )
    await around.connect(pool)
    await pool.request_slots(wanted(1))
    await around.is_declared(1)
    await pool.disconnect_resource_manager()
    told = len(around.declared())
    await asyncio.sleep(10.0)
    assert len(around.declared()) == told
    await around.connect(pool, 2)
    await around.is_declared(1, n=2)
    assert around.declared(2) == [1]


@on_virtual_time
async def test_requirements_changed_during_an_outage_go_to_the_next_resource_manager() -> None:
    """SP-27: and not to the lost ResourceManager."""
    around = Surroundings()
    pool = await around.start()
    await around.connect(pool)
    await pool.request_slots(wanted(1))
    await around.is_declared(1)
    await pool.disconnect_resource_manager()
    await pool.request_slots(wanted(2))
    await asyncio.sleep(10.0)
    assert around.declared() == [1]
    await around.connect(pool, 2)
    await around.is_declared(1, n=2)
    assert around.declared(2) == [2]


@on_virtual_time
async def test_closing_slot_pool_declares_no_slots_while_its_slots_are_freed() -> None:
    """Otherwise the ResourceManager would give the slots to the job again."""
    around = Surroundings()
    pool = await around.start()
    manager = around.managers[0]
    manager.on(ResourceManagerGateway.declare_required_resources).raising(
        JobNotFoundError(JOB, "not registered yet")
    )

    async def takes_long(*_: object) -> None:
        await asyncio.sleep(5)

    around.executor.on(TaskExecutorGateway.free_slot).calling(takes_long)
    await around.connect(pool)
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    closing = asyncio.ensure_future(pool.close_pool("the job has ended"))
    await around.executor.wait_for(TaskExecutorGateway.free_slot)
    told = len(around.declared())
    await closing
    assert len(around.declared()) == told


# --- requests -------------------------------------------------------------------------------------


@on_virtual_time
async def test_offer_of_a_task_executor_is_refused_until_the_job_master_has_registered_it() -> None:
    """SP-03: the TaskExecutor keeps the slot, and offers it again."""
    around = Surroundings()
    pool = await around.start(is_registered=False)
    await pool.request_slots(wanted(1))
    with pytest.raises(UnknownTaskExecutorError):
        await around.offer(pool, ALLOCATION, 0)
    await pool.register_task_executors((around.location,))
    assert await around.offer(pool, ALLOCATION, 0)


@on_virtual_time
async def test_slot_pool_agrees_to_disconnect_only_task_executors_without_slots() -> None:
    """JM-15: the JobMaster may not know yet that the pool has just taken a slot."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    resource_id = around.location.resource_id
    assert not await pool.let_go(resource_id)
    await pool.fail_allocation(ALLOCATION, "broken")
    assert await pool.let_go(resource_id)
    with pytest.raises(UnknownTaskExecutorError):
        await around.offer(pool, OTHER_ALLOCATION, 0)


@on_virtual_time
async def test_accepted_slot_and_its_allocation_reach_the_job_master_in_one_message() -> None:
    """SP-03, TM-09: before the TaskExecutor hears that the offer is accepted."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1))
    assert await around.offer(pool, ALLOCATION, 0)
    ((_, _, gained, lost, events),) = around.master.calls_of(JobMasterGateway.slots_changed)
    assert [held.slot.allocation_id for held in gained] == [ALLOCATION]
    assert lost == ()
    assert events == (SlotAllocated(number(SlotRequestId, 1), gained[0].slot),)
    assert not await around.offer(pool, OTHER_ALLOCATION, 1)


@on_virtual_time
async def test_thousands_of_slot_requests_are_answered_by_messages_of_bounded_size() -> None:
    """SP-14: and each request once."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(*range(5000), timeout=3.0))
    events = await around.events(3)
    assert sorted(e.request_id for e in events if isinstance(e, SlotRequestFailed)) == [
        number(SlotRequestId, n) for n in range(5000)
    ]
    sizes = [len(e) for *_, e in around.master.calls_of(JobMasterGateway.slots_changed)]
    assert sizes == [2000, 2000, 1000]


@on_virtual_time
async def test_slot_request_times_out_with_and_without_a_resource_manager() -> None:
    """SP-14."""
    around = Surroundings()
    pool = await around.start({"slot.request.timeout": "20 s"})
    await pool.request_slots(wanted(1))
    (failed,) = await around.events(1)
    assert isinstance(failed, SlotRequestFailed)
    assert 20.0 <= around.pool.clock.monotonic() < 21.0
    await around.connect(pool)
    await around.is_declared(1)
    await pool.request_slots(wanted(2))
    assert len(await around.events(2)) == 2
    await around.is_declared(3)
    assert around.declared() == [0, 1, 0]


@on_virtual_time
async def test_slot_request_is_served_by_an_offer_that_came_during_a_stall_of_the_pool() -> None:
    """SP-14: the timeout of the request is over when the pool runs again."""
    around = Surroundings()
    pool = await around.start({"slot.request.timeout": "20 s"})
    await pool.request_slots(wanted(1))
    await asyncio.sleep(19.9)
    block_for(300)
    await asyncio.sleep(0.5)
    assert await around.offer(pool, ALLOCATION, 0)
    (event,) = await around.events(1)
    assert isinstance(event, SlotAllocated)


@on_virtual_time
async def test_cancelled_slot_request_is_no_longer_declared_and_gets_no_event() -> None:
    """SP-05."""
    around = Surroundings()
    pool = await around.start({"slot.request.timeout": "20 s"})
    await around.connect(pool)
    await pool.request_slots(wanted(1))
    cancelled = CancelSlotRequests((number(SlotRequestId, 1),), "not needed")
    await pool.cancel_slot_requests(cancelled)
    await asyncio.sleep(60.0)
    assert around.declared()[-1] == 0
    assert around.master.calls_of(JobMasterGateway.slots_changed) == []


@on_virtual_time
async def test_idle_slot_is_removed_from_the_pool_although_the_call_that_frees_it_fails() -> None:
    """SP-07, SP-08."""
    around = Surroundings()
    around.executor.on(TaskExecutorGateway.free_slot).raising(RpcTimeoutError("too busy"))
    pool = await around.start()
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    await pool.return_slots(ReturnSlots((ALLOCATION,), "done"))
    allocation_id, token, reason = await around.executor.wait_for(TaskExecutorGateway.free_slot)
    assert (allocation_id, token) == (ALLOCATION, MASTER_ID)
    assert reason == "not required for 50 s"
    await pool.request_slots(wanted(2, timeout=5.0))
    assert isinstance((await around.events(3))[-1], SlotRequestFailed)


@on_virtual_time
async def test_slots_are_left_to_the_next_job_master_when_the_job_master_dies() -> None:
    """If the pool freed the slots, the TaskExecutors would have nothing to keep."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    around.network.kill("JobMaster")
    await asyncio.sleep(200)
    assert around.executor.calls_of(TaskExecutorGateway.free_slot) == []


@on_virtual_time
async def test_failing_slot_pool_frees_no_slot() -> None:
    """The JobMaster has another pool with the same slots, in which tasks run."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    around.pool.on_fatal_error(ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        await around.pool.terminated
    await asyncio.sleep(1)
    assert around.executor.calls_of(TaskExecutorGateway.free_slot) == []


@on_virtual_time
async def test_slot_pool_of_a_dead_job_master_frees_no_slot_when_it_is_closed() -> None:
    """The JobMaster was taken for dead, and the next JobMaster takes over the slots."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    around.network.kill("JobMaster")
    await asyncio.sleep(1)
    await pool.close_pool("the job has ended")
    await asyncio.sleep(1)
    assert around.executor.calls_of(TaskExecutorGateway.free_slot) == []


@on_virtual_time
async def test_slot_pool_of_a_dead_job_master_declares_no_slot_requirements() -> None:
    """SP-27."""
    around = Surroundings()
    pool = await around.start()
    around.managers[0].on(ResourceManagerGateway.declare_required_resources).raising(
        JobNotFoundError(JOB, "not registered yet")
    )
    await around.connect(pool)
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    around.network.kill("JobMaster")
    await asyncio.sleep(1)
    told = len(around.declared())
    await asyncio.sleep(5)
    assert len(around.declared()) == told


@on_virtual_time
async def test_slots_of_a_restarted_task_executor_are_reported_as_lost() -> None:
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    around.location = replace(around.location, pid=2)
    with pytest.raises(UnknownTaskExecutorError):
        await around.offer(pool, OTHER_ALLOCATION, 0)
    await pool.register_task_executors((around.location,))
    *_, lost, events = await around.master.wait_for(JobMasterGateway.slots_changed, 2)
    assert lost == (ALLOCATION,)
    assert [event.allocations for event in events if isinstance(event, SlotsLost)] == [lost]


@on_virtual_time
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_shortage_reported_by_a_past_resource_manager_frees_no_slot(
    is_replaced: bool,
) -> None:
    """SP-07: otherwise a slot that is not required would be freed before the idle timeout."""
    around = Surroundings()
    pool = await around.start()
    await around.connect(pool)
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    nothing = ResourceProfile(0.0)
    room = ResourceShortage(1, ONE_CPU, "full", False, nothing, nothing, nothing, awaits_room=True)
    await pool.notify_not_enough_resources((room,))
    if is_replaced:
        await around.connect(pool, 2)
    else:
        await pool.disconnect_resource_manager()
    await pool.return_slots(ReturnSlots((ALLOCATION,), "done"))
    await asyncio.sleep(45)
    assert around.executor.calls_of(TaskExecutorGateway.free_slot) == []


@on_virtual_time
async def test_slot_pool_of_a_dead_job_master_hands_over_its_slots_each_time_it_is_asked() -> None:
    """An answer may be lost, and its receiver may die."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1, 2))
    await around.offer(pool, ALLOCATION, 0)
    await around.offer(pool, OTHER_ALLOCATION, 1)
    around.network.kill("JobMaster")
    await asyncio.sleep(1)
    for n in (2, 3):
        left = await pool.hand_over(number(JobMasterId, n))
        assert left == HandedOver((ALLOCATION, OTHER_ALLOCATION), (around.location,))
    assert around.executor.calls_of(TaskExecutorGateway.free_slot) == []


@on_virtual_time
async def test_pool_of_a_dead_job_master_gives_the_latest_notes_to_the_next_one() -> None:
    """Together with the finished tasks of the execution graph, in as many messages as necessary."""
    around = Surroundings()
    pool = await around.start()
    await pool.keep(KeptPiece(notes=notes(1, 1)))
    await pool.keep(KeptPiece(finished=(finished(around, 1, 0), finished(around, 1, 1))))
    await pool.keep(KeptPiece(notes=notes(2, 1)))
    await pool.keep(KeptPiece(finished=tuple(finished(around, 2, n) for n in range(2001))))
    await pool.keep(KeptPiece(finished=(finished(around, 2, 7, attempt=3),)))
    await pool.keep(KeptPiece(notes=notes(2, 4)))
    with pytest.raises(SlotAllocationError, match="lives"):
        await pool.hand_over_piece(number(JobMasterId, 2), 0)
    around.network.kill("JobMaster")
    await asyncio.sleep(1)
    successor = number(JobMasterId, 2)
    assert await pool.hand_over(successor) == HandedOver((), (), notes(2, 4))
    pieces = [await pool.hand_over_piece(successor, number_) for number_ in range(3)]
    first, then = (() if piece is None else piece.finished for piece in pieces[:2])
    assert (len(first), len(then), pieces[2]) == (2000, 1, None)
    assert {task.state.attempt_id.attempt_number for task in first} == {0, 3}
    with pytest.raises(RecipientUnreachableError, match="was left by JobMaster"):
        await pool.keep(KeptPiece(notes=notes(2, 5)))
    await asyncio.sleep(100)
    assert not around.pool.is_running


@on_virtual_time
async def test_slot_pool_of_a_job_master_believed_dead_refuses_its_further_calls() -> None:
    """A past JobMaster that lives after all starts another pool."""
    around = Surroundings()
    pool = await around.start()
    await around.connect(pool)
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    around.network.kill("JobMaster")
    await asyncio.sleep(1)
    declared = around.declared()
    calls: list[Callable[[], Awaitable[object]]] = [
        pool.request_heartbeat,
        lambda: pool.keep(KeptPiece(notes=notes(1, 1))),
        lambda: pool.expect_slots((OTHER_ALLOCATION,)),
        lambda: pool.request_slots(wanted(3)),
        lambda: pool.return_slots(ReturnSlots((ALLOCATION,), "done")),
        lambda: pool.fail_allocation(ALLOCATION, "its TaskExecutor is lost"),
        lambda: around.connect(pool, 2),
    ]
    for call in calls:
        with pytest.raises(RecipientUnreachableError, match="was left by JobMaster"):
            await call()
    left = HandedOver((ALLOCATION,), (around.location,))
    assert await pool.hand_over(number(JobMasterId, 2)) == left
    await pool.close_pool("the JobMaster stops")
    await asyncio.sleep(200)
    assert around.executor.calls_of(TaskExecutorGateway.free_slot) == []
    assert (around.declared(), around.declared(2)) == (declared, [])


@on_virtual_time
async def test_pool_of_a_dead_job_master_gives_the_latest_source_progress_to_the_next_one() -> None:
    around = Surroundings()
    pool = await around.start()
    source = number(JobVertexID, 1)
    last = KeptPart(source, 0, 2), KeptPart(None, 0, 1)
    await pool.keep(KeptPiece(notes=notes(1, 1)))
    for part in (KeptPart(source, 0, 1), *last, KeptPart(source, 0, 1)):
        await pool.keep(KeptPiece(part=part))
    around.network.kill("JobMaster")
    await asyncio.sleep(1)
    successor = number(JobMasterId, 2)
    pieces = [await pool.hand_over_piece(successor, number_) for number_ in range(3)]
    assert pieces == [*(KeptPiece(part=part) for part in last), None]


@on_virtual_time
async def test_slot_pool_of_a_dead_job_master_ignores_timeouts_and_hands_over_its_slots() -> None:
    """A pool that handles the timeout would fail, because it serves no JobMaster."""
    around = Surroundings()
    pool = await around.start({"slot.request.timeout": "20 s"})
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    await pool.request_slots(wanted(2))
    around.network.kill("JobMaster")
    await asyncio.sleep(30)
    assert (await pool.hand_over(number(JobMasterId, 2))).allocations == (ALLOCATION,)


@on_virtual_time
async def test_slot_pool_refuses_to_hand_over_its_slots_while_its_job_master_lives() -> None:
    """A JobMaster that was replaced while it started asks late."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    await pool.keep(KeptPiece(part=KeptPart(None, 0, 1)))
    with pytest.raises(SlotAllocationError, match="lives"):
        await pool.hand_over(number(JobMasterId, 2))
    with pytest.raises(SlotAllocationError, match="lives"):
        await pool.hand_over_piece(number(JobMasterId, 2), 0)
    assert await pool.request_heartbeat() == 1


@on_virtual_time
async def test_slot_pool_started_after_its_job_masters_death_ends_after_hand_over() -> None:
    """The pool must not watch the next JobMaster, which is at the same address."""
    around = Surroundings()
    around.network.kill("JobMaster")
    around.start_job_master(number(JobMasterId, 2))
    pool = await around.start()
    assert await pool.hand_over(number(JobMasterId, 2)) == HandedOver((), ())
    await asyncio.wait_for(around.pool.terminated, 1)


@on_virtual_time
async def test_slot_pool_whose_job_master_is_dead_at_the_start_ends_if_not_taken_over() -> None:
    around = Surroundings()
    around.network.kill("JobMaster")
    around.start_job_master(number(JobMasterId, 2))
    await around.start()
    await asyncio.wait_for(around.pool.terminated, 7)


@on_virtual_time
async def test_slot_pool_repeats_a_lost_question_whether_its_job_master_lives() -> None:
    """Seed 100388: one answer was lost, and the pool watched the next JobMaster for ever."""
    around = Surroundings()
    answers: list[RpcError] = [
        FencingTokenError("jobmaster", "request_job_status", None, MASTER_ID),
        RpcTimeoutError("no answer"),
    ]

    def answer() -> JobStatus:
        raise answers.pop()

    around.master.on(JobMasterGateway.request_job_status).calling(answer)
    await around.start()
    await asyncio.wait_for(around.pool.terminated, 15)
    assert answers == []


@on_virtual_time
async def test_slot_pool_asks_only_once_whether_its_job_master_lives() -> None:
    around = Surroundings()
    await around.start()
    await asyncio.sleep(60)
    assert len(around.master.calls_of(JobMasterGateway.request_job_status)) == 1
    assert around.pool.is_running


@on_virtual_time
async def test_slot_pool_of_a_dead_job_master_ends_after_the_takeover_timeout() -> None:
    around = Surroundings()
    pool = await around.start({"jobmaster.takeover-timeout": "20 s"})
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    around.network.kill("JobMaster")
    await asyncio.sleep(19)
    assert around.pool.is_running
    await asyncio.wait_for(around.pool.terminated, 2)


@on_virtual_time
async def test_slots_are_freed_when_the_pool_is_closed() -> None:
    """SP-06."""
    around = Surroundings()
    pool = await around.start()
    await pool.request_slots(wanted(1))
    await around.offer(pool, ALLOCATION, 0)
    await pool.close_pool("the job has ended")
    assert (await around.executor.wait_for(TaskExecutorGateway.free_slot))[0] == ALLOCATION
    await asyncio.wait_for(around.pool.terminated, 1)
