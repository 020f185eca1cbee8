"""DeclarativeSlotPool: what the pool of a lost JobMaster hands over to that of the next one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.ids import ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    SameWorkerGroup,
    SlotOffer,
)
from flinkray.scheduler.slots.slot_pool import (
    DeclarativeSlotPool,
    DeclareRequirements,
    FreeSlot,
    SlotsChanged,
)
from flinkray.scheduler.slots.slot_requests import (
    HeldSlot,
    ReturnSlots,
    SlotAllocated,
    SlotRequest,
    SlotRequests,
    TaskExecutorWithoutSlots,
)
from tests.scheduler.builders import (
    JOB,
    LARGE,
    OWN_GROUP,
    SMALL,
    allocation,
    id_of,
    location,
    offer,
    one,
    only,
    requirements,
    slot_on,
)

TE = ResourceID("te")
OWN = SameWorkerGroup(OWN_GROUP, 2)


def new_pool() -> DeclarativeSlotPool:
    pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster", idle_timeout=50.0, takeover_timeout=60.0)
    for bundle in (0, 1):
        pool.register_task_executor(location(f"te{bundle}", bundle), 0.0)
    pool.register_task_executor(location("te"), 0.0)
    return pool


def accepted(
    pool: DeclarativeSlotPool, *offers: SlotOffer, of: str = "te", now: float = 1.0
) -> list[int]:
    answer, _ = pool.offer_slots(ResourceID(of), offers, now)
    return [int.from_bytes(a.value, "big") for a in answer.accepted]


def in_group(number: int) -> SlotOffer:
    return replace(offer(number), constraint=OWN)


def test_new_pool_without_requirements_accepts_only_slots_of_the_past_pool() -> None:
    pool = new_pool()
    pool.expect_slots((allocation(1), allocation(2)), 0.0)
    assert accepted(pool, offer(1, 0), offer(3, 2)) == [1]
    assert accepted(pool, offer(2, 1, LARGE)) == [2]
    (event,) = only(pool.request_slots(_wanted(), 2.0), SlotAllocated)
    assert event.slot.allocation_id == allocation(1)


def _wanted(bundle: int = 0, constraint: SameWorkerGroup | None = None) -> SlotRequests:
    request = SlotRequest(id_of(SlotRequestId, 1 + bundle), bundle=bundle)
    return SlotRequests(SMALL, (request,), constraint=constraint)


def test_slots_of_the_past_pool_that_stay_unused_are_freed_after_the_idle_timeout() -> None:
    """SP-07."""
    pool = new_pool()
    pool.expect_slots((allocation(1),), 0.0)
    accepted(pool, offer(1))
    assert pool.next_deadline() == 51.0
    assert one(pool.time_passed(51.0), FreeSlot).allocation_id == allocation(1)
    assert accepted(pool, offer(1), now=52.0) == [], "it is expected once"


def test_slot_of_the_past_pool_that_is_offered_too_late_is_refused() -> None:
    pool = new_pool()
    pool.expect_slots((allocation(1),), 0.0)
    assert accepted(pool, offer(1), now=60.0) == []


def test_pool_hands_over_its_slots_and_slots_of_the_past_pool_that_have_not_come() -> None:
    """The second JobMaster may also die before the slots have come."""
    first = new_pool()
    first.set_requirements(requirements((SMALL, 1)), 0.0)
    accepted(first, offer(1))
    second = new_pool()
    second.expect_slots((*first.handed_over(2.0), allocation(7), allocation(8)), 2.0)
    assert accepted(second, offer(7, 1), now=3.0) == [7]
    assert set(second.handed_over(4.0)) == {allocation(1), allocation(7), allocation(8)}
    assert set(second.handed_over(62.0)) == {allocation(7)}, "the others are others' by now"


def test_worker_group_of_the_past_pool_is_kept_for_later_requests() -> None:
    pool = new_pool()
    pool.expect_slots((allocation(1), allocation(2)), 0.0)
    assert accepted(pool, in_group(1), of="te0") == [1]
    assert accepted(pool, in_group(2), of="te1") == [2]
    assert accepted(pool, in_group(2), of="te1") == [2], "an offer again"
    (event,) = only(pool.request_slots(_wanted(1, OWN), 2.0), SlotAllocated)
    assert event.slot.allocation_id == allocation(2)


def test_slot_of_the_past_pool_is_refused_if_another_slot_has_its_bundle_by_now() -> None:
    pool = new_pool()
    pool.register_task_executor(location("late", 0), 0.0)
    pool.expect_slots((allocation(1), allocation(2)), 0.0)
    assert accepted(pool, in_group(1), of="te0") == [1]
    assert accepted(pool, in_group(2), of="late") == []
    assert pool.handed_over(2.0) == (allocation(1),)


def test_large_slot_of_the_past_pool_fulfils_a_smaller_missing_requirement() -> None:
    """Otherwise it would be given back as idle, while another slot is declared and started."""
    pool = new_pool()
    pool.expect_slots((allocation(1),), 0.0)
    pool.set_requirements(requirements((SMALL, 1)), 0.0)
    assert accepted(pool, offer(1, 0, LARGE)) == [1]
    assert (pool.number_fulfilled(SMALL), pool.number_fulfilled(LARGE)) == (1, 0)
    assert pool.next_deadline() is None


def test_bundle_of_the_past_pool_that_is_requested_before_its_offer_is_added_once() -> None:
    pool = new_pool()
    one_bundle = SameWorkerGroup(OWN_GROUP, 1)
    pool.expect_slots((allocation(1),), 0.0)
    pool.request_slots(_wanted(0, one_bundle), 1.0)
    slot = replace(offer(1), constraint=one_bundle)
    answer, actions = pool.offer_slots(ResourceID("te0"), (slot,), 2.0)
    assert answer.accepted == (allocation(1),)
    assert [s.allocation_id for s in one(actions, SlotsChanged).gained] == [allocation(1)]
    assert one(actions, SlotAllocated).slot.allocation_id == allocation(1)
    assert [s.allocation_id for s in pool.slots] == [allocation(1)]


def test_bundle_of_the_past_pool_too_small_for_the_required_worker_group_is_refused() -> None:
    pool = new_pool()
    pool.expect_slots((allocation(1),), 0.0)
    pool.request_slots(replace(_wanted(0, OWN), profile=LARGE), 1.0)
    assert accepted(pool, in_group(1), of="te0", now=2.0) == []
    assert pool.slots == ()


def test_slot_the_new_pool_has_already_is_not_awaited_as_a_slot_of_the_past_pool() -> None:
    """SP-21: after the slot fails, the same allocation is refused when offered again."""
    pool = new_pool()
    pool.set_requirements(requirements((SMALL, 1)), 0.0)
    accepted(pool, offer(1))
    pool.expect_slots((allocation(1),), 1.0)
    pool.set_requirements(requirements(), 1.0)
    pool.fail_allocation(allocation(1), "broken", 2.0)
    assert accepted(pool, offer(1), now=3.0) == []


def test_closed_pool_refuses_slots_awaited_or_restored_from_the_past_pool() -> None:
    """SP-06."""
    pool = new_pool()
    pool.expect_slots((allocation(1),), 0.0)
    pool.close("the job has ended")
    assert accepted(pool, offer(1)) == []
    with pytest.raises(IllegalTransitionError, match="expect slots"):
        pool.expect_slots((allocation(1),), 1.0)
    with pytest.raises(IllegalTransitionError, match="restore slots"):
        pool.restore((HeldSlot(slot_on("te", 1)),), 1.0)
    with pytest.raises(IllegalTransitionError, match="take requests"):
        pool.request_slots(_wanted(), 1.0)
    assert pool.resource_manager_changed(1.0) == []


def restored(
    number: int,
    of: str = "te",
    index: int = 0,
    *,
    profile: ResourceProfile = SMALL,
    request: int | None = None,
    requested: ResourceProfile | None = None,
) -> HeldSlot:
    return HeldSlot(
        slot_on(of, number, index, profile),
        None,
        None if request is None else id_of(SlotRequestId, request),
        requested,
    )


def test_slots_restored_from_a_dead_pool_are_added_once_even_if_offered_before() -> None:
    pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster", idle_timeout=50.0)
    pool.restore((restored(1, index=0),), 0.0)
    pool.register_task_executor(location("te"), 0.0)
    assert accepted(pool, offer(1, 0)) == [1]
    pool.restore((restored(1, index=0), restored(2, index=1)), 1.0)
    assert [s.allocation_id for s in pool.slots] == [allocation(1), allocation(2)]
    assert [s.allocation_id for s in pool.slots_of(TE)] == [allocation(1), allocation(2)]
    assert pool.story().count(" s: 1 slots of the last pool are held") == 2


def test_restored_slots_count_for_their_requests_and_are_declared() -> None:
    """SP-24: a large slot serves a small request; free slots are in excess of the requirements."""
    pool = new_pool()
    slots = (
        restored(1, index=0, profile=LARGE, request=1, requested=SMALL),
        restored(2, index=1, profile=LARGE),
    )
    actions = pool.restore(slots, 5.0)
    assert one(actions, DeclareRequirements).requirements == requirements((SMALL, 1))
    assert (pool.number_fulfilled(SMALL), pool.number_fulfilled(LARGE)) == (1, 1)
    assert [info.slot.allocation_id for info in pool.free_slots()] == [allocation(2)]
    assert pool.next_deadline() == 55.0
    returned = pool.return_slots(ReturnSlots((allocation(1),), "done"), 6.0)
    assert one(returned, DeclareRequirements).requirements == requirements()


def test_restored_pool_takes_no_offer_before_the_task_executor_is_registered() -> None:
    """The pool does not know yet all slots of the TaskExecutor, and would refuse the others."""
    pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster")
    pool.restore((restored(1, index=0),), 0.0)
    assert not pool.is_registered(location("te"))
    pool.restore((restored(2, index=1),), 0.0)
    pool.register_task_executor(location("te"), 0.0)
    assert pool.is_registered(location("te"))
    assert accepted(pool, offer(2, 1)) == [2]


def test_task_executor_without_restored_slots_is_reported_before_its_registration() -> None:
    """Otherwise the job would keep a TaskExecutor that it does not need."""
    pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster")
    pool.restore((restored(1, index=0),), 0.0)
    actions = pool.fail_allocation(allocation(1), "broken", 1.0)
    assert one(actions, TaskExecutorWithoutSlots).resource_id == TE


def test_restored_slots_are_lost_if_their_task_executor_is_another_process() -> None:
    pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster")
    pool.restore((restored(1, index=0),), 0.0)
    actions = pool.register_task_executor(location("te", pid=2), 1.0)
    assert one(actions, SlotsChanged).lost == (allocation(1),)


def test_pool_restored_without_slots_declares_empty_requirements() -> None:
    """The ResourceManager still knows the requirements of the dead pool."""
    assert new_pool().restore((), 1.0) == [DeclareRequirements(requirements())]


def test_bundles_restored_from_a_dead_pool_declare_and_serve_their_worker_group() -> None:
    pool = new_pool()
    slots = [
        HeldSlot(
            slot_on(f"te{bundle}", 1 + bundle),
            OWN,
            id_of(SlotRequestId, 1) if bundle == 0 else None,
            SMALL if bundle == 0 else None,
        )
        for bundle in (0, 1)
    ]
    slots[1] = replace(slots[1], slot=replace(slots[1].slot, location=location("te1", 1)))
    actions = pool.restore(slots, 0.0)
    assert one(actions, DeclareRequirements).requirements == ResourceRequirements(
        JOB, "JobMaster/jobmaster", (ResourceRequirement(SMALL, 2, OWN),)
    )
    assert pool.free_slots() == ()
    (event,) = only(pool.request_slots(_wanted(1, OWN), 1.0), SlotAllocated)
    assert event.slot.allocation_id == allocation(2)
