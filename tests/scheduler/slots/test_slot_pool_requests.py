"""DeclarativeSlotPool: requests for slots, and how each of them ends."""

from __future__ import annotations

import pytest

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import ResourceShortage, SlotOffer
from flinkray.scheduler.slots.slot_pool import (
    DeclarativeSlotPool,
    DeclareRequirements,
    FreeSlot,
    SlotPoolAction,
)
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotRequest,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
)
from tests.scheduler.builders import (
    GIB,
    JOB,
    LARGE,
    SMALL,
    allocation,
    id_of,
    location,
    offer,
    one,
    only,
    requirements,
    served,
)

TE = ResourceID("te")
NOTHING = ResourceProfile(0.0)


def request_id(number: int) -> SlotRequestId:
    return id_of(SlotRequestId, number)


def wanted(
    *numbers: int,
    profile: ResourceProfile = SMALL,
    batch: bool = False,
    timeout: float | None = None,
    after: dict[int, int] | None = None,
    near: dict[int, str] | None = None,
) -> SlotRequests:
    """Requests of those numbers.  *after*: their former allocations; *near*: TaskExecutors."""
    requests = tuple(
        SlotRequest(
            request_id(n),
            preferred_allocations=(allocation(after[n]),) if after and n in after else (),
            preferred_task_executors=(ResourceID(near[n]),) if near and n in near else (),
        )
        for n in numbers
    )
    return SlotRequests(profile, requests, batch, timeout)


class Pool:
    """A pool with the TaskExecutor ``te``, and short ways to tell it things."""

    def __init__(self, *, spread_out: bool = False) -> None:
        self.pool = DeclarativeSlotPool(
            JOB,
            "JobMaster/jobmaster",
            idle_timeout=50.0,
            request_timeout=300.0,
            spread_out=spread_out,
        )
        self.pool.register_task_executor(location("te"), 0.0)

    def request(self, wanted: SlotRequests, now: float = 0.0) -> list[SlotPoolAction]:
        return self.pool.request_slots(wanted, now)

    def offer(self, *offers: SlotOffer, of: str = "te", now: float = 1.0) -> list[SlotPoolAction]:
        self.pool.register_task_executor(location(of), now)
        answer, actions = self.pool.offer_slots(ResourceID(of), offers, now)
        assert answer.accepted == tuple(o.allocation_id for o in offers)
        return actions

    def give_back(self, *numbers: int, now: float = 2.0) -> list[SlotPoolAction]:
        returned = ReturnSlots(tuple(map(allocation, numbers)), "done")
        return self.pool.return_slots(returned, now)

    def free(self) -> list[AllocationID]:
        return [info.slot.allocation_id for info in self.pool.free_slots()]


def declared(actions: list[SlotPoolAction]) -> dict[ResourceProfile, int]:
    last = only(actions, DeclareRequirements)[-1]
    return {r.profile: r.count for r in last.requirements.requirements}


def shortage(
    profile: ResourceProfile = SMALL, *, unfulfillable: bool = False, exhausted: bool = False
) -> tuple[ResourceShortage, ...]:
    return (
        ResourceShortage(
            1, profile, "none left", unfulfillable, NOTHING, NOTHING, NOTHING, exhausted
        ),
    )


# --- served ---------------------------------------------------------------------------------------


def test_many_slot_requests_raise_the_total_with_one_declaration() -> None:
    """SP-21."""
    actions = Pool().request(wanted(*range(1, 101)))
    assert declared(actions) == {SMALL: 100}
    assert len(actions) == 1


def test_offered_slot_goes_to_the_oldest_request() -> None:
    pool = Pool()
    pool.request(wanted(1, 2))
    assert served(pool.offer(offer(7, 0))) == {1: 7}
    assert served(pool.offer(offer(8, 1))) == {2: 8}
    assert pool.pool.number_pending == 0


def test_offered_slots_do_not_change_the_declared_total() -> None:
    """SP-28."""
    pool = Pool()
    pool.request(wanted(1, 2))
    assert only(pool.offer(offer(7, 0), offer(8, 1)), DeclareRequirements) == []


