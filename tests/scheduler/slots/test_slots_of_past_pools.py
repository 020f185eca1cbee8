"""DeclarativeSlotPool: what the pool of a lost JobMaster hands over to that of the next one."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import ResourceID, SlotRequestId
from flinkray.scheduler.shared.slots import SameWorkerGroup, SlotOffer
from flinkray.scheduler.slots.slot_pool import DeclarativeSlotPool
from flinkray.scheduler.slots.slot_pool_actions import FreeSlot
from flinkray.scheduler.slots.slot_requests import SlotAllocated, SlotRequest, SlotRequests
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


def test_what_was_handed_over_is_taken_before_it_is_required_and_no_more() -> None:
    """They were refused, and freed."""
    pool = new_pool()
    pool.expect_slots((allocation(1), allocation(2)), 0.0)
    assert accepted(pool, offer(1, 0), offer(3, 2)) == [1]
    assert accepted(pool, offer(2, 1, LARGE)) == [2]
    (event,) = only(pool.request_slots(_wanted(), 2.0), SlotAllocated)
    assert event.slot.allocation_id == allocation(1)


def _wanted(bundle: int = 0, constraint: SameWorkerGroup | None = None) -> SlotRequests:
    request = SlotRequest(id_of(SlotRequestId, 1 + bundle), bundle=bundle)
    return SlotRequests(SMALL, (request,), constraint=constraint)


def test_what_was_handed_over_and_is_not_used_is_given_back_like_other_idle_slots() -> None:
    """SP-07."""
    pool = new_pool()
    pool.expect_slots((allocation(1),), 0.0)
    accepted(pool, offer(1))
    assert pool.next_deadline() == 51.0
    assert one(pool.time_passed(51.0), FreeSlot).allocation_id == allocation(1)
    assert accepted(pool, offer(1), now=52.0) == [], "it is expected once"


def test_what_comes_after_the_time_is_an_offer_like_others() -> None:
    pool = new_pool()
    pool.expect_slots((allocation(1),), 0.0)
    assert accepted(pool, offer(1), now=60.0) == []


def test_pool_hands_over_what_it_has_and_what_has_not_come_yet() -> None:
    """Also the second JobMaster may die before the slots are there."""
    first = new_pool()
    first.set_requirements(requirements((SMALL, 1)), 0.0)
    accepted(first, offer(1))
    second = new_pool()
    second.expect_slots((*first.handed_over(2.0), allocation(7), allocation(8)), 2.0)
    assert accepted(second, offer(7, 1), now=3.0) == [7]
    assert set(second.handed_over(4.0)) == {allocation(1), allocation(7), allocation(8)}
    assert set(second.handed_over(62.0)) == {allocation(7)}, "the others are others' by now"


def test_worker_group_that_is_not_required_yet_is_kept_and_serves_the_requests_that_come() -> None:
    pool = new_pool()
    pool.expect_slots((allocation(1), allocation(2)), 0.0)
    assert accepted(pool, in_group(1), of="te0") == [1]
    assert accepted(pool, in_group(2), of="te1") == [2]
    assert accepted(pool, in_group(2), of="te1") == [2], "an offer again"
    (event,) = only(pool.request_slots(_wanted(1, OWN), 2.0), SlotAllocated)
    assert event.slot.allocation_id == allocation(2)


def test_bundle_that_another_slot_fills_by_now_is_not_taken() -> None:
    pool = new_pool()
    pool.register_task_executor(location("late", 0), 0.0)
    pool.expect_slots((allocation(1), allocation(2)), 0.0)
    assert accepted(pool, in_group(1), of="te0") == [1]
    assert accepted(pool, in_group(2), of="late") == []
    assert pool.handed_over(2.0) == (allocation(1),)
