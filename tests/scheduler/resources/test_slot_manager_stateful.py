"""SlotManager in a world of workers that come, answer, refuse, die and are slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.core.ids import AllocationID, JobID, ResourceID, SlotID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.blocklist import BlockedNode
from flinkray.scheduler.resources.resource_tracker import RELEASED_GROUP_MEMORY
from flinkray.scheduler.resources.slot_manager_actions import (
    AskWhetherReleasable,
    CancelWorkerGroupRequest,
    FreeInactiveSlots,
    NotifyAllocationFailure,
    ReclaimSlot,
    ReleaseWorkerGroup,
    RequestSlot,
    SlotManagerAction,
    StartTaskExecutor,
    StartWorkerGroup,
    StopTaskExecutor,
)
from flinkray.scheduler.shared.slots import SlotReport, SlotStatus, WorkerGroupOwner, WorkerLocation
from tests.scheduler.builders import (
    GIB,
    OWN_GROUP,
    SMALL,
    id_of,
    location,
    requirements,
    slot_manager,
)

SLOTS_PER_WORKER = 2
TINY = ResourceProfile(0.25, GIB // 4)
"""For which dynamic slots are cut."""
WORKER = ResourceProfile(2.0, 2 * GIB)
LARGE = ResourceProfile(3.0, 3 * GIB)
"""Too large for a default worker. Its worker can also hold three slots of the other jobs."""
DEVICE = ResourceProfile(1.0, GIB, {"GPU": 1.0})
JOBS = [id_of(JobID, number) for number in (1, 2, 3)]
MIXED = JOBS[0]
"""The job that wants slots of a worker group of its own beside shared ones."""
OWNER = WorkerGroupOwner(MIXED, OWN_GROUP)
Holder = tuple[JobID, AllocationID]


class Worker:
    """A TaskExecutor: what it holds is the truth."""

    def __init__(self, where: WorkerLocation, slots: int, total: ResourceProfile) -> None:
        self.location = where
        self.static = slots
        self.total = total
        self.slot = SMALL if total == WORKER else total
        self.held: dict[int, Holder | None] = dict.fromkeys(range(slots))
        """By index; those from ``static`` on are dynamic."""
        self.profiles: dict[int, ResourceProfile] = dict.fromkeys(range(slots), self.slot)
        self.is_registered = False

    @property
    def used(self) -> ResourceProfile:
        return total_of(self.profiles[i] for i, holder in self.held.items() if holder is not None)

    def allocate(self, asked: RequestSlot) -> SlotID | None:
        """The same again: the same slot.  None: it is refused."""
        index = asked.slot_id.slot_index
        for known, holder in self.held.items():
            if holder == (asked.job_id, asked.allocation_id):
                return SlotID(self.location.resource_id, known)
        profile = asked.profile if index < 0 else self.slot
        if self.held.get(index) is not None or not (self.used + profile).fits_into(self.total):
            return None
        if index < 0:
            index = next(i for i in count(self.static) if i not in self.held)
            self.profiles[index] = profile
        self.held[index] = (asked.job_id, asked.allocation_id)
        return SlotID(self.location.resource_id, index)

    def free(self, allocation_id: AllocationID) -> SlotID | None:
        """None: it is not held."""
        for index, holder in self.held.items():
            if holder is not None and holder[1] == allocation_id:
                if index < self.static:
                    self.held[index] = None
                else:
                    del self.held[index], self.profiles[index]
                return SlotID(self.location.resource_id, index)
        return None

    def report(self) -> SlotReport:
        name = self.location.resource_id
        slots = []
        for i, holder in self.held.items():
            job_id, allocation_id = holder or (None, None)
            slots.append(
                SlotStatus(
                    SlotID(name, i), self.profiles[i], job_id, allocation_id, i >= self.static
                )
            )
        return SlotReport(tuple(slots))


def total_of(profiles: Iterable[ResourceProfile]) -> ResourceProfile:
    return sum(profiles, start=ResourceProfile(0.0))


class SlotManagerMachine(RuleBasedStateMachine):
    """Carries out what the SlotManager decides, in any order and with any outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = slot_manager(WORKER, SLOTS_PER_WORKER)
        self.now = 0.0
        self.numbers = count(1)
        self.wanted: dict[JobID, int] = {}
        self.wanted_others: dict[JobID, tuple[int, int]] = {}
        """Numbers of large slots and of slots with a device."""
        self.group_requests: dict[int, StartWorkerGroup] = {}
        self.groups: dict[WorkerGroupId, StartWorkerGroup] = {}
        self.starting: dict[tuple[WorkerGroupId, int], StartTaskExecutor] = {}
        """Bundles in which a TaskExecutor is to come up."""
        self.workers: dict[ResourceID, Worker] = {}
        self.in_flight: list[tuple[RequestSlot, float]] = []
        self.known: dict[SlotID, Holder] = {}
        """Slots of which the SlotManager was told that they are held."""
        self.profile_of: dict[SlotID, ResourceProfile] = {}
        self.blocked: dict[str, float] = {}
        """Nodes, until when."""

    # carrying out

    def carry_out(self, actions: list[SlotManagerAction]) -> None:
        for action in actions:
            if isinstance(action, StartWorkerGroup):
                self.check_group_request(action)
                self.group_requests[action.request_number] = action
            elif isinstance(action, CancelWorkerGroupRequest):
                del self.group_requests[action.request_number]
            elif isinstance(action, ReleaseWorkerGroup):
                self.groups.pop(action.group_id, None)
                self.starting = {k: n for k, n in self.starting.items() if k[0] != action.group_id}
                for worker in list(self.workers.values()):
                    if worker.location.worker_group == action.group_id:
                        self.forget(worker)
            elif isinstance(action, StartTaskExecutor):
                key = (action.group_id, action.bundle_index)
                assert action.group_id in self.groups
                assert not any(
                    w.is_registered and (w.location.worker_group, w.location.bundle_index) == key
                    for w in self.workers.values()
                ), "a bundle holds one TaskExecutor"
                assert action.number_of_slots == (2 if action.profile == WORKER else 1)
                self.starting[key] = action
            elif isinstance(action, AskWhetherReleasable):
                agreed = all(self.workers[name].used.is_zero() for name in action.task_executors)
                self.carry_out(self.manager.may_be_released(action.group_id, agreed, self.now))
            elif isinstance(action, FreeInactiveSlots):
                # all that is held here is used; what was asked for comes before it and is freed
                gone = (action.resource_id, action.job_id)
                self.in_flight = [
                    (a, t) for a, t in self.in_flight if (a.resource_id, a.job_id) != gone
                ]
            elif isinstance(action, StopTaskExecutor):
                self.workers.pop(action.resource_id, None)
            elif isinstance(action, RequestSlot):
                self.check_slot_request(action)
                self.in_flight.append((action, self.now))
            elif isinstance(action, ReclaimSlot):
                self.free_at_worker(action.slot_id, action.allocation_id)
            elif isinstance(action, NotifyAllocationFailure):
                assert action.job_id in self.wanted

    def check_group_request(self, action: StartWorkerGroup) -> None:
        if action.owner is not None:
            assert action.owner == OWNER
            assert action.bundles == (SMALL,) * self.wanted[MIXED]
            assert not any(r.owner == OWNER for r in self.group_requests.values())
            assert not any(r.owner == OWNER for r in self.groups.values())
        else:
            assert action.bundles[0] in (WORKER, LARGE, DEVICE)
            if action.bundles[0] != WORKER:
                wanted = [number for of_job in self.wanted_others.values() for number in of_job]
                assert any(wanted), "a job asks for such a slot"

    def check_slot_request(self, action: RequestSlot) -> None:
        worker = self.workers[action.slot_id.resource_id]
        name = worker.location.resource_id
        if action.slot_id.slot_index >= 0:
            assert action.slot_id not in self.known, "a slot is given once"
            assert not any(asked.slot_id == action.slot_id for asked, _ in self.in_flight)
        else:
            assert action.profile in (TINY, SMALL)
        assert action.profile.extended == worker.total.extended, "devices go to jobs that ask"
        given = [self.profile_of[slot] for slot in self.known if slot.resource_id == name]
        asked_for = [asked.profile for asked, _ in self.in_flight if asked.resource_id == name]
        whole = total_of((*given, *asked_for, action.profile))
        assert whole.fits_into(worker.total), "no more is given than there is"
        assert worker.location.node_id not in self.blocked
        owner = self.groups[worker.location.worker_group].owner
        assert owner == (None if action.constraint is None else OWNER)

    def forget(self, worker: Worker) -> None:
        name = worker.location.resource_id
        self.workers.pop(name, None)
        self.known = {s: h for s, h in self.known.items() if s.resource_id != name}
        self.in_flight = [(a, t) for a, t in self.in_flight if a.resource_id != name]

    def free_at_worker(self, slot_id: SlotID, allocation_id: AllocationID) -> None:
        self.in_flight = [(a, t) for a, t in self.in_flight if a.allocation_id != allocation_id]
        worker = self.workers.get(slot_id.resource_id)
        freed = None if worker is None else worker.free(allocation_id)
        if freed is not None:
            self.known.pop(freed, None)
            self.carry_out(self.manager.slot_freed(freed, allocation_id, self.now))

    # jobs

    @rule(
        job_id=st.sampled_from(JOBS),
        number=st.integers(0, 4),
        tiny=st.integers(0, 5),
        others=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    )
    def require(self, job_id: JobID, number: int, tiny: int, others: tuple[int, int]) -> None:
        self.wanted[job_id] = number
        self.wanted_others[job_id] = others
        wanted = requirements((SMALL, number), job_id=job_id, dedicated=job_id == MIXED)
        large, devices = others
        shared = requirements((TINY, tiny), (LARGE, large), (DEVICE, devices), job_id=job_id)
        wanted = replace(wanted, requirements=wanted.requirements + shared.requirements)
        self.carry_out(self.manager.set_requirements(wanted, self.now))

    @rule(job_id=st.sampled_from(JOBS), ended=st.booleans())
    def master_goes(self, job_id: JobID, ended: bool) -> None:
        self.wanted.pop(job_id, None)
        self.wanted_others.pop(job_id, None)
        self.carry_out(self.manager.clear_requirements(job_id, ended, self.now))
        if not ended:  # TaskExecutors see for themselves that the master is gone
            for worker in list(self.workers.values()):
                for i, holder in tuple(worker.held.items()):
                    if holder is not None and holder[0] == job_id:
                        self.free_at_worker(SlotID(worker.location.resource_id, i), holder[1])

    # groups

    @precondition(lambda self: self.group_requests)
    @rule(outcome=st.sampled_from(["started", "failed"]))
    def group_answers(self, outcome: str) -> None:
        number = min(self.group_requests)
        request = self.group_requests.pop(number)
        if outcome == "failed":
            self.carry_out(self.manager.worker_group_failed(number, "no", self.now))
            return
        group_id = WorkerGroupId(f"g{number}")
        self.groups[group_id] = request
        self.carry_out(self.manager.worker_group_started(number, group_id, self.now))

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def group_is_lost(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.groups, key=str)))
        self.carry_out(self.manager.worker_group_lost(group_id, "its node died", self.now))
        assert group_id not in self.groups

    # TaskExecutors

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), fails=st.booleans(), is_too_small=st.booleans())
    def task_executor_comes_up(self, data: st.DataObject, fails: bool, is_too_small: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.starting, key=str)))
        self.start_one(key, fails, is_too_small)

    def start_one(
        self, key: tuple[WorkerGroupId, int], fails: bool, is_too_small: bool = False
    ) -> None:
        start = self.starting.pop(key)
        group_id, bundle = key
        if fails:
            self.carry_out(
                self.manager.task_executor_start_failed(group_id, bundle, "no", self.now)
            )
            return
        number = next(self.numbers)
        where = location(f"te{number}", bundle, group_id.value, number)
        where = replace(where, node_id=f"n{number % 3}")
        worker = Worker(where, start.number_of_slots, start.profile)
        worker.is_registered = True
        self.workers[worker.location.resource_id] = worker
        profile = TINY if is_too_small else start.profile
        self.carry_out(
            self.manager.register_task_executor(worker.location, profile, worker.report(), self.now)
        )
        if group_id in self.groups:  # others that wait for room may get it
            assert (worker.location.resource_id in self.workers) == (not is_too_small)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def task_executor_dies(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        self.forget(self.workers[name])
        self.carry_out(self.manager.task_executor_lost(name, "killed", self.now))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def task_executor_reports(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        worker = self.workers[name]
        self.known = {s: h for s, h in self.known.items() if s.resource_id != name}
        for i, holder in worker.held.items():
            if holder is not None:
                self.learn(SlotID(name, i), holder, worker.profiles[i])
        self.carry_out(self.manager.report_slot_status(name, worker.report(), self.now))

    # slots

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), outcome=st.sampled_from(["given", "refused", "silent"]))
    def task_executor_answers(self, data: st.DataObject, outcome: str) -> None:
        index = data.draw(st.integers(0, len(self.in_flight) - 1))
        self.answer(index, outcome)

    def answer(self, index: int, outcome: str) -> None:
        asked, _ = self.in_flight[index]
        worker = self.workers[asked.resource_id]
        slot_id = worker.allocate(asked) if outcome != "refused" else None
        if outcome == "silent":  # perhaps allocated, and the answer is lost
            return
        del self.in_flight[index]
        if slot_id is not None:
            self.learn(slot_id, (asked.job_id, asked.allocation_id), asked.profile)
            event = self.manager.slot_request_succeeded(slot_id, asked.allocation_id, self.now)
        else:
            event = self.manager.slot_request_failed(
                asked.slot_id, asked.allocation_id, "refused", self.now
            )
        self.carry_out(event)

    def learn(self, slot_id: SlotID, holder: Holder, profile: ResourceProfile) -> None:
        """The SlotManager is told that the slot is held."""
        self.known[slot_id] = holder
        self.profile_of[slot_id] = profile
        self.in_flight = [
            (asked, at)
            for asked, at in self.in_flight
            if asked.slot_id != slot_id and asked.allocation_id != holder[1]
        ]

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def job_frees_a_slot(self, data: st.DataObject) -> None:
        slot_id = data.draw(st.sampled_from(sorted(self.known, key=str)))
        self.free_at_worker(slot_id, self.known[slot_id][1])

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def slot_is_freed_unheard(self, data: st.DataObject) -> None:
        """The news are lost: the next report tells."""
        slot_id = data.draw(st.sampled_from(sorted(self.known, key=str)))
        if slot_id.resource_id in self.workers:
            self.workers[slot_id.resource_id].free(self.known[slot_id][1])

    # nodes

    @rule(number=st.integers(0, 2), seconds=st.sampled_from([1.0, 20.0]))
    def node_is_blocked(self, number: int, seconds: float) -> None:
        node = BlockedNode(f"n{number}", "a bad disk", seconds)
        until = self.now + seconds
        self.blocked[node.node_id] = max(until, self.blocked.get(node.node_id, until))
        self.carry_out(self.manager.block_nodes([node], self.now))

    @rule(number=st.integers(0, 2))
    def node_is_unblocked(self, number: int) -> None:
        self.blocked.pop(f"n{number}", None)
        self.carry_out(self.manager.unblock_node(f"n{number}", self.now))

    # time

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.manager.next_check_time()) is not None and due <= end:
            assert due > self.now, "no busy loop"
            self.now = max(self.now, due)
            self.check_now()
        self.now = end
        self.check_now()

    def check_now(self) -> None:
        self.in_flight = [(a, t) for a, t in self.in_flight if self.now < t + 10.0]
        self.blocked = {node: until for node, until in self.blocked.items() if until > self.now}
        self.carry_out(self.manager.check(self.now))

    # what must hold

    @invariant()
    def both_sides_know_the_same_groups_and_workers(self) -> None:
        assert set(self.manager.worker_groups()) == set(self.groups)
        registered = {info.location.resource_id for info in self.manager.task_executors()}
        assert registered == set(self.workers)

    @invariant()
    def the_numbers_are_those_of_the_lists(self) -> None:
        seen = [(info.number_of_slots, info.free_slots) for info in self.manager.task_executors()]
        of_all = tuple(map(sum, zip(*seen, strict=True))) or (0, 0)
        assert self.manager.numbers_of_slots() == of_all

    @invariant()
    def workers_that_are_coming_are_counted(self) -> None:
        groups = self.manager._tracker.groups
        starting = {g.group_id: g for g in groups.started.values() if g.number_starting}
        shared = {group_id: g for group_id, g in starting.items() if g.is_shared}
        assert groups.shared_starting == shared
        coming = Counter[ResourceProfile]()
        for group in shared.values():
            coming[group.profiles[0]] += group.number_starting
        assert groups.shared_workers_coming == coming

    @invariant()
    def a_second_check_changes_nothing(self) -> None:
        assert self.manager.check(self.now) == []

    def teardown(self) -> None:
        """When nothing fails any more every job has what it requires; then nothing is left."""
        for _ in range(200):
            for number in sorted(self.group_requests):
                request = self.group_requests.pop(number)
                group_id = WorkerGroupId(f"g{number}")
                self.groups[group_id] = request
                self.carry_out(self.manager.worker_group_started(number, group_id, self.now))
            for key in sorted(self.starting, key=str):
                self.start_one(key, fails=False)
            while self.in_flight:
                self.answer(0, "given")
            for name in sorted(self.workers):
                if name in self.workers:
                    report = self.workers[name].report()
                    self.carry_out(self.manager.report_slot_status(name, report, self.now))
            if not self.manager.has_shortage and not self.group_requests and not self.starting:
                break
            self.time_passes(1.0)
        assert not self.manager.has_shortage, f"a request is lost: {self.wanted}"
        for job_id in JOBS:
            self.carry_out(self.manager.clear_requirements(job_id, True, self.now))
        for worker in list(self.workers.values()):
            for i, holder in tuple(worker.held.items()):
                if holder is not None:
                    self.free_at_worker(SlotID(worker.location.resource_id, i), holder[1])
        self.time_passes(2.0)
        for name, worker in tuple(self.workers.items()):
            self.carry_out(self.manager.report_slot_status(name, worker.report(), self.now))
        self.time_passes(40.0)
        assert self.groups == {}, "workers that nobody needs are released"
        self.time_passes(RELEASED_GROUP_MEMORY)
        assert self.manager.next_check_time() is None


TestSlotManager = SlotManagerMachine.TestCase
TestSlotManager.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