def test_returned_slot_serves_the_next_request_with_the_same_allocation() -> None:
    """SP-02, SP-28: its former request lowers the total by one."""
    pool = Pool()
    pool.request(wanted(1, 2))
    pool.offer(offer(7))
    actions = pool.give_back(7)
    assert served(actions) == {2: 7}
    assert declared(actions) == {SMALL: 1}


def test_request_is_served_at_once_from_a_free_slot() -> None:
    """SP-02."""
    pool = Pool()
    pool.request(wanted(1))
    pool.offer(offer(7))
    assert pool.give_back(7) != []
    assert pool.free() == [allocation(7)]
    assert served(pool.request(wanted(2))) == {2: 7}
    assert pool.free() == []


def test_returning_a_slot_twice_has_the_effect_of_returning_it_once() -> None:
    pool = Pool()
    pool.request(wanted(1, 2))
    pool.offer(offer(7, 0), offer(8, 1))
    pool.give_back(7)
    assert pool.give_back(7) == []
    assert pool.pool.number_required(SMALL) == 1


def test_making_the_same_slot_request_twice_raises_an_error() -> None:
    pool = Pool()
    pool.request(wanted(1))
    with pytest.raises(ValueError, match="pending already"):
        pool.request(wanted(2, 1))
    assert pool.pool.number_pending == 1


def test_request_gets_the_smallest_free_slot_that_fits_its_profile() -> None:
    pool = Pool()
    pool.pool.set_requirements(requirements((SMALL, 1), (LARGE, 1)), 0.0)
    pool.offer(offer(1, 0, LARGE), offer(2, 1, SMALL))
    assert served(pool.request(wanted(5))) == {5: 2}
    assert served(pool.request(wanted(6))) == {6: 1}


# --- which slot to whom ---------------------------------------------------------------------------


def test_restarted_subtask_gets_its_former_slot_whatever_the_order_of_requests() -> None:
    """Local recovery: the state is on the node of the slot."""
    pool = Pool()
    pool.request(wanted(1, 2, 3))
    pool.offer(offer(7, 0), offer(8, 1), offer(9, 2))
    pool.give_back(7, 8, 9)
    again = pool.request(wanted(4, 5, 6, after={5: 7, 6: 8}))
    assert served(again) == {5: 7, 6: 8, 4: 9}


def test_reoffered_former_slot_goes_to_the_request_that_prefers_it() -> None:
    pool = Pool()
    pool.request(wanted(1, 2, after={2: 7}))
    assert served(pool.offer(offer(7))) == {2: 7}


def test_slot_on_the_task_executor_of_the_inputs_is_preferred() -> None:
    pool = Pool()
    pool.request(wanted(1, 2))
    pool.offer(offer(7), of="te")
    pool.offer(offer(8), of="other")
    pool.give_back(7, 8)
    assert served(pool.request(wanted(3, near={3: "other"}))) == {3: 8}


def test_slot_pool_without_spread_out_fills_the_first_task_executor_first() -> None:
    """SM-13, for the pool's own choice."""
    pool = filled(spread_out=False)
    assert served(pool.request(wanted(11, 12))) == {11: 1, 12: 2}


def test_spread_out_requests_take_the_least_utilised_task_executor() -> None:
    """SM-13, SP-11."""
    pool = filled(spread_out=True)
    assert served(pool.request(wanted(11, 12, 13, 14))) == {11: 1, 12: 5, 13: 2, 14: 6}


def test_least_utilised_task_executor_is_found_after_any_number_of_changes() -> None:
    """SM-13, SP-11: the memory of the pool does not grow with the number of changes."""
    pool = filled(spread_out=True)
    assert served(pool.request(wanted(11, 12))) == {11: 1, 12: 5}
    for number in range(200):
        assert served(pool.request(wanted(1000 + number, after={1000 + number: 2})))
        pool.give_back(2)
    (heap,) = pool.pool._unconstrained._slots._by_utilization.values()
    assert len(heap) < 150
    assert served(pool.request(wanted(13, 14, 15, 16))) == {13: 3, 14: 6, 15: 4, 16: 7}


def filled(*, spread_out: bool) -> Pool:
    """Two TaskExecutors with four free slots each, 1 to 4 and 5 to 8."""
    pool = Pool(spread_out=spread_out)
    pool.request(wanted(*range(101, 109)))
    pool.offer(*(offer(1 + i, i) for i in range(4)), of="te")
    pool.offer(*(offer(5 + i, i) for i in range(4)), of="other")
    pool.give_back(*range(1, 9))
    return pool


