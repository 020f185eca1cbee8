"""Slots that must be the bundles of one worker group: DeclarativeSlotPool under constraints."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirement,
    ResourceShortage,
    SameWorkerGroup,
    SlotOffer,
)
from flinkray.scheduler.slots.slot_ledger import SlotLedger
from flinkray.scheduler.slots.slot_pool import (
    DeclarativeSlotPool,
    DeclareRequirements,
    FreeSlot,
    SlotPoolAction,
    SlotsChanged,
)
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotAllocated,
    SlotEvent,
    SlotRequest,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
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
    only,
    requirements,
    served,
)

MASTER = "JobMaster/jobmaster"
SIZE = 2
OWN = SameWorkerGroup(OWN_GROUP, SIZE)
REQUIRED = (ResourceRequirement(SMALL, SIZE, OWN),)


def wanted(*bundles: int, first: int = 1, constraint: SameWorkerGroup = OWN) -> SlotRequests:
    requests = tuple(
        SlotRequest(id_of(SlotRequestId, first + i), bundle=bundle)
        for i, bundle in enumerate(bundles)
    )
    return SlotRequests(SMALL, requests, constraint=constraint)


class Pool:
    """The pool, with what it has last declared."""

    def __init__(self) -> None:
        self.pool = DeclarativeSlotPool(JOB, MASTER, idle_timeout=50.0, request_timeout=100.0)
        self.declared: tuple[ResourceRequirement, ...] = ()

    def noted(self, actions: list[SlotPoolAction]) -> list[SlotPoolAction]:
        for action in only(actions, DeclareRequirements):
            self.declared = action.requirements.requirements
        return actions

    def request(self, requests: SlotRequests, now: float = 0.0) -> dict[int, int]:
        return served(self.noted(self.pool.request_slots(requests, now)))

    def offers(
        self, bundle: int, number: int, group: str = "g", now: float = 0.0
    ) -> tuple[bool, list[SlotPoolAction]]:
        name = f"te{bundle}-{group}"
        self.noted(self.pool.register_task_executor(location(name, bundle, group), now))
        one = replace(offer(number), constraint=OWN)
        answer, actions = self.pool.offer_slots(ResourceID(name), (one,), now)
        return bool(answer.accepted), self.noted(actions)

    def comes(self, bundle: int, number: int, group: str = "g", now: float = 0.0) -> dict[int, int]:
        """Request -> slot, of what is served by the offer."""
        accepted, actions = self.offers(bundle, number, group, now)
        assert accepted
        return served(actions)

    def returns(self, *numbers: int, now: float = 0.0) -> list[SlotPoolAction]:
        returned = ReturnSlots(tuple(allocation(n) for n in numbers), "done")
        return self.noted(self.pool.return_slots(returned, now))


def test_requests_of_a_worker_group_are_all_served_once_the_group_is_complete() -> None:
    pool = Pool()
    assert pool.request(wanted(1, 0)) == {}
    assert pool.declared == REQUIRED
    assert pool.comes(1, 7) == {}
    assert pool.comes(0, 8) == {1: 7, 2: 8}
    assert pool.declared == REQUIRED


def test_request_for_one_bundle_declares_the_whole_worker_group() -> None:
    pool = Pool()
    pool.request(wanted(1))
    assert pool.declared == REQUIRED
    assert (pool.comes(0, 7), pool.comes(1, 8)) == ({}, {1: 8})


def test_bundles_of_two_worker_groups_are_not_mixed() -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    assert pool.comes(0, 7, "old") == {}
    accepted, actions = pool.offers(1, 8, "new")
    assert accepted
    assert served(actions) == {}
    freed = [a.allocation_id for a in only(actions, FreeSlot)]
    assert freed == [allocation(7)], "what is left of the old group goes back"
    assert pool.comes(0, 9, "new") == {1: 9, 2: 8}


def test_shared_requests_and_worker_groups_do_not_take_each_others_slots() -> None:
    pool = Pool()
    shared = SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 50)),))
    pool.request(shared)
    pool.request(wanted(0, 1))
    assert pool.declared == (ResourceRequirement(SMALL, 1), *REQUIRED)
    assert pool.comes(0, 7) == {}
    pool.pool.register_task_executor(location("shared"), 0.0)
    _, actions = pool.pool.offer_slots(ResourceID("shared"), (offer(8),), 0.0)
    assert served(actions) == {50: 8}
    assert pool.comes(1, 9) == {1: 7, 2: 9}


def test_returned_worker_group_slots_serve_the_next_stage_at_once() -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    assert only(pool.returns(7, 8, now=10.0), FreeSlot) == []
    assert not pool.declared
    assert pool.request(wanted(0, 1, first=3), now=20.0) == {3: 7, 4: 8}
    assert pool.declared == REQUIRED


def test_unused_worker_group_slots_are_freed_after_the_idle_timeout() -> None:
    """SP-07."""
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    pool.returns(7, now=5.0)
    assert pool.pool.next_deadline() is None, "a group is idle as a whole"
    pool.returns(8, now=10.0)
    assert pool.pool.next_deadline() == 60.0
    assert only(pool.pool.time_passed(59.0), FreeSlot) == []
    assert len(only(pool.pool.time_passed(60.0), FreeSlot)) == 2
    assert pool.pool.slots == ()


def no_room(constraint: SameWorkerGroup | None = None) -> ResourceShortage:
    return ResourceShortage(
        1, SMALL, "wait", False, LARGE, LARGE, LARGE, constraint=constraint, awaits_room=True
    )


@pytest.mark.parametrize("missing", ["room", "slots that may be started"])
def test_unused_slots_are_freed_when_the_cluster_has_no_room(missing: str) -> None:
    """Otherwise a job whose stages take turns on a full cluster would wait for the idle timeout."""
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    pool.returns(7, 8, now=10.0)
    pool.request(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 50)),)), now=11.0)
    shortage = no_room()
    if missing != "room":
        shortage = replace(shortage, awaits_room=False, exhausted=True)
    actions = pool.pool.not_enough_resources((shortage,), 13.0)
    freed = only(actions, FreeSlot)
    assert [f.allocation_id for f in freed] == [allocation(7), allocation(8)]
    assert freed[0].reason == "not required, and the cluster has no room for slots that are"


def test_unused_slots_are_kept_while_the_missing_slots_are_only_slow_to_start() -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    pool.returns(7, 8, now=10.0)
    pool.request(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 50)),)), now=11.0)
    starting = replace(no_room(), awaits_room=False)
    assert only(pool.pool.not_enough_resources((starting,), 13.0), FreeSlot) == []


def test_slots_returned_while_the_cluster_has_no_room_are_freed_at_once() -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    pool.request(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 50)),)), now=1.0)
    assert only(pool.pool.not_enough_resources((no_room(),), 3.0), FreeSlot) == []
    pool.returns(7, 8, now=10.0)
    assert pool.pool.next_deadline() == 10.0
    assert len(only(pool.pool.time_passed(10.0), FreeSlot)) == 2


def test_slots_that_the_job_requires_are_kept_although_the_cluster_has_no_room() -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    pool.returns(7, 8, now=10.0)
    pool.request(wanted(0, 1, first=3), now=11.0)
    assert pool.pool.next_deadline() is None
    pool.request(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 50)),)), now=12.0)
    assert only(pool.pool.not_enough_resources((no_room(),), 13.0), FreeSlot) == []


@pytest.mark.parametrize("event", ["there is room", "another ResourceManager"])
def test_slots_returned_after_the_shortage_has_ended_are_kept_for_the_idle_timeout(
    event: str,
) -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    pool.pool.not_enough_resources((no_room(),), 3.0)
    if event == "there is room":
        pool.pool.not_enough_resources((), 4.0)
    else:
        pool.pool.resource_manager_changed(4.0)
    pool.returns(7, 8, now=10.0)
    assert pool.pool.next_deadline() == 60.0


def test_slots_of_a_job_that_restarts_are_kept_though_the_cluster_has_no_room() -> None:
    pool = Pool()
    pool.pool.set_requirements(requirements((SMALL, 1)), 0.0)
    pool.pool.register_task_executor(location("te"), 0.0)
    pool.pool.offer_slots(ResourceID("te"), (offer(7),), 1.0)
    pool.pool.set_job_restarting(True, (), 2.0)
    pool.pool.set_requirements(requirements(), 3.0)
    assert only(pool.pool.not_enough_resources((no_room(),), 4.0), FreeSlot) == []
    assert len(only(pool.pool.set_job_restarting(False, (), 5.0), FreeSlot)) == 1


def test_bundle_whose_task_executor_died_is_served_from_the_same_group() -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    lost = pool.pool.release_task_executor(ResourceID("te0-g"), "killed", 1.0)
    assert [a.allocations for a in only(lost, SlotsLost)] == [(allocation(7),)]
    assert pool.request(wanted(0, first=3), now=2.0) == {}
    assert pool.comes(0, 9, now=3.0) == {3: 9}


def test_slot_of_a_bundle_is_lost_when_a_new_task_executor_offers_that_bundle() -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    again = location("te0-again", 0, "g", pid=2)
    pool.pool.register_task_executor(again, 1.0)
    one = replace(offer(9), constraint=OWN)
    _, actions = pool.pool.offer_slots(again.resource_id, (one,), 1.0)
    reason = "another TaskExecutor is in its bundle"
    assert only(actions, SlotsLost) == [SlotsLost((allocation(7),), reason)]
    assert pool.request(wanted(0, first=3), now=2.0) == {3: 9}


def test_slot_offered_under_a_new_id_loses_the_old_slot_and_is_itself_refused() -> None:
    """Otherwise the job waits for ever for a slot that the pool accepted and forgot (seed 93 of
    the random deaths)."""
    pool, alone = Pool(), SameWorkerGroup(OWN_GROUP, 1)
    pool.request(wanted(0, constraint=alone))
    assert pool.comes(0, 7) == {1: 7}
    accepted, actions = pool.offers(0, 8)
    reason = "its slot is offered under another id"
    assert only(actions, SlotsLost) == [SlotsLost((allocation(7),), reason)]
    assert not accepted
    assert pool.declared == ()
    assert pool.request(wanted(0, first=2, constraint=alone)) == {}
    assert pool.comes(0, 9) == {2: 9}


def test_timed_out_requests_name_the_missing_slots() -> None:
    """SP-14."""
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(1, 7)
    assert pool.pool.next_deadline() == 100.0
    actions = pool.noted(pool.pool.time_passed(100.0))
    failed = only(actions, SlotRequestFailed)
    assert [a.failure for a in failed] == [SlotRequestFailure.TIMED_OUT] * 2
    assert "1 of 2 slots" in failed[0].reason
    assert not pool.declared


def test_shortage_fails_only_the_requests_of_its_own_worker_group() -> None:
    """SP-16"""
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.request(wanted(0, first=10, constraint=SameWorkerGroup("other", 1)))
    pool.request(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 50)),)))
    shortage = ResourceShortage(2, SMALL, "too large", True, LARGE, LARGE, LARGE, False, OWN)
    actions = pool.noted(pool.pool.not_enough_resources((shortage,), 1.0))
    failed = only(actions, SlotRequestFailed)
    assert {a.request_id for a in failed} == {id_of(SlotRequestId, n) for n in (1, 2)}
    assert pool.pool.number_pending == 2


def test_restarting_job_keeps_its_worker_group_required() -> None:
    """SP-26: a TaskExecutor is started in a bundle that lost its slot while the job still waits."""
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    pool.pool.release_task_executor(ResourceID("te0-g"), "killed", 1.0)
    pool.noted(pool.pool.set_job_restarting(True, REQUIRED, 1.0))
    pool.returns(8, now=1.0)
    assert pool.declared == REQUIRED
    assert pool.comes(0, 9, now=2.0) == {}
    pool.noted(pool.pool.set_job_restarting(False, (), 3.0))
    assert not pool.declared
    assert pool.request(wanted(0, 1, first=3), now=3.0) == {3: 9, 4: 8}


def test_worker_group_required_without_requests_is_freed_once_no_longer_required() -> None:
    """SP-07, SP-21: an elastic job hears of its slots, and makes no requests."""
    pool = Pool()
    pool.noted(pool.pool.set_requirements(requirements((SMALL, SIZE), dedicated=True), 0.0))
    assert pool.declared == REQUIRED
    assert pool.comes(0, 1) == {}
    assert pool.comes(1, 2) == {}
    assert pool.pool.next_deadline() is None
    pool.noted(pool.pool.set_requirements(requirements((SMALL, 1)), 10.0))
    assert pool.declared == requirements((SMALL, 1)).requirements
    assert pool.pool.next_deadline() == 60.0
    freed = only(pool.pool.time_passed(60.0), FreeSlot)
    assert [f.allocation_id for f in freed] == [allocation(1), allocation(2)]


def test_closing_the_pool_fails_requests_for_bundles_and_frees_the_bundles_it_has() -> None:
    """SP-06."""
    pool = Pool()
    assert pool.request(wanted(0, 1)) == {}
    assert pool.comes(0, 1) == {}
    actions = pool.noted(pool.pool.close("the job ended"))
    assert [f.allocation_id for f in only(actions, FreeSlot)] == [allocation(1)]
    assert [(f.request_id, f.failure, f.reason) for f in only(actions, SlotRequestFailed)] == [
        (id_of(SlotRequestId, n), SlotRequestFailure.POOL_CLOSED, "the job ended") for n in (1, 2)
    ]
    assert pool.declared == ()
    assert pool.pool.slots == ()
    assert pool.pool.number_pending == 0


def test_slot_of_a_worker_group_that_is_not_required_is_refused() -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    cancelled = CancelSlotRequests((id_of(SlotRequestId, 1), id_of(SlotRequestId, 2)), "over")
    pool.noted(pool.pool.cancel_requests(cancelled, 1.0))
    assert not pool.declared
    accepted, _ = pool.offers(0, 7, now=2.0)
    assert not accepted


def test_request_for_a_bundle_that_is_missing_or_taken_raises_an_error_naming_it() -> None:
    pool = Pool()
    with pytest.raises(ValueError, match="no bundle 2"):
        pool.pool.request_slots(wanted(2), 0.0)
    pool.request(wanted(0))
    with pytest.raises(ValueError, match="bundle 0 of worker group 'default' is taken"):
        pool.pool.request_slots(wanted(0, first=2), 0.0)


def test_request_for_another_size_of_a_worker_group_declares_a_group_of_that_size() -> None:
    pool = Pool()
    pool.request(wanted(0, 1))
    pool.comes(0, 7)
    pool.comes(1, 8)
    pool.returns(7, 8)
    three = SameWorkerGroup(OWN_GROUP, 3)
    assert pool.request(wanted(0, 1, 2, first=3, constraint=three)) == {}
    assert pool.declared == (ResourceRequirement(SMALL, 3, three),)


def test_loss_of_the_last_slot_of_a_task_executor_is_reported() -> None:
    """SP-09."""
    pool = Pool()
    pool.request(wanted(0))
    pool.comes(0, 7)
    actions = pool.pool.fail_allocation(allocation(7), "broken", 1.0)
    assert only(actions, TaskExecutorWithoutSlots) == [
        TaskExecutorWithoutSlots(ResourceID("te0-g"))
    ]


class WorkerGroupMachine(RuleBasedStateMachine):
    """A ResourceManager that keeps one worker group, and a job that asks for its bundles."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = DeclarativeSlotPool(JOB, MASTER, idle_timeout=50.0, request_timeout=100.0)
        self.ledger = SlotLedger()
        self.restarting = False
        self.kept = False
        """Whether the group was required when the job began to restart."""
        self.now = 0.0
        self.ids = count(1)
        self.groups = count(1)
        self.group = 0
        self.alive: dict[int, AllocationID | None] = {}
        """Bundles with a TaskExecutor -> the slot it has given to the job."""
        self.held: dict[AllocationID, AllocatedSlot] = {}
        self.waiting: dict[SlotRequestId, int] = {}
        self.reserved: dict[AllocationID, int] = {}
        """Slots -> bundles that they were asked for as."""
        self.required = False

    def carry_out(self, actions: list[SlotPoolAction]) -> None:
        for action in actions:
            if isinstance(action, SlotEvent):
                self.ledger.told((action,))
            match action:
                case SlotsChanged(gained, lost):
                    for slot in gained:
                        self.ledger.add(slot, OWN)
                    self.ledger.remove(lost)
                    self.held.update({slot.allocation_id: slot for slot in gained})
                    for allocation_id in lost:
                        del self.held[allocation_id]
                case SlotAllocated(request_id, slot):
                    bundle = self.waiting.pop(request_id)
                    assert self.held[slot.allocation_id] == slot
                    assert slot.location.bundle_index == bundle
                    assert slot.allocation_id not in self.reserved, "a slot is given once"
                    self.reserved[slot.allocation_id] = bundle
                case SlotRequestFailed(request_id):
                    del self.waiting[request_id]
                case SlotsLost(allocations):
                    for allocation_id in allocations:
                        del self.reserved[allocation_id]
                case FreeSlot(_, allocation_id):
                    assert allocation_id not in self.reserved, "what is used is not given back"
                    for bundle, given in self.alive.items():
                        if given == allocation_id:
                            self.alive[bundle] = None
                case DeclareRequirements(requirements):
                    assert requirements.requirements in ((), REQUIRED)
                    self.required = bool(requirements.requirements)

    def name(self, bundle: int) -> str:
        return f"te{bundle}-g{self.group}"

    # the job

    @rule(bundles=st.sets(st.integers(0, SIZE - 1), min_size=1))
    def request(self, bundles: set[int]) -> None:
        busy = {*self.waiting.values(), *self.reserved.values()}
        free = sorted(bundles - busy)
        requests = tuple(
            SlotRequest(id_of(SlotRequestId, next(self.ids)), bundle=bundle) for bundle in free
        )
        if requests:
            self.waiting.update({request.request_id: request.bundle for request in requests})
            wanted = SlotRequests(SMALL, requests, constraint=OWN)
            self.ledger.requested(wanted)
            self.carry_out(self.pool.request_slots(wanted, self.now))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        allocation_id = data.draw(st.sampled_from(sorted(self.reserved)))
        del self.reserved[allocation_id]
        returned = ReturnSlots((allocation_id,), "done")
        self.ledger.returned(returned)
        self.carry_out(self.pool.return_slots(returned, self.now))

    @precondition(lambda self: self.waiting)
    @rule()
    def cancel(self) -> None:
        cancelled = CancelSlotRequests(tuple(self.waiting), "over")
        self.waiting.clear()
        self.ledger.cancelled(cancelled)
        self.carry_out(self.pool.cancel_requests(cancelled, self.now))

    @rule(restarting=st.booleans())
    def restart(self, restarting: bool) -> None:
        self.restarting = restarting
        self.kept = restarting and (self.kept or self.required)
        self.ledger.job_restarting(restarting)
        self.tell_whether_restarting()

    def tell_whether_restarting(self) -> None:
        kept = self.ledger.kept_worker_groups()
        self.carry_out(self.pool.set_job_restarting(self.restarting, kept, self.now))

    @rule()
    def pool_dies(self) -> None:
        """The next one holds and owes the same, by what the JobMaster tells it."""
        self.pool = DeclarativeSlotPool(JOB, MASTER, idle_timeout=50.0, request_timeout=100.0)
        for bundle in sorted(self.alive):
            where = location(self.name(bundle), bundle, f"g{self.group}")
            self.pool.register_task_executor(where, self.now)
        self.carry_out(self.pool.restore(self.ledger.restored(), self.now))
        for wanted in self.ledger.pending():
            self.carry_out(self.pool.request_slots(wanted, self.now))
        self.tell_whether_restarting()

    # the ResourceManager

    @precondition(lambda self: self.required)
    @rule(bundle=st.integers(0, SIZE - 1))
    def task_executor_offers(self, bundle: int) -> None:
        self.alive.setdefault(bundle, None)
        where = location(self.name(bundle), bundle, f"g{self.group}")
        self.carry_out(self.pool.register_task_executor(where, self.now))
        given = self.alive[bundle]
        if given is None:
            given = self.alive[bundle] = allocation(next(self.ids))
        one = SlotOffer(given, 0, SMALL, OWN)
        answer, actions = self.pool.offer_slots(where.resource_id, (one,), self.now)
        assert answer.accepted == (given,), "what is required is taken"
        self.carry_out(actions)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def task_executor_dies(self, data: st.DataObject) -> None:
        bundle = data.draw(st.sampled_from(sorted(self.alive)))
        del self.alive[bundle]
        name = ResourceID(self.name(bundle))
        self.carry_out(self.pool.release_task_executor(name, "killed", self.now))

    @rule()
    def group_is_replaced(self) -> None:
        for bundle in sorted(self.alive):
            name = ResourceID(self.name(bundle))
            self.carry_out(self.pool.release_task_executor(name, "its group is gone", self.now))
        self.alive.clear()
        self.group = next(self.groups)

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0, 120.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.pool.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.carry_out(self.pool.time_passed(self.now))
        self.now = end

    # what must hold

    @invariant()
    def what_is_told_is_what_is_there(self) -> None:
        assert {slot.allocation_id for slot in self.pool.slots} == set(self.held)
        assert set(self.reserved) <= set(self.held)
        assert self.pool.number_pending == len(self.waiting)

    @invariant()
    def what_is_used_is_of_one_worker_group(self) -> None:
        assert len({self.held[a].location.worker_group for a in self.reserved}) <= 1

    @invariant()
    def who_waits_or_uses_requires(self) -> None:
        if self.waiting or self.reserved or self.kept:
            assert self.required

    def teardown(self) -> None:
        """When nothing fails any more every request is served; then nothing is left."""
        self.request(set(range(SIZE)))
        for bundle in range(SIZE):
            self.task_executor_offers(bundle)
        assert not self.waiting, "a request is lost"
        self.restart(False)
        for allocation_id in sorted(self.reserved):
            returned = ReturnSlots((allocation_id,), "done")
            self.carry_out(self.pool.return_slots(returned, self.now))
        self.reserved.clear()
        assert not self.required
        self.time_passes(60.0)
        assert self.pool.slots == ()
        assert self.pool.next_deadline() is None


TestWorkerGroups = WorkerGroupMachine.TestCase
TestWorkerGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
