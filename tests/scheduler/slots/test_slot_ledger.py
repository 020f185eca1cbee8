"""What a JobMaster keeps of its SlotPool, as far as the pool's stateful tests do not show it."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import ResourceID, SlotRequestId
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    SameWorkerGroup,
)
from flinkray.scheduler.slots.slot_ledger import SlotLedger
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotAllocated,
    SlotRequest,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
)
from tests.scheduler.builders import LARGE, SMALL, allocation, id_of, requirements, slot_on

TE0, TE1 = ResourceID("te-0"), ResourceID("te-1")


def held() -> SlotLedger:
    slots = SlotLedger()
    for name, number in (("te-0", 1), ("te-1", 2), ("te-0", 3)):
        slots.add(slot_on(name, number))
    return slots


def test_ledger_lists_the_slots_of_a_task_executor_oldest_first() -> None:
    slots = held()
    assert slots.on(TE0) == (allocation(1), allocation(3))
    assert slots.on(TE1) == (allocation(2),)
    assert slots.on(ResourceID("nobody")) == ()
    assert slots.all() == (slot_on("te-0", 1), slot_on("te-1", 2), slot_on("te-0", 3))


def test_removing_slots_from_the_ledger_ignores_unknown_slots() -> None:
    slots = held()
    slots.remove((allocation(9), allocation(1), allocation(2)))
    assert slots.on(TE0) == (allocation(3),)
    assert slots.on(TE1) == ()
    assert slots.all() == (slot_on("te-0", 3),)
    slots.remove((allocation(1),))  # again
    slots.add(slot_on("te-1", 4))
    assert slots.on(TE1) == (allocation(4),)


def test_lost_task_executor_removes_its_slots_from_the_ledger() -> None:
    slots = held()
    slots.remove_all_on(TE0)
    slots.remove_all_on(TE0)
    assert slots.all() == (slot_on("te-1", 2),)
    assert slots.on(TE0) == ()


def test_ledger_lowers_a_requirement_once_per_slot_returned_lost_or_cancelled() -> None:
    """Otherwise the next pool would declare more or fewer slots than the job requires."""
    slots = held()
    slots.set_requirements(requirements((SMALL, 1)))
    slots.requested(
        SlotRequests(SMALL, tuple(SlotRequest(id_of(SlotRequestId, n)) for n in range(4)))
    )
    slots.told([SlotAllocated(id_of(SlotRequestId, n), slot) for n, slot in enumerate(slots.all())])
    assert [restored.request_id for restored in slots.restored()] == [
        id_of(SlotRequestId, n) for n in range(3)
    ]
    slots.returned(ReturnSlots((allocation(1),), "done"))
    slots.remove((allocation(2),))
    slots.told([SlotsLost((allocation(2), allocation(3)), "killed")])
    assert [restored.request_id for restored in slots.restored()] == [None, None]
    slots.returned(ReturnSlots((allocation(1), allocation(3)), "again"))
    slots.told([SlotRequestFailed(id_of(SlotRequestId, 3), SlotRequestFailure.TIMED_OUT, "late")])
    slots.cancelled(CancelSlotRequests((id_of(SlotRequestId, 3),), "again"))

    assert slots.pending() == []
    assert [restored.request_id for restored in slots.restored()] == [None, None]
    assert slots.requirements() == requirements((SMALL, 1))


def test_ledger_lowers_the_small_requirement_when_the_large_slot_serving_it_returns() -> None:
    slots = SlotLedger()
    slots.add(slot_on("te-0", 1, profile=LARGE))
    slots.set_requirements(requirements((LARGE, 1)))
    slots.requested(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 1)),)))
    slots.told([SlotAllocated(id_of(SlotRequestId, 1), slots.all()[0])])
    assert [restored.profile for restored in slots.restored()] == [SMALL]
    slots.returned(ReturnSlots((allocation(1),), "done"))
    assert slots.requirements() == requirements((LARGE, 1))


def test_ledger_drops_the_requirement_of_a_request_answered_with_an_unknown_slot() -> None:
    slots = SlotLedger()
    slots.set_requirements(requirements((SMALL, 1)))
    slots.requested(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 1)),)))
    slots.told([SlotAllocated(id_of(SlotRequestId, 1), slot_on("te-0", 1))])
    assert slots.pending() == []
    assert slots.requirements() == requirements((SMALL, 1))


def test_ledger_keeps_worker_group_requests_apart_from_other_requirements() -> None:
    """The next pool declares the worker group itself, because of its requests."""
    own = SameWorkerGroup("default", 2)
    slots = SlotLedger()
    set_once = replace(
        requirements((SMALL, 1)),
        requirements=(ResourceRequirement(SMALL, 1), ResourceRequirement(SMALL, 2, own)),
    )
    slots.set_requirements(set_once)
    assert slots.requirements() == set_once
    wanted = SlotRequests(
        SMALL,
        tuple(SlotRequest(id_of(SlotRequestId, n), bundle=n) for n in range(2)),
        constraint=own,
    )
    slots.requested(wanted)
    assert slots.pending() == [wanted]
    assert slots.requirements() == set_once
    slots.add(slot_on("te-0", 1), own)
    slots.told([SlotAllocated(id_of(SlotRequestId, 0), slot_on("te-0", 1))])
    assert slots.requirements() == set_once
    (held,) = slots.restored()
    assert (held.constraint, held.request_id) == (own, id_of(SlotRequestId, 0))
    slots.cancelled(CancelSlotRequests((id_of(SlotRequestId, 1),), "not needed"))
    assert slots.requirements() == set_once
    slots.returned(ReturnSlots((allocation(1),), "done"))
    assert slots.requirements() == set_once
    slots.remove((allocation(1),))
    slots.add(slot_on("te-0", 1))
    assert [restored.constraint for restored in slots.restored()] == [None]


def test_pending_requests_in_the_ledger_keep_their_profile_kind_and_timeout() -> None:
    slots = SlotLedger()
    assert slots.requirements() is None
    first = SlotRequests(
        SMALL, tuple(SlotRequest(id_of(SlotRequestId, n)) for n in (1, 2, 3)), timeout=9.0
    )
    second = SlotRequests(LARGE, (SlotRequest(id_of(SlotRequestId, 4)),), is_batch=True)
    third = SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 5)),), timeout=9.0)
    for wanted in (first, second, third):
        slots.requested(wanted)
    slots.cancelled(CancelSlotRequests((id_of(SlotRequestId, 2),), "not needed"))
    alike = (first.requests[0], first.requests[2], third.requests[0])
    assert slots.pending() == [replace(first, requests=alike), second]
    assert slots.requirements() is None


def test_ledger_never_has_negative_requirements_if_set_below_the_slots_in_use() -> None:
    """SP-21: as in the pool."""
    slots = SlotLedger()
    slots.requested(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 1)),)))
    slots.set_requirements(requirements())
    slots.cancelled(CancelSlotRequests((id_of(SlotRequestId, 1),), "not needed"))
    assert slots.requirements() == requirements()

    slots.add(slot_on("te-0", 1))
    slots.requested(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 2)),)))
    slots.told([SlotAllocated(id_of(SlotRequestId, 2), slots.all()[0])])
    slots.set_requirements(requirements())
    slots.returned(ReturnSlots((allocation(1),), "done"))
    assert slots.requirements() == requirements()

    slots.set_requirements(requirements((SMALL, 3)))
    slots.requested(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 3)),)))
    assert slots.requirements() == requirements((SMALL, 3))


def test_slot_that_comes_after_its_request_was_cancelled_counts_until_returned() -> None:
    """As in the pool, where the request was answered before the cancellation. Otherwise the next
    pool requires too little."""
    slots = SlotLedger()
    slots.set_requirements(requirements((LARGE, 1)))
    slots.add(slot_on("te-0", 1, profile=LARGE))
    slots.requested(SlotRequests(LARGE, (SlotRequest(id_of(SlotRequestId, 1)),)))
    slots.cancelled(CancelSlotRequests((id_of(SlotRequestId, 1),), "not needed"))
    slots.told([SlotAllocated(id_of(SlotRequestId, 1), slots.all()[0])])
    (held,) = slots.restored()
    assert (held.request_id, held.profile) == (id_of(SlotRequestId, 1), LARGE)
    assert slots.requirements() == requirements((LARGE, 1))
    slots.returned(ReturnSlots((allocation(1),), "its request was cancelled"))
    assert slots.requirements() == requirements((LARGE, 1))
    assert [restored.request_id for restored in slots.restored()] == [None]


def test_bundle_that_comes_after_its_request_was_cancelled_counts_for_its_group() -> None:
    own = SameWorkerGroup("default", 1)
    slots = SlotLedger()
    slots.set_requirements(requirements((SMALL, 1)))
    wanted = SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 1)),), constraint=own)
    slots.requested(wanted)
    slots.add(slot_on("te-0", 1), own)
    slots.cancelled(CancelSlotRequests((id_of(SlotRequestId, 1),), "not needed"))
    slots.told([SlotAllocated(id_of(SlotRequestId, 1), slots.all()[0])])
    assert slots.requirements() == requirements((SMALL, 1))
    slots.returned(ReturnSlots((allocation(1),), "its request was cancelled"))
    assert slots.requirements() == requirements((SMALL, 1))