def test_free_slots_are_listed_with_the_utilization_of_their_task_executor() -> None:
    """SP-11."""
    pool = Pool()
    pool.request(wanted(*range(1, 9)))
    pool.offer(*(offer(1 + i, i) for i in range(4)), of="te")
    pool.offer(*(offer(5 + i, i) for i in range(4)), of="other")
    pool.give_back(3, 4, 6, 7, 8)
    utilization = {
        info.slot.location.resource_id: info.task_executor_utilization
        for info in pool.pool.free_slots()
    }
    assert utilization == {"te": 2 / 4, "other": 1 / 4}


def test_slot_pool_lists_the_used_and_the_free_slots_of_a_task_executor() -> None:
    """SP-10."""
    pool = Pool()
    pool.request(wanted(1, 2))
    pool.offer(offer(7, 0), offer(8, 1))
    pool.give_back(8)
    slots = pool.pool.slots_of(TE)
    assert [(s.slot_index, s.allocation_id) for s in slots] == [
        (0, allocation(7)),
        (1, allocation(8)),
    ]


# --- ends without a slot --------------------------------------------------------------------------


def test_slot_for_a_cancelled_request_serves_another_request_and_lowers_the_total() -> None:
    """SP-05: one slot less is declared, so that no second slot comes."""
    pool = Pool()
    pool.request(wanted(1, 2))
    cancelled = pool.pool.cancel_requests(CancelSlotRequests((request_id(1),), "not needed"), 1.0)
    assert declared(cancelled) == {SMALL: 1}
    assert served(pool.offer(offer(7))) == {2: 7}
    again = CancelSlotRequests((request_id(1), request_id(2)), "late")
    assert pool.pool.cancel_requests(again, 2.0) == []


def test_request_that_times_out_without_a_slot_is_no_longer_declared() -> None:
    """SP-14, SP-28: the total is lower by one."""
    pool = Pool()
    pool.request(wanted(1))
    pool.request(wanted(2), now=100.0)
    assert pool.pool.next_deadline() == 300.0
    assert pool.pool.time_passed(299.9) == []
    actions = pool.pool.time_passed(300.0)
    failed = one(actions, SlotRequestFailed)
    assert (failed.request_id, failed.failure) == (request_id(1), SlotRequestFailure.TIMED_OUT)
    assert "No slot of 1 CPU, 1g memory came within 300 s" in failed.reason
    assert declared(actions) == {SMALL: 1}
    assert pool.pool.number_pending == 1
    assert pool.pool.next_deadline() == 400.0


def test_slot_request_with_its_own_timeout_fails_at_that_time() -> None:
    """SP-14."""
    pool = Pool()
    pool.request(wanted(1))
    pool.request(wanted(2, timeout=5.0))
    assert pool.pool.next_deadline() == 5.0
    assert one(pool.pool.time_passed(5.0), SlotRequestFailed).request_id == request_id(2)


def test_slot_that_comes_after_its_request_timed_out_is_kept_for_a_while() -> None:
    """SP-18: the next attempt uses the slot. If no request comes, the slot is given back like any
    idle slot."""
    pool = Pool()
    pool.request(wanted(1, timeout=5.0))
    pool.pool.time_passed(5.0)
    assert served(pool.offer(offer(7), now=6.0)) == {}
    assert pool.free() == [allocation(7)]
    refused, _ = pool.pool.offer_slots(TE, (offer(8, 1),), 7.0)
    assert refused.accepted == ()
    assert served(pool.request(wanted(2), now=8.0)) == {2: 7}
    pool.give_back(7, now=10.0)
    assert one(pool.pool.time_passed(60.0), FreeSlot).allocation_id == allocation(7)


def test_slot_that_comes_long_after_its_request_timed_out_is_refused() -> None:
    """SP-18."""
    for now, accepted in ((55.0, (allocation(7),)), (55.1, ())):
        pool = Pool()
        pool.request(wanted(1, timeout=5.0))
        pool.pool.time_passed(5.0)
        answer, _ = pool.pool.offer_slots(TE, (offer(7),), now)
        assert answer.accepted == accepted


