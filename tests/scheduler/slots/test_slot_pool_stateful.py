"""DeclarativeSlotPool under any sequence of events, beside a ResourceManager that believes it."""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage, missing_slots
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
    SlotRequests,
    SlotsLost,
    TaskExecutorWithoutSlots,
)
from tests.scheduler.builders import (
    JOB,
    LARGE,
    SMALL,
    allocation,
    id_of,
    location,
    offer,
    requirements,
)

NAMES = st.sampled_from(["te0", "te1", "te2"])
PROFILES = st.sampled_from([SMALL, LARGE])
NOTHING = ResourceProfile(0.0)
IDLE_TIMEOUT = 50.0
REQUEST_TIMEOUT = 100.0
MASTER = "JobMaster/jobmaster"


def new_pool() -> DeclarativeSlotPool:
    return DeclarativeSlotPool(
        JOB, MASTER, idle_timeout=IDLE_TIMEOUT, request_timeout=REQUEST_TIMEOUT
    )


class SlotPoolMachine(RuleBasedStateMachine):
    """What the pool tells is held against what it has, and against what a JobMaster concludes."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = new_pool()
        self.ledger = SlotLedger()
        self.now = 0.0
        self.ids = count(1)
        self.required: Counter[ResourceProfile] = Counter()
        self.restarting = False
        self.registered: dict[str, int] = {}
        self.held: dict[AllocationID, AllocatedSlot] = {}
        """By what SlotsChanged said."""
        self.declared = requirements()
        self.waiting: dict[SlotRequestId, ResourceProfile] = {}
        self.batch: set[SlotRequestId] = set()
        self.reserved: dict[AllocationID, ResourceProfile] = {}
        """By what SlotAllocated and SlotsLost said: the profile of the request."""

    def carry_out(self, actions: list[SlotPoolAction]) -> None:
        for action in actions:
            if isinstance(action, SlotEvent):
                self.ledger.told((action,))
            if isinstance(action, SlotsChanged):
                for slot in action.gained:
                    assert slot.allocation_id not in self.held, "a slot is gained once"
                    self.held[slot.allocation_id] = slot
                    self.ledger.add(slot)
                for allocation_id in action.lost:
                    del self.held[allocation_id]
                self.ledger.remove(action.lost)
            elif isinstance(action, SlotAllocated):
                self.check_allocated(action)
            elif isinstance(action, SlotRequestFailed):
                self.required[self.waiting.pop(action.request_id)] -= 1
            elif isinstance(action, SlotsLost):
                for allocation_id in action.allocations:
                    self.lower(self.reserved.pop(allocation_id))
                    assert allocation_id not in self.held
            elif isinstance(action, TaskExecutorWithoutSlots):
                assert all(s.location.resource_id != action.resource_id for s in self.held.values())
            elif isinstance(action, DeclareRequirements):
                self.declared = action.requirements

    def check_allocated(self, action: SlotAllocated) -> None:
        profile = self.waiting.pop(action.request_id)
        allocation_id = action.slot.allocation_id
        assert self.held[allocation_id] == action.slot, "a slot is told before it is given"
        assert allocation_id not in self.reserved, "a slot is given once"
        assert profile.fits_into(action.slot.profile)
        self.reserved[allocation_id] = profile

    def lower(self, profile: ResourceProfile) -> None:
        """Overwriting the total may have made it smaller than what is in use."""
        self.required[profile] = max(0, self.required[profile] - 1)

    # the JobMaster

    @precondition(lambda self: not self.waiting and not self.reserved)
    @rule(small=st.integers(0, 3), large=st.integers(0, 2))
    def require(self, small: int, large: int) -> None:
        """A job that is told of its slots; such a one makes no requests."""
        self.required = Counter({SMALL: small, LARGE: large})
        wanted = requirements((SMALL, small), (LARGE, large))
        self.ledger.set_requirements(wanted)
        self.carry_out(self.pool.set_requirements(wanted, self.now))

    @rule(profile=PROFILES, number=st.integers(1, 3), batch=st.booleans(), data=st.data())
    def request(
        self, profile: ResourceProfile, number: int, batch: bool, data: st.DataObject
    ) -> None:
        requests = []
        for _ in range(number):
            preferred: tuple[AllocationID, ...] = ()
            if bool(self.held) and data.draw(st.booleans()):
                preferred = (data.draw(st.sampled_from(sorted(self.held))),)
            near = (ResourceID(data.draw(NAMES)),) if data.draw(st.booleans()) else ()
            request_id = id_of(SlotRequestId, next(self.ids))
            requests.append(SlotRequest(request_id, (), preferred, near))
            self.waiting[request_id] = profile
            if batch:
                self.batch.add(request_id)
        self.required[profile] += number
        wanted = SlotRequests(profile, tuple(requests), batch)
        self.ledger.requested(wanted)
        self.carry_out(self.pool.request_slots(wanted, self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.waiting)))
        self.required[self.waiting.pop(request_id)] -= 1
        cancelled = CancelSlotRequests((request_id, id_of(SlotRequestId, 0)), "not needed")
        self.ledger.cancelled(cancelled)
        self.carry_out(self.pool.cancel_requests(cancelled, self.now))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        allocation_id = data.draw(st.sampled_from(sorted(self.reserved)))
        self.lower(self.reserved.pop(allocation_id))
        returned = ReturnSlots((allocation_id,), "done")
        self.ledger.returned(returned)
        self.carry_out(self.pool.return_slots(returned, self.now))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        allocation_id = data.draw(st.sampled_from(sorted(self.held)))
        actions = self.pool.fail_allocation(allocation_id, "broken", self.now)
        assert FreeSlot(self.held[allocation_id].location, allocation_id, "broken") in actions
        self.carry_out(actions)

    @rule(restarting=st.booleans())
    def restart(self, restarting: bool) -> None:
        self.restarting = restarting
        self.carry_out(self.pool.set_job_restarting(restarting, (), self.now))

    @rule()
    def die(self) -> None:
        """The next pool holds, owes and requires the same, by what the JobMaster tells it."""
        self.pool = new_pool()
        for name, pid in self.registered.items():
            self.pool.register_task_executor(location(name, pid=pid), self.now)
        required = self.ledger.requirements()
        if required is not None:
            self.carry_out(self.pool.set_requirements(required, self.now))
        self.carry_out(self.pool.restore(self.ledger.restored(), self.now))
        for wanted in self.ledger.pending():
            self.carry_out(self.pool.request_slots(wanted, self.now))
        self.carry_out(self.pool.set_job_restarting(self.restarting, (), self.now))

    # the ResourceManager

    @rule(profile=PROFILES, never=st.booleans())
    def short(self, profile: ResourceProfile, never: bool) -> None:
        batch = {r for r in self.waiting if r in self.batch and self.waiting[r] == profile}
        shortage = ResourceShortage(1, profile, "no", never, NOTHING, NOTHING, NOTHING, not never)
        self.carry_out(self.pool.not_enough_resources((shortage,), self.now))
        left = {r for r, wanted in self.waiting.items() if wanted == profile}
        assert left == (set() if never else batch)

    @precondition(lambda self: self.registered)
    @rule(data=st.data())
    def provide(self, data: st.DataObject) -> None:
        """The ResourceManager gives what is missing by its own arithmetic: the pool takes it."""
        held = Counter(slot.profile for slot in self.held.values())
        missing = missing_slots(self.declared.requirements, held)
        if not missing:
            return
        name = data.draw(st.sampled_from(sorted(self.registered)))
        number = next(self.ids)
        made = offer(number, 1000 + number, missing[0].profile)
        answer, actions = self.pool.offer_slots(ResourceID(name), (made,), self.now)
        self.carry_out(actions)
        assert answer.accepted == (made.allocation_id,), "what is declared is wanted"

    # TaskExecutors

    @rule(name=NAMES, pid=st.integers(1, 2))
    def register(self, name: str, pid: int) -> None:
        self.registered[name] = pid
        self.carry_out(self.pool.register_task_executor(location(name, pid=pid), self.now))

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        self.registered.pop(name, None)
        self.carry_out(self.pool.release_task_executor(ResourceID(name), "lost", self.now))

    @rule(name=NAMES, number=st.integers(1000, 1008), index=st.integers(0, 2), profile=PROFILES)
    def offer(self, name: str, number: int, index: int, profile: ResourceProfile) -> None:
        before = dict(self.held)
        answer, actions = self.pool.offer_slots(
            ResourceID(name), (offer(number, index, profile),), self.now
        )
        self.carry_out(actions)
        known = before.get(allocation(number))
        if known is not None:
            same = (known.location.resource_id, known.slot_index) == (name, index)
            assert bool(answer.accepted) == same
        elif answer.accepted:
            assert name in self.registered
        elif name in self.registered:
            assert not self.restarting

    # time

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0, 200.0]))
    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(1000):
            due = self.pool.next_deadline()
            if due is None or due > end:
                break
            assert due >= self.now
            self.now = due
            fulfilled = {p: self.pool.number_fulfilled(p) for p in (SMALL, LARGE)}
            actions = self.pool.time_passed(due)
            assert actions, "time was up, and nothing happened"
            self.carry_out(actions)
            assert set(self.reserved) <= set(self.held)
            for profile, before in fulfilled.items():
                needed = min(before, self.required[profile])
                assert self.pool.number_fulfilled(profile) >= needed, "needed, and given back"
        else:
            raise AssertionError("a busy loop")
        self.now = end

    # what must hold

    @invariant()
    def both_sides_know_the_same_slots_and_requests(self) -> None:
        assert tuple(self.held.values()) == self.pool.slots
        assert self.pool.number_pending == len(self.waiting)
        free = {info.slot.allocation_id for info in self.pool.free_slots()}
        assert free == set(self.held) - set(self.reserved)

    @invariant()
    def no_place_is_held_twice_and_all_are_on_registered_task_executors(self) -> None:
        places = [(s.location.resource_id, s.slot_index) for s in self.held.values()]
        assert len(set(places)) == len(places)
        for slot in self.held.values():
            assert self.registered[slot.location.resource_id] == slot.location.pid

    @invariant()
    def the_arithmetic_of_requirements_holds(self) -> None:
        for profile in (SMALL, LARGE):
            assert self.pool.number_required(profile) == self.required[profile]
        fulfilled = sum(self.pool.number_fulfilled(p) for p in (SMALL, LARGE))
        assert fulfilled == len(self.held)
        assert sum(r.count for r in self.declared.requirements) == sum(self.required.values())
        assert self.pool.requirements is None or self.pool.requirements == self.declared

    @invariant()
    def nobody_waits_while_a_free_slot_could_hold_him(self) -> None:
        for info in self.pool.free_slots():
            for profile in self.waiting.values():
                assert not profile.fits_into(info.slot.profile)

    @invariant()
    def what_the_resource_manager_would_give_is_what_is_missing(self) -> None:
        held = Counter(slot.profile for slot in self.held.values())
        missing = missing_slots(self.declared.requirements, held)
        for profile in (SMALL, LARGE):
            lacking = max(0, self.required[profile] - self.pool.number_fulfilled(profile))
            assert lacking == sum(m.count for m in missing if m.profile == profile)

    @invariant()
    def every_wait_has_an_end(self) -> None:
        streaming = [r for r in self.waiting if r not in self.batch]
        beyond = len(self.held) > sum(self.required.values())
        if streaming or beyond:
            assert self.pool.next_deadline() is not None

    def teardown(self) -> None:
        actions = self.pool.close("the job ended")
        freed = [a.allocation_id for a in actions if isinstance(a, FreeSlot)]
        assert sorted(freed) == sorted(self.held)
        failed = [a.request_id for a in actions if isinstance(a, SlotRequestFailed)]
        assert sorted(failed) == sorted(self.waiting)
        if self.pool.requirements is not None:
            assert self.pool.requirements.requirements == ()


TestSlotPool = SlotPoolMachine.TestCase
TestSlotPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
