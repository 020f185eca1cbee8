"""DeclarativeSlotPool under any sequence of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flinkray.core.ids import AllocationID, ResourceID
from flinkray.scheduler.matching import match_slots
from flinkray.scheduler.slot_pool import (
    DeclarativeSlotPool,
    FreeSlot,
    SlotPoolAction,
    SlotsChanged,
)
from flinkray.scheduler.slots import AllocatedSlot
from tests.scheduler.builders import JOB, LARGE, SMALL, location, offer, requirements

NAMES = st.sampled_from(["te0", "te1", "te2"])
NUMBERS = st.integers(0, 5)
PROFILES = st.sampled_from([SMALL, LARGE])
IDLE_TIMEOUT = 50.0


class SlotPoolMachine(RuleBasedStateMachine):
    """What the pool tells is held against what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = DeclarativeSlotPool(JOB, IDLE_TIMEOUT)
        self.now = 0.0
        self.wanted = requirements()
        self.restarting = False
        self.registered: dict[str, int] = {}
        self.told: tuple[AllocatedSlot, ...] = ()
        """What the last SlotsChanged said."""
        self.taken: set[AllocationID] = set()
        """Accepted and not freed, by what was answered and done."""

    def carry_out(self, actions: list[SlotPoolAction]) -> None:
        for action in actions:
            if isinstance(action, SlotsChanged):
                self.told = action.slots
            elif isinstance(action, FreeSlot):
                assert action.allocation_id in self.taken, "a slot is freed once"
                self.taken.remove(action.allocation_id)

    @rule(small=st.integers(0, 3), large=st.integers(0, 2))
    def require(self, small: int, large: int) -> None:
        self.wanted = requirements((SMALL, small), (LARGE, large))
        self.carry_out(self.pool.set_requirements(self.wanted, self.now))

    @rule(name=NAMES, pid=st.integers(1, 2))
    def register(self, name: str, pid: int) -> None:
        if self.registered.get(name, pid) != pid:
            self.forget_slots_of(name)
        self.registered[name] = pid
        self.carry_out(self.pool.register_task_executor(location(name, pid=pid), self.now))

    def forget_slots_of(self, name: str) -> None:
        gone = {s.allocation_id for s in self.pool.slots_of(ResourceID(name))}
        self.taken -= gone

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        self.forget_slots_of(name)
        self.registered.pop(name, None)
        self.carry_out(self.pool.release_task_executor(ResourceID(name), "lost", self.now))

    @rule(name=NAMES, number=NUMBERS, index=st.integers(0, 2), profile=PROFILES)
    def offer(self, name: str, number: int, index: int, profile: object) -> None:
        before = {s.allocation_id: s for s in self.pool.slots}
        made = offer(number, index, profile)  # type: ignore[arg-type]
        answer, actions = self.pool.offer_slots(ResourceID(name), (made,), self.now)
        replaced = set(before) - {s.allocation_id for s in self.pool.slots}
        self.taken = (self.taken - replaced) | set(answer.accepted)
        self.carry_out(actions)
        if made.allocation_id in before:
            held = before[made.allocation_id]
            same = (held.location.resource_id, held.slot_index) == (name, index)
            assert bool(answer.accepted) == same
        elif answer.accepted:
            assert name in self.registered

    @rule(number=NUMBERS)
    def fail(self, number: int) -> None:
        self.carry_out(self.pool.fail_allocation(offer(number).allocation_id, "broken", self.now))

    @rule(restarting=st.booleans())
    def restart(self, restarting: bool) -> None:
        self.restarting = restarting
        self.pool.set_job_restarting(restarting)

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        before = self.missing()
        self.carry_out(self.pool.release_idle_slots(self.now))
        assert self.missing() == before, "what is required is never given back"
        deadline = self.pool.next_deadline()
        assert deadline is None or deadline > self.now

    def missing(self) -> int:
        profiles = [slot.profile for slot in self.pool.slots]
        return match_slots(self.wanted.requirements, profiles).number_missing

    @invariant()
    def the_job_master_knows_all_slots(self) -> None:
        assert self.told == self.pool.slots

    @invariant()
    def no_slot_is_held_twice_and_none_is_lost(self) -> None:
        held = self.pool.slots
        assert {s.allocation_id for s in held} == self.taken
        places = [(s.location.resource_id, s.slot_index) for s in held]
        assert len(set(places)) == len(places)

    @invariant()
    def slots_are_on_registered_task_executors(self) -> None:
        for slot in self.pool.slots:
            assert self.registered[slot.location.resource_id] == slot.location.pid

    @invariant()
    def excess_has_a_deadline(self) -> None:
        excess = len(self.pool.slots) > sum(r.count for r in self.wanted.requirements)
        assert not excess or self.pool.next_deadline() is not None

    def teardown(self) -> None:
        self.carry_out(self.pool.close("the job ended"))
        assert self.taken == set()


TestSlotPool = SlotPoolMachine.TestCase
TestSlotPool.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