def test_late_slots_are_kept_for_as_many_requests_as_have_timed_out() -> None:
    """SP-18: the time counts from the last request that timed out."""
    pool = Pool()
    pool.request(wanted(1, timeout=5.0))
    pool.request(wanted(2, timeout=10.0))
    pool.request(wanted(3, profile=LARGE, timeout=5.0))
    pool.pool.time_passed(5.0)
    pool.pool.time_passed(10.0)
    offers = tuple(offer(number, number) for number in (4, 5, 6))
    answer, _ = pool.pool.offer_slots(TE, offers, 60.0)
    assert answer.accepted == (allocation(4), allocation(5))
    answer, _ = pool.pool.offer_slots(TE, (offer(7, 7, LARGE),), 60.0)
    assert answer.accepted == (), "that of the large request came too late"


def test_unfulfillable_shortage_fails_the_streaming_requests_of_its_profile() -> None:
    """SP-13, SP-28: the requests are no longer declared."""
    pool = Pool()
    pool.request(wanted(1, 2))
    pool.request(wanted(3, profile=LARGE))
    actions = pool.pool.not_enough_resources(shortage(exhausted=True), 1.0)
    assert [(f.request_id, f.failure, f.reason) for f in only(actions, SlotRequestFailed)] == [
        (request_id(1), SlotRequestFailure.NOT_ENOUGH_RESOURCES, "none left"),
        (request_id(2), SlotRequestFailure.NOT_ENOUGH_RESOURCES, "none left"),
    ]
    assert declared(actions) == {LARGE: 1}


def test_shortage_that_is_not_permanent_fails_no_requests() -> None:
    pool = Pool()
    pool.request(wanted(1))
    assert pool.pool.not_enough_resources(shortage(), 1.0) == []


def test_closing_the_pool_fails_pending_requests() -> None:
    """SP-06."""
    pool = Pool()
    pool.request(wanted(1, 2))
    pool.offer(offer(7))
    actions = pool.pool.close("the job ended")
    assert one(actions, FreeSlot).allocation_id == allocation(7)
    assert one(actions, SlotRequestFailed).failure is SlotRequestFailure.POOL_CLOSED
    assert declared(actions) == {}
    assert pool.pool.time_passed(1000.0) == []
    assert pool.pool.next_deadline() is None


def test_event_log_of_the_slot_pool_lists_requests_and_offers() -> None:
    pool = Pool()
    pool.request(wanted(1))
    pool.request(wanted(2, 3, batch=True))
    pool.offer(offer(7))
    pool.pool.offer_slots(TE, tuple(offer(n, n) for n in (8, 9, 10)), 2.0)
    story = pool.pool.story()
    assert "1 requests for slots of 1 CPU, 1g memory, 0 served at once" in story
    assert "2 batch requests for slots of" in story
    assert "1 slots accepted from te" in story
    assert "2 slots accepted from te" in story
    assert f"offer {allocation(10).short()} refused: not required" in story


# --- batch ----------------------------------------------------------------------------------------


def test_batch_request_does_not_time_out_while_some_slot_is_large_enough() -> None:
    """SP-15: also while that slot is in use."""
    pool = Pool()
    pool.request(wanted(1))
    pool.offer(offer(7))
    pool.request(wanted(2, batch=True, timeout=5.0), now=1.0)
    assert pool.pool.next_deadline() is None
    assert pool.pool.time_passed(1000.0) == []
    assert served(pool.give_back(7, now=1000.0)) == {2: 7}


def test_batch_request_times_out_once_no_slot_could_hold_it() -> None:
    """SP-15: counted from the loss of the slot."""
    pool = Pool()
    pool.request(wanted(1))
    pool.offer(offer(7))
    pool.request(wanted(2, batch=True, timeout=5.0), now=1.0)
    pool.pool.release_task_executor(TE, "it died", 100.0)
    assert pool.pool.next_deadline() == 105.0
    assert pool.pool.time_passed(104.9) == []
    assert one(pool.pool.time_passed(105.0), SlotRequestFailed).request_id == request_id(2)


