"""The slots that must be the bundles of one worker group, without the pool around them."""

from __future__ import annotations

from math import inf

import pytest

from flinkray.core.ids import SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirement,
    ResourceShortage,
    SameWorkerGroup,
)
from flinkray.scheduler.slots.slot_requests import (
    HeldSlot,
    SlotRequest,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
)
from flinkray.scheduler.slots.worker_group_slots import WorkerGroupSlots
from tests.scheduler.builders import LARGE, SMALL, allocated_slot, allocation, id_of, served

NAME = "own"
TWO = ResourceRequirement(SMALL, 2, SameWorkerGroup(NAME, 2))


def ask(
    slots: WorkerGroupSlots,
    *bundles: int,
    size: int = 2,
    timeout: float = 9.0,
    profile: ResourceProfile = SMALL,
) -> dict[int, int]:
    """Requests are numbered by their bundles; what is served at once, as in :func:`serve`."""
    requests = tuple(SlotRequest(id_of(SlotRequestId, bundle), bundle=bundle) for bundle in bundles)
    wanted = SlotRequests(profile, requests, constraint=SameWorkerGroup(NAME, size))
    return served(slots.request(wanted, timeout, 0.0))


def come(slots: WorkerGroupSlots, *bundles: int, group: str = "g", first: int = 0) -> None:
    """Slots are numbered by their bundles, from *first* on."""
    for bundle in bundles:
        slots.add(allocated_slot(first + bundle, bundle, group), SMALL, 0.0)


def serve(slots: WorkerGroupSlots) -> dict[int, int]:
    """Bundle -> number of its slot."""
    return served(slots.serve())


def shortage(name: str | None, unfulfillable: bool, exhausted: bool) -> ResourceShortage:
    constraint = None if name is None else SameWorkerGroup(name, 2)
    return ResourceShortage(
        2, SMALL, "missing", unfulfillable, LARGE, LARGE, LARGE, exhausted, constraint
    )


@pytest.mark.parametrize(
    ("told", "failure"),
    [
        (shortage(None, True, False), None),
        (shortage("other", True, False), None),
        (shortage(NAME, False, False), None),
        (shortage(NAME, True, False), SlotRequestFailure.UNFULFILLABLE),
        (shortage(NAME, False, True), SlotRequestFailure.NOT_ENOUGH_RESOURCES),
        (shortage(NAME, True, True), SlotRequestFailure.UNFULFILLABLE),
    ],
)
def test_unfulfillable_shortage_of_a_worker_group_fails_the_groups_slot_requests(
    told: ResourceShortage, failure: SlotRequestFailure | None
) -> None:
    """SP-16, SP-28."""
    slots = WorkerGroupSlots(NAME)
    ask(slots, 0, 1)
    failed = slots.fail_short((shortage(None, True, True), told), 1.0)
    assert failed == (
        []
        if failure is None
        else [SlotRequestFailed(id_of(SlotRequestId, n), failure, "missing") for n in (0, 1)]
    )
    assert slots.number_pending == (2 if failure is None else 0)


def test_next_deadline_of_a_worker_group_is_the_earliest_timeout_of_its_requests() -> None:
    """SP-14."""
    slots = WorkerGroupSlots(NAME)
    assert slots.next_deadline() == inf
    ask(slots, 0, timeout=9.0)
    ask(slots, 1, timeout=4.0)
    assert slots.next_deadline() == 4.0
    assert slots.fail_late(3.9) == []
    (late,) = slots.fail_late(4.0)
    assert isinstance(late, SlotRequestFailed)
    assert late.request_id == id_of(SlotRequestId, 1)
    assert late.reason.startswith("0 of 2 slots")
    assert slots.next_deadline() == 9.0


def test_slots_of_a_worker_group_are_idle_once_its_last_request_is_cancelled() -> None:
    """SP-07."""
    slots = WorkerGroupSlots(NAME)
    ask(slots, 0, 1)
    come(slots, 0)
    slots.cancel((id_of(SlotRequestId, 0),), 2.0)
    assert slots.idle_deadline(5.0) == inf
    slots.cancel((id_of(SlotRequestId, 1), id_of(SlotRequestId, 7)), 3.0)
    assert slots.idle_deadline(5.0) == 8.0
    slots.cancel((), 4.0)
    assert slots.idle_deadline(5.0) == 8.0
    slots.remove(allocation(0), 5.0)
    assert slots.idle_deadline(5.0) == inf
    assert slots.is_over


def test_slot_of_a_group_that_is_not_required_is_idle_from_its_arrival() -> None:
    slots = WorkerGroupSlots(NAME)
    slots.add(allocated_slot(0, 0), SMALL, 6.0)
    assert slots.idle_deadline(5.0) == 11.0


def test_worker_group_of_a_restarting_job_is_kept_only_if_the_job_required_it() -> None:
    """SP-26: or if the dead pool required the group."""
    slots = WorkerGroupSlots(NAME)
    slots.keep(True, (), 0.0)
    assert not slots.is_required
    slots.keep(True, (TWO,), 1.0)
    assert slots.requirements(0.0) == (TWO,)
    come(slots, 0)
    assert slots.idle_deadline(5.0) == inf
    slots.keep(False, (), 2.0)
    assert slots.requirements(0.0) == ()
    assert slots.idle_deadline(5.0) == 7.0


