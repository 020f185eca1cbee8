"""The slots of a pool, found by what they are good for, against a list that is searched."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.core.ids import ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import size_of
from flinkray.scheduler.slots.pooled_slots import PooledSlot, PooledSlots
from tests.scheduler.builders import GIB, LARGE, SMALL, allocation, id_of, slot_on

MEDIUM = ResourceProfile(2.0, 2 * GIB)
PROFILES = (SMALL, MEDIUM, LARGE)
HOSTS = ("te-0", "te-1", "te-2")
profiles = st.sampled_from(PROFILES)


class PooledSlotsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = PooledSlots()
        self.slots: list[PooledSlot] = []
        """Oldest first."""
        self.moved: list[PooledSlot] = []
        """Those that were given another match since they were last freed."""
        self.numbers = 0

    def pick(self, data: st.DataObject, slots: list[PooledSlot]) -> PooledSlot:
        return slots[data.draw(st.integers(0, len(slots) - 1))]

    def on(self, host: ResourceID) -> list[PooledSlot]:
        return [p for p in self.slots if p.slot.location.resource_id == host]

    def utilization(self, host: ResourceID) -> float:
        slots = self.on(host)
        return sum(not p.is_free for p in slots) / len(slots)

    @property
    def free(self) -> list[PooledSlot]:
        return [p for p in self.slots if p.is_free]

    @property
    def used(self) -> list[PooledSlot]:
        return [p for p in self.slots if not p.is_free]

    @rule(host=st.sampled_from(HOSTS), profile=profiles, matched=profiles)
    def a_slot_joins(self, host: str, profile: ResourceProfile, matched: ResourceProfile) -> None:
        self.numbers += 1
        slot = slot_on(host, self.numbers, self.numbers, profile)
        pooled = PooledSlot(slot, matched, float(self.numbers))
        self.pool.add(pooled)
        self.slots.append(pooled)

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def a_slot_leaves(self, data: st.DataObject) -> None:
        pooled = self.pick(data, self.slots)
        self.pool.remove(pooled)
        self.slots.remove(pooled)

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), profile=profiles)
    def a_slot_fulfils_another_requirement(
        self, data: st.DataObject, profile: ResourceProfile
    ) -> None:
        pooled = self.pick(data, self.slots)
        self.pool.rematch(pooled, profile)
        self.moved.append(pooled)
        assert pooled.matched == profile

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def a_slot_is_reserved(self, data: st.DataObject) -> None:
        self.numbers += 1
        self.pool.reserve(self.pick(data, self.free), id_of(SlotRequestId, self.numbers))

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def a_slot_is_freed(self, data: st.DataObject) -> None:
        self.numbers += 1
        pooled = self.pick(data, self.used)
        self.pool.free(pooled, float(self.numbers))
        assert pooled.is_free
        assert pooled.idle_since == self.numbers
        self.moved = [other for other in self.moved if other is not pooled]

    @rule(
        profile=profiles,
        near=st.lists(st.sampled_from(HOSTS), unique=True, max_size=2),
        spread_out=st.booleans(),
    )
    def a_free_slot_is_chosen(
        self, profile: ResourceProfile, near: list[str], spread_out: bool
    ) -> None:
        preferred = tuple(map(ResourceID, near))
        chosen = self.pool.best_free(profile, preferred, spread_out)
        fitting = [p for p in self.free if profile.fits_into(p.slot.profile)]
        assert (chosen is None) == (not fitting)
        if chosen is None:
            return
        assert chosen in fitting
        host = chosen.slot.location.resource_id
        wanted = [p for p in fitting if p.slot.location.resource_id in preferred] or fitting
        smallest = min(size_of(p.slot.profile) for p in wanted)
        assert chosen in wanted
        assert size_of(chosen.slot.profile) == smallest
        hosts = {p.slot.location.resource_id for p in wanted if size_of(p.slot.profile) == smallest}
        if wanted is not fitting:
            assert host == next(each for each in preferred if each in hosts)
        elif hosts & set(preferred):
            assert host in preferred
        elif spread_out:
            assert self.utilization(host) == min(map(self.utilization, hosts))

    @invariant()
    def slots_are_found_wherever_they_are_looked_for(self) -> None:
        pool = self.pool
        assert list(pool.all()) == self.slots
        assert len(pool) == len(self.slots)
        assert pool.get(allocation(0)) is None
        assert pool.at(ResourceID("nobody"), 1) is None
        for pooled in self.slots:
            slot = pooled.slot
            assert pool.get(slot.allocation_id) is pooled
            assert pool.at(slot.location.resource_id, slot.slot_index) is pooled
            assert pool.at(slot.location.resource_id, 0) is None
        for host in map(ResourceID, HOSTS):
            assert list(pool.on(host)) == self.on(host)

    @invariant()
    def free_slots_say_how_busy_their_task_executors_are(self) -> None:
        assert [(i.slot, i.task_executor_utilization) for i in self.pool.free_slots()] == [
            (p.slot, self.utilization(p.slot.location.resource_id)) for p in self.free
        ]

    @invariant()
    def requirements_know_what_fulfils_them(self) -> None:
        pool = self.pool
        matched = Counter(p.matched for p in self.slots)
        assert set(pool.fulfilled_profiles()) == set(matched)
        for profile in PROFILES:
            assert pool.fulfilled(profile) == matched[profile]
            assert pool.could_hold(profile) == any(
                profile.fits_into(p.slot.profile) for p in self.slots
            )
            kinds = {
                is_free: Counter(
                    p.slot.profile
                    for p in self.slots
                    if p.matched == profile and p.is_free == is_free
                )
                for is_free in (False, True)
            }
            told = [(own, number) for own, number in pool.own_profiles(profile) if number]
            used, unused = list(kinds[False].items()), list(kinds[True].items())
            assert sorted(told[: len(used)], key=repr) == sorted(used, key=repr)
            assert sorted(told[len(used) :], key=repr) == sorted(unused, key=repr)

    @invariant()
    def idle_slots_come_longest_idle_first(self) -> None:
        for profile in PROFILES:
            idle = list(self.pool.idle(profile).values())
            assert set(idle) == {p for p in self.free if p.matched == profile}
            unmoved = [p.idle_since for p in idle if p not in self.moved]
            assert unmoved == sorted(unmoved)


TestPooledSlots = PooledSlotsMachine.TestCase
TestPooledSlots.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_least_busy_task_executor_is_found_after_many_reservations_and_frees() -> None:
    pool = PooledSlots()
    slots = [
        PooledSlot(slot_on(f"te-{number % 3}", number, number), SMALL, 0.0) for number in range(12)
    ]
    for pooled in slots:
        pool.add(pooled)
    for turn in range(300):
        taken = pool.best_free(SMALL, (), True)
        assert taken is not None
        pool.reserve(taken, id_of(SlotRequestId, turn))
        used = Counter(p.slot.location.resource_id for p in slots if not p.is_free)
        assert max(used.values()) - min(used[ResourceID(host)] for host in HOSTS) <= 1
        if turn % 7 > 2:
            pool.free(taken, float(turn))
        elif not any(p.is_free for p in slots):
            for pooled in slots:
                pool.free(pooled, float(turn))


def test_free_slot_is_found_after_a_slot_of_another_profile_beside_it_was_reserved() -> None:
    pool = PooledSlots()
    free = PooledSlot(slot_on("te-0", 1, 1, SMALL), SMALL, 0.0)
    other = PooledSlot(slot_on("te-0", 2, 2, LARGE), LARGE, 0.0)
    pool.add(free)
    pool.add(other)
    pool.reserve(other, id_of(SlotRequestId, 1))
    assert pool.best_free(SMALL, (), True) is free


def test_slot_removed_from_its_index_is_not_found_and_its_replacement_is() -> None:
    pool = PooledSlots()
    first, stays, second = (
        PooledSlot(slot_on("te-0", number, index), SMALL, 0.0)
        for number, index in ((1, 0), (2, 1), (3, 0))
    )
    for pooled in (first, stays):
        pool.add(pooled)
    pool.remove(first)
    assert pool.at(ResourceID("te-0"), 0) is None
    assert pool.at(ResourceID("te-0"), 1) is stays
    pool.add(second)
    assert pool.at(ResourceID("te-0"), 0) is second
    assert pool.at(ResourceID("te-1"), 0) is None