def test_batch_request_waits_while_another_fitting_slot_remains() -> None:
    """SP-15."""
    pool = Pool()
    pool.request(wanted(1, 2))
    pool.offer(offer(7, 0), offer(8, 1, LARGE))
    pool.request(wanted(3, batch=True, timeout=5.0), now=1.0)
    pool.request(wanted(4, profile=LARGE, batch=True, timeout=9.0), now=1.0)
    pool.pool.fail_allocation(allocation(7), "broken", 2.0)
    assert pool.pool.next_deadline() is None
    pool.pool.fail_allocation(allocation(8), "broken", 3.0)
    assert pool.pool.next_deadline() == 8.0
    assert one(pool.pool.time_passed(8.0), SlotRequestFailed).request_id == request_id(3)
    assert pool.pool.next_deadline() == 12.0


def test_batch_request_times_out_if_no_slot_was_ever_large_enough() -> None:
    """SP-15."""
    pool = Pool()
    pool.request(wanted(1))
    pool.offer(offer(7))
    pool.request(wanted(2, profile=LARGE, batch=True, timeout=5.0), now=1.0)
    assert one(pool.pool.time_passed(6.0), SlotRequestFailed).request_id == request_id(2)


def test_timeout_of_a_waiting_batch_request_is_lifted_when_a_fitting_slot_comes() -> None:
    """SP-15."""
    pool = Pool()
    pool.request(wanted(1, 2, batch=True, timeout=5.0))
    assert served(pool.offer(offer(7), now=4.0)) == {1: 7}
    assert pool.pool.next_deadline() is None


def test_batch_request_fails_by_a_shortage_only_if_unfulfillable() -> None:
    """SP-16."""
    pool = Pool()
    pool.request(wanted(1, batch=True))
    assert pool.pool.not_enough_resources(shortage(exhausted=True), 1.0) == []
    actions = pool.pool.not_enough_resources(shortage(unfulfillable=True), 1.0)
    assert one(actions, SlotRequestFailed).failure is SlotRequestFailure.UNFULFILLABLE


def test_batch_request_keeps_waiting_when_an_allocation_fails() -> None:
    """SP-16."""
    pool = Pool()
    pool.request(wanted(1, 2, batch=True))
    pool.offer(offer(7))
    actions = pool.pool.fail_allocation(allocation(7), "broken", 2.0)
    assert only(actions, SlotRequestFailed) == []
    assert pool.pool.number_pending == 1


# --- slots that go --------------------------------------------------------------------------------


def test_slots_of_a_lost_task_executor_are_lost_and_serve_no_request() -> None:
    """SP-04, SP-28: each lost slot lowers the total by one. A subtask that needs another slot
    requests it again."""
    pool = Pool()
    pool.request(wanted(1, 2, 3))
    pool.offer(offer(7, 0), offer(8, 1))
    actions = pool.pool.release_task_executor(TE, "it died", 2.0)
    assert one(actions, SlotsLost) == SlotsLost((allocation(7), allocation(8)), "it died")
    assert served(actions) == {}
    assert declared(actions) == {SMALL: 1}
    assert pool.pool.number_pending == 1


def test_failed_allocation_is_reported_as_a_lost_slot_with_its_cause() -> None:
    """SP-12, SP-28"""
    pool = Pool()
    pool.request(wanted(1, 2))
    pool.offer(offer(7, 0), offer(8, 1))
    actions = pool.pool.fail_allocation(allocation(7), "broken", 2.0)
    assert one(actions, SlotsLost) == SlotsLost((allocation(7),), "broken")
    assert declared(actions) == {SMALL: 1}


def test_release_of_a_slot_lowers_the_requirement_only_if_the_slot_was_in_use() -> None:
    """SP-25."""
    pool = Pool()
    pool.pool.set_requirements(requirements((SMALL, 1)), 0.0)
    pool.offer(offer(8))
    assert only(pool.pool.release_slots((allocation(8),), "broken", 1.0), SlotsLost) == []
    assert pool.pool.number_required(SMALL) == 1
    pool.offer(offer(9))
    pool.request(wanted(1), now=2.0)
    assert one(pool.pool.release_slots((allocation(9),), "broken", 3.0), SlotsLost)
    assert pool.pool.number_required(SMALL) == 1