def test_bundle_offered_beyond_the_worker_group_size_or_too_small_is_refused() -> None:
    slots = WorkerGroupSlots(NAME)
    ask(slots, 0)
    here = allocated_slot(5, 0).location
    assert slots.match(allocated_slot(1, 1), 0.0) == SMALL
    assert slots.match(allocated_slot(2, 2), 0.0) is None
    assert slots.match(AllocatedSlot(allocation(5), 0, ResourceProfile(0.5, 1), here), 0.0) is None
    assert slots.match(AllocatedSlot(allocation(5), 0, LARGE, here), 0.0) == SMALL


def test_requests_are_served_from_the_worker_group_in_use_not_a_newer_complete_group() -> None:
    slots = WorkerGroupSlots(NAME)
    ask(slots, 0)
    come(slots, 0, 1, group="old")
    assert serve(slots) == {0: 0}
    come(slots, 0, 1, group="new", first=10)
    assert ask(slots, 1) == {1: 1}
    assert slots.useless() == (allocation(10), allocation(11))


def test_newest_complete_worker_group_serves_requests_and_others_slots_may_be_freed() -> None:
    slots = WorkerGroupSlots(NAME)
    come(slots, 0, 1, group="old")
    come(slots, 0, 1, group="new", first=10)
    come(slots, 0, group="begun", first=20)
    assert ask(slots, 0, 1) == {0: 10, 1: 11}
    assert slots.useless() == (allocation(0), allocation(1), allocation(20))
    assert slots.is_reserved(allocation(10))
    assert not slots.is_reserved(allocation(0))
    assert not slots.is_reserved(allocation(99))


def test_second_slot_request_for_the_same_bundle_raises_an_error() -> None:
    slots = WorkerGroupSlots(NAME)
    ask(slots, 0)
    with pytest.raises(ValueError, match="bundle 0 of worker group 'own' is taken"):
        ask(slots, 0)
    come(slots, 0, 1)
    assert serve(slots) == {0: 0}
    with pytest.raises(ValueError, match="bundle 0 of worker group 'own' is taken"):
        ask(slots, 0)
    with pytest.raises(ValueError, match="no bundle 2"):
        ask(slots, 2)
    slots.give_back(allocation(0), 1.0)
    assert ask(slots, 0) == {0: 0}


def test_slots_of_a_worker_group_are_idle_once_its_last_request_has_failed() -> None:
    """SP-07, SP-14."""
    late, failed = WorkerGroupSlots(NAME), WorkerGroupSlots(NAME)
    for slots in (late, failed):
        come(slots, 0)
        ask(slots, 1, timeout=9.0)
        come(slots, 0, group="other", first=10)
        assert slots.idle_deadline(5.0) == inf
    late.fail_late(9.0)
    assert late.idle_deadline(5.0) == 14.0
    failed.fail_all(SlotRequestFailure.NOT_ENOUGH_RESOURCES, "no room", 3.0)
    assert failed.idle_deadline(5.0) == 8.0


@pytest.mark.parametrize("requested", [None, SMALL])
def test_restored_slot_requires_its_worker_group_with_the_requested_or_own_profile(
    requested: ResourceProfile | None,
) -> None:
    slots = WorkerGroupSlots(NAME)
    large = AllocatedSlot(allocation(7), 0, LARGE, allocated_slot(7, 0).location)
    slots.restore(HeldSlot(large, TWO.constraint, id_of(SlotRequestId, 0), requested), 1.0)
    profile = requested or LARGE
    assert slots.requirements(1.0) == (ResourceRequirement(profile, 2, SameWorkerGroup(NAME, 2)),)
    assert slots.is_reserved(allocation(7))
    assert slots.idle_deadline(5.0) == inf


@pytest.mark.parametrize("is_free_first", [True, False])
def test_restored_free_slot_does_not_change_the_required_size_of_its_worker_group(
    is_free_first: bool,
) -> None:
    slots = WorkerGroupSlots(NAME)
    large = AllocatedSlot(allocation(7), 0, LARGE, allocated_slot(7, 0).location)
    free = HeldSlot(large, SameWorkerGroup(NAME, 1))
    used = HeldSlot(allocated_slot(8, 1), TWO.constraint, id_of(SlotRequestId, 1), SMALL)
    for restored in (free, used) if is_free_first else (used, free):
        slots.restore(restored, 1.0)
    assert slots.requirements(1.0) == (TWO,)


def test_free_slot_too_small_for_a_request_does_not_serve_the_request() -> None:
    slots = WorkerGroupSlots(NAME)
    ask(slots, 0)
    come(slots, 0, 1)
    assert serve(slots) == {0: 0}
    assert ask(slots, 1, profile=LARGE) == {}
    assert slots.useless() == (allocation(1),)


def test_older_worker_group_serves_requests_too_large_for_slots_of_the_newer_group() -> None:
    slots = WorkerGroupSlots(NAME)
    for bundle in (0, 1):
        where = allocated_slot(bundle, bundle, "old").location
        slots.add(AllocatedSlot(allocation(bundle), 0, LARGE, where), LARGE, 0.0)
    come(slots, 0, 1, group="new", first=10)
    assert ask(slots, 0, 1, profile=LARGE) == {0: 0, 1: 1}


def test_worker_group_that_has_lost_all_its_slots_no_longer_counts_as_the_newest() -> None:
    slots = WorkerGroupSlots(NAME)
    slots.declare((TWO,), 0.0)
    come(slots, 0, 1, group="old")
    come(slots, 0, group="new", first=10)
    assert slots.useless() == (allocation(0), allocation(1))
    slots.remove(allocation(10), 1.0)
    assert slots.useless() == ()