def test_only_idle_slots_in_excess_of_the_total_are_given_back() -> None:
    """SP-07, SP-23."""
    pool = Pool()
    pool.pool.set_requirements(requirements((SMALL, 1)), 0.0)
    pool.request(wanted(1, 2))
    pool.offer(offer(7, 0), offer(8, 1), offer(9, 2))
    pool.give_back(7, now=10.0)
    pool.give_back(8, now=20.0)
    assert pool.pool.next_deadline() == 60.0
    actions = pool.pool.time_passed(61.0)
    assert [f.allocation_id for f in only(actions, FreeSlot)] == [allocation(9), allocation(7)]
    assert pool.free() == [allocation(8)]
    assert pool.pool.next_deadline() is None


def test_idle_slot_that_has_been_idle_longest_is_given_back_first() -> None:
    """SP-07."""
    pool = Pool()
    pool.request(wanted(1, 2))
    pool.offer(offer(7, 0), offer(8, 1))
    pool.give_back(7, now=10.0)
    pool.give_back(8, now=20.0)
    assert one(pool.pool.time_passed(60.0), FreeSlot).allocation_id == allocation(7)
    assert pool.free() == [allocation(8)]


def test_idle_slot_being_freed_serves_no_request() -> None:
    """SP-08: the slot is forgotten when its release begins, however the release ends."""
    pool = Pool()
    pool.request(wanted(1))
    pool.offer(offer(7))
    pool.give_back(7, now=10.0)
    assert one(pool.pool.time_passed(60.0), FreeSlot)
    assert served(pool.request(wanted(2), now=61.0)) == {}


def test_slots_offered_while_the_job_restarts_wait_for_its_requests() -> None:
    """SP-26."""
    pool = Pool()
    pool.pool.set_job_restarting(True, (), 0.0)
    pool.offer(offer(7, 0, LARGE), offer(8, 1))
    pool.pool.set_job_restarting(False, (), 0.0)
    assert served(pool.request(wanted(1, 2))) == {1: 8, 2: 7}


# --- several profiles -----------------------------------------------------------------------------


def test_large_slot_that_serves_a_small_request_raises_the_large_requirement() -> None:
    """SP-24: two large slots are declared, because the ResourceManager counts one as given."""
    pool = Pool()
    pool.pool.set_requirements(requirements((LARGE, 1)), 0.0)
    pool.offer(offer(7, 0, LARGE))
    assert pool.pool.number_fulfilled(LARGE) == 1
    actions = pool.request(wanted(1))
    assert served(actions) == {1: 7}
    assert (pool.pool.number_fulfilled(LARGE), pool.pool.number_fulfilled(SMALL)) == (0, 1)
    assert declared(actions) == {LARGE: 2}
    assert served(pool.offer(offer(8, 1, LARGE))) == {}
    assert pool.pool.number_fulfilled(LARGE) == 1


def test_freed_large_slot_still_fulfils_the_small_requirement_it_served() -> None:
    """SP-24."""
    pool = Pool()
    pool.pool.set_requirements(requirements((LARGE, 1), (SMALL, 1)), 0.0)
    pool.offer(offer(7, 0, LARGE))
    pool.request(wanted(1))
    pool.give_back(7)
    assert (pool.pool.number_fulfilled(LARGE), pool.pool.number_fulfilled(SMALL)) == (0, 1)


def test_freed_large_slot_fulfils_the_large_requirement_if_no_small_one_is_left() -> None:
    pool = Pool()
    pool.pool.set_requirements(requirements((LARGE, 1)), 0.0)
    pool.offer(offer(7, 0, LARGE))
    pool.request(wanted(1))
    actions = pool.give_back(7)
    assert pool.pool.number_fulfilled(LARGE) == 1
    assert declared(actions) == {LARGE: 1}


def test_requirement_served_by_a_larger_slot_is_declared_with_the_slots_profile() -> None:
    """One profile has much CPU and little memory, the other the reverse."""
    cpu, memory = ResourceProfile(4.0, GIB), ResourceProfile(1.0, 4 * GIB)
    both = ResourceProfile(4.0, 4 * GIB)
    pool = Pool()
    pool.request(wanted(1, profile=cpu))
    pool.offer(offer(7, 0, both))
    actions = pool.request(wanted(2, profile=memory))
    assert declared(actions) == {both: 1, memory: 1}
