"""SlotManager: dynamic slots, spreading, limits, reserves, blocked nodes, failing starts."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import AllocationID, JobID, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.blocklist import BlockedNode
from flinkray.scheduler.resources.cluster_resources import ClusterResources
from flinkray.scheduler.resources.slot_manager import SlotManager
from flinkray.scheduler.resources.slot_manager_actions import (
    AskWhetherReleasable,
    FreeInactiveSlots,
    ReleaseWorkerGroup,
    RequestSlot,
    SlotManagerAction,
    StartTaskExecutor,
    StartWorkerGroup,
)
from flinkray.scheduler.shared.slots import SlotReport, SlotStatus, WorkerGroupOwner
from tests.scheduler.builders import (
    GIB,
    JOB,
    LARGE,
    OTHER_JOB,
    OWN_GROUP,
    SMALL,
    allocation,
    confirm,
    group,
    id_of,
    location,
    one,
    only,
    report,
    requirements,
    slot_id,
    slot_manager,
)

WORKER = ResourceProfile(4.0, 4 * GIB)
HALF = ResourceProfile(0.5, GIB // 2)
WIDE = ResourceProfile(3.0, 3 * GIB)
ANY_CLUSTER = ClusterResources(LARGE, LARGE, (LARGE,))


def start_worker(
    manager: SlotManager, number: int, now: float = 1.0, node: str = "n0"
) -> list[SlotManagerAction]:
    """The worker of request *number* comes up as ``te<number>``."""
    name, in_group = f"te{number}", f"g{number}"
    manager.worker_group_started(number, group(in_group), now)
    where = replace(location(name, 0, in_group), node_id=node)
    return manager.register_task_executor(where, WORKER, report(name, *[None] * 4), now)


def asked_at(actions: list[SlotManagerAction]) -> list[str]:
    return [str(a.slot_id) for a in only(actions, RequestSlot)]


# --- dynamic slots --------------------------------------------------------------------------------


def test_profile_of_half_a_static_slot_gets_dynamic_slots() -> None:
    """SM-10: as many workers are started as these dynamic slots fill."""
    manager = slot_manager(WORKER, 4)
    started = manager.set_requirements(requirements((HALF, 9)), 0.0)
    assert len(only(started, StartWorkerGroup)) == 2
    asked = only(start_worker(manager, 1), RequestSlot)
    assert [(a.slot_id, a.profile) for a in asked] == [(slot_id("te1", -1), HALF)] * 8


def test_profile_larger_than_a_static_slot_gets_a_dynamic_slot() -> None:
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((WIDE, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    assert (asked.slot_id, asked.profile) == (slot_id("te1", -1), WIDE)


def test_resources_in_use_by_dynamic_slots_are_not_given_as_static_slots() -> None:
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((WIDE, 1)), 0.0)
    confirm(manager, start_worker(manager, 1))
    actions = manager.set_requirements(requirements((SMALL, 2), job_id=OTHER_JOB), 3.0)
    assert asked_at(actions) == ["te1_0"]
    assert len(only(actions, StartWorkerGroup)) == 1


def test_dynamic_slot_keeps_its_index_until_it_is_freed() -> None:
    """SM-04."""
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((WIDE, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    manager.slot_request_succeeded(slot_id("te1", 4), asked.allocation_id, 2.0)
    assert manager.task_executors()[0].number_of_slots == 5
    assert not manager.has_shortage
    manager.set_requirements(requirements(), 3.0)
    manager.slot_freed(slot_id("te1", 4), asked.allocation_id, 4.0)
    info = manager.task_executors()[0]
    assert (info.number_of_slots, info.free_slots) == (4, 4)


def test_dynamic_slot_missing_in_a_report_is_removed_unless_the_report_is_older() -> None:
    """SM-04: a report that comes within a second may have been written before."""
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((WIDE, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    manager.slot_request_succeeded(slot_id("te1", 4), asked.allocation_id, 2.0)
    without = report("te1", *[None] * 4)
    assert manager.report_slot_status(ResourceID("te1"), without, 2.9) == []
    assert manager.task_executors()[0].number_of_slots == 5
    again = one(manager.report_slot_status(ResourceID("te1"), without, 3.0), RequestSlot)
    assert (again.slot_id, again.profile) == (slot_id("te1", -1), WIDE)
    assert again.allocation_id != asked.allocation_id


def test_index_of_a_dynamic_slot_is_taken_from_a_report_that_comes_before_the_answer() -> None:
    """SM-04."""
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((WIDE, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    dynamic = SlotStatus(slot_id("te1", 4), WIDE, JOB, asked.allocation_id, is_dynamic=True)
    seen = SlotReport((*report("te1", *[None] * 4).slots, dynamic))
    assert manager.report_slot_status(ResourceID("te1"), seen, 2.0) == []
    assert manager.task_executors()[0].number_of_slots == 5
    assert manager.slot_request_succeeded(slot_id("te1", 4), asked.allocation_id, 2.1) == []
    assert manager.task_executors()[0].number_of_slots == 5
    more = manager.set_requirements(requirements((WIDE, 2)), 3.0)
    assert len(only(more, StartWorkerGroup)) == 1, "it counts as one slot"


def test_dynamic_slot_is_requested_from_a_worker_that_refused_it_only_later() -> None:
    """SM-05."""
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((WIDE, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    again = manager.slot_request_failed(asked.slot_id, asked.allocation_id, "full", 2.0)
    assert only(again, RequestSlot) == []
    static = manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 2.1)
    assert asked_at(static) == ["te1_0"], "it refuses no others"
    manager.clear_requirements(OTHER_JOB, True, 2.2)
    assert one(manager.check(2.5), RequestSlot).slot_id == slot_id("te1", -1)


def test_dynamic_slots_given_by_an_earlier_resource_manager_are_recovered() -> None:
    """SM-08."""
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((WIDE, 1)), 0.0)
    manager.worker_group_started(1, group("g1"), 1.0)
    held = SlotStatus(slot_id("te1", 4), WIDE, JOB, allocation(7), is_dynamic=True)
    seen = SlotReport((*report("te1", *[None] * 4).slots, held))
    where = location("te1", 0, "g1")
    assert only(manager.register_task_executor(where, WORKER, seen, 1.0), RequestSlot) == []
    assert not manager.has_shortage


def with_dynamic_slot(index: int, job_id: JobID, allocation_id: AllocationID) -> SlotReport:
    """A report of te1 with one of HALF."""
    dynamic = SlotStatus(slot_id("te1", index), HALF, job_id, allocation_id, is_dynamic=True)
    return SlotReport((*report("te1", *[None] * 4).slots, dynamic))


def one_whose_index_is_given_again() -> tuple[SlotManager, AllocationID]:
    """A dynamic slot of JOB has been freed, which was not heard, and one of OTHER_JOB, which is
    being asked for, is to get its index."""
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((HALF, 1)), 0.0)
    first = one(start_worker(manager, 1), RequestSlot)
    manager.slot_request_succeeded(slot_id("te1", 4), first.allocation_id, 2.0)
    actions = manager.set_requirements(requirements((HALF, 1), job_id=OTHER_JOB), 3.0)
    return manager, one(actions, RequestSlot).allocation_id


def test_answer_with_an_index_in_use_removes_the_old_dynamic_slot_at_that_index() -> None:
    """SM-04."""
    manager, second = one_whose_index_is_given_again()
    again = one(manager.slot_request_succeeded(slot_id("te1", 4), second, 4.0), RequestSlot)
    assert again.job_id == JOB
    assert manager.task_executors()[0].jobs == (JOB, OTHER_JOB)
    manager.slot_request_succeeded(slot_id("te1", 5), again.allocation_id, 4.1)
    for index, allocation_id in ((4, second), (5, again.allocation_id)):
        manager.slot_freed(slot_id("te1", index), allocation_id, 4.2)
    free = manager._tracker.workers[ResourceID("te1")].free_profile
    assert free.cpu == 3.0, "each job asks again for its one slot, and nothing else is taken"


def test_report_of_another_slot_at_the_index_of_a_dynamic_slot_removes_the_old_slot() -> None:
    """SM-04."""
    manager, second = one_whose_index_is_given_again()
    seen = with_dynamic_slot(4, OTHER_JOB, second)
    again = one(manager.report_slot_status(ResourceID("te1"), seen, 4.0), RequestSlot)
    assert again.job_id == JOB
    assert manager.slot_request_succeeded(slot_id("te1", 4), second, 4.1) == []
    manager.slot_request_succeeded(slot_id("te1", 5), again.allocation_id, 4.2)
    assert manager._tracker.workers[ResourceID("te1")].free_profile.cpu == 3.0
    assert manager.check(20.0) == [], "nothing is asked for twice"
    assert manager.task_executors()[0].jobs == (OTHER_JOB, JOB)


def test_report_from_before_the_answer_does_not_replace_a_dynamic_slot() -> None:
    """SM-04."""
    manager, second = one_whose_index_is_given_again()
    manager.slot_request_succeeded(slot_id("te1", 4), second, 4.0)
    older = with_dynamic_slot(4, JOB, allocation(1000))
    assert manager.report_slot_status(ResourceID("te1"), older, 4.5) == []


# --- choice ---------------------------------------------------------------------------------------


def two_workers(**settings: object) -> SlotManager:
    manager = slot_manager(WORKER, 4, **settings)
    manager.set_requirements(requirements((SMALL, 8)), 0.0)
    for number in (1, 2):
        for asked in only(start_worker(manager, number), RequestSlot):
            manager.slot_request_succeeded(asked.slot_id, asked.allocation_id, 1.0)
    manager.clear_requirements(JOB, True, 2.0)
    for name in ("te1", "te2"):
        manager.report_slot_status(ResourceID(name), report(name, *[None] * 4), 4.0)
    return manager


def test_static_slots_fill_one_worker_after_the_other() -> None:
    """SM-13."""
    manager = two_workers()
    actions = manager.set_requirements(requirements((SMALL, 5), job_id=OTHER_JOB), 5.0)
    assert asked_at(actions) == ["te1_0", "te1_1", "te1_2", "te1_3", "te2_0"]


def test_spread_out_slots_are_taken_from_the_least_used_worker() -> None:
    """SM-13."""
    manager = two_workers(spread_out=True)
    actions = manager.set_requirements(requirements((SMALL, 5), job_id=OTHER_JOB), 5.0)
    assert asked_at(actions) == ["te1_0", "te2_0", "te1_1", "te2_1", "te1_2"]


def test_dynamic_slots_fill_one_worker_first_or_are_spread_out() -> None:
    """SM-13."""
    found = []
    for spread_out in (False, True):
        manager = two_workers(spread_out=spread_out)
        actions = manager.set_requirements(requirements((HALF, 4), job_id=OTHER_JOB), 5.0)
        found.append(asked_at(actions))
    assert found == [["te1_-1"] * 4, ["te1_-1", "te2_-1", "te1_-1", "te2_-1"]]


def test_slot_answers_for_another_allocation_or_an_unknown_slot_are_ignored() -> None:
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    stranger = allocation(99)
    for slot in (asked.slot_id, slot_id("te1", 3), slot_id("te1", 9), slot_id("nobody", 0)):
        assert manager.slot_request_succeeded(slot, stranger, 2.0) == []
        assert manager.slot_request_failed(slot, stranger, "full", 2.0) == []
        assert manager.slot_freed(slot, stranger, 2.0) == []
    (info,) = manager.task_executors()
    assert (info.free_slots, info.jobs) == (3, (JOB,))
    again = manager.slot_request_failed(asked.slot_id, asked.allocation_id, "full", 3.0)
    assert asked_at(again) == ["te1_1"]


def test_task_executor_overview_names_the_job_of_each_used_slot() -> None:
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 0.0)
    start_worker(manager, 1)
    (info,) = manager.task_executors()
    assert (info.free_slots, sorted(info.jobs)) == (1, sorted((JOB, JOB, OTHER_JOB)))


def test_task_executor_overview_lists_no_job_for_a_worker_without_a_slot_in_use() -> None:
    manager = two_workers()
    assert [(info.free_slots, info.jobs) for info in manager.task_executors()] == [(4, ())] * 2


# --- limits ---------------------------------------------------------------------------------------


def test_no_worker_is_started_beyond_the_slot_limit_and_the_shortage_names_the_limit() -> None:
    """SM-12."""
    manager = slot_manager(WORKER, 4, max_slots=8)
    started = manager.set_requirements(requirements((SMALL, 12)), 0.0)
    assert len(only(started, StartWorkerGroup)) == 2
    (shortage,) = manager.shortages(JOB, 0.0, ANY_CLUSTER)
    assert shortage.exhausted
    assert not shortage.unfulfillable
    assert "No more than 8 slots may be started in all" in shortage.reason


def test_slot_limit_is_not_reported_to_a_job_whose_workers_are_being_started() -> None:
    """SM-12: Flink tells only jobs whose requirements no starting worker will fulfil."""
    manager = slot_manager(WORKER, 4, max_slots=8)
    third = id_of(JobID, 3)
    manager.set_requirements(requirements((SMALL, 3)), 0.0)
    manager.set_requirements(requirements((SMALL, 5), job_id=OTHER_JOB), 1.0)
    manager.set_requirements(requirements((SMALL, 1), job_id=third), 2.0)
    told = [manager.shortages(job_id, 2.0, ANY_CLUSTER) for job_id in (JOB, OTHER_JOB, third)]
    assert [shortage.exhausted for (shortage,) in told] == [False, False, True]


def test_slot_limit_that_only_redundant_workers_exceed_is_not_reported() -> None:
    """SM-12."""
    manager = slot_manager(WORKER, 4, max_slots=4, redundant_workers=1)
    started = manager.set_requirements(requirements((SMALL, 2)), 0.0)
    assert len(only(started, StartWorkerGroup)) == 1
    (shortage,) = manager.shortages(JOB, 0.0, ANY_CLUSTER)
    assert not shortage.exhausted


def test_slot_limit_counts_dedicated_workers_until_they_are_released() -> None:
    """SM-12."""
    manager = slot_manager(WORKER, 4, max_slots=4)
    manager.set_requirements(requirements((SMALL, 3), dedicated=True), 0.0)
    shared = requirements((SMALL, 2), job_id=OTHER_JOB)
    assert only(manager.set_requirements(shared, 1.0), StartWorkerGroup) == []
    actions = manager.clear_requirements(JOB, True, 2.0)
    assert one(actions, StartWorkerGroup).owner is None


def test_dedicated_worker_group_beyond_the_slot_limit_waits_for_free_slots() -> None:
    """SM-12."""
    manager = slot_manager(WORKER, 4, max_slots=4)
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    own = requirements((SMALL, 2), job_id=OTHER_JOB, dedicated=True)
    assert only(manager.set_requirements(own, 1.0), StartWorkerGroup) == []
    (shortage,) = manager.shortages(OTHER_JOB, 1.0, ANY_CLUSTER)
    assert shortage.exhausted
    manager.worker_group_started(1, group("g1"), 2.0)
    manager.set_requirements(requirements(), 3.0)
    actions = manager.worker_group_lost(group("g1"), "its node died", 4.0)
    assert one(actions, StartWorkerGroup).owner == WorkerGroupOwner(OTHER_JOB, OWN_GROUP)
    (shortage,) = manager.shortages(OTHER_JOB, 4.0, ANY_CLUSTER)
    assert not shortage.exhausted


def test_idle_worker_that_registers_beyond_the_slot_limit_is_released() -> None:
    """SM-12."""
    manager = slot_manager(WORKER, 4, max_slots=4)
    for name in ("g1", "g2"):
        manager.recover_worker_group(group(name), (WORKER,), 4, None, (0,), 0.0)
    first, second = location("te1", 0, "g1"), location("te2", 0, "g2")
    busy = report("te1", (JOB, allocation(1)), None, None, None)
    assert manager.register_task_executor(first, WORKER, busy, 1.0) == []
    free = report("te2", *[None] * 4)
    actions = manager.register_task_executor(second, WORKER, free, 1.0)
    released = one(actions, ReleaseWorkerGroup)
    assert released.group_id == group("g2")
    assert "more than 4 slots" in released.reason


def test_idle_worker_that_registers_within_the_slot_limit_is_kept() -> None:
    """SM-12."""
    manager = slot_manager(WORKER, 4, max_slots=4)
    manager.recover_worker_group(group("g1"), (WORKER,), 4, None, (0,), 0.0)
    free = report("te1", *[None] * 4)
    assert manager.register_task_executor(location("te1", 0, "g1"), WORKER, free, 1.0) == []
    assert len(manager.task_executors()) == 1


def test_slot_manager_forgets_the_exhausted_limit_of_an_ended_job() -> None:
    manager = slot_manager(WORKER, 4, max_slots=4)
    manager.set_requirements(requirements((SMALL, 5)), 0.0)
    (short,) = manager.shortages(JOB, 1.0, ANY_CLUSTER)
    assert short.exhausted
    manager.clear_requirements(JOB, True, 2.0)
    assert manager._tracker.exhausted == set()


def test_idle_worker_dedicated_to_a_job_is_kept_although_it_exceeds_the_slot_limit() -> None:
    """SM-12: the earlier ResourceManager started it within its limit."""
    manager = slot_manager(WORKER, 4, max_slots=2)
    owner = WorkerGroupOwner(JOB, OWN_GROUP)
    manager.recover_worker_group(group("g1"), (WORKER,), 4, owner, (0,), 0.0)
    where = location("te1", 0, "g1")
    actions = manager.register_task_executor(where, WORKER, report("te1", *[None] * 4), 1.0)
    assert only(actions, ReleaseWorkerGroup) == []


def test_slots_of_a_lost_worker_do_not_count_for_the_slot_limit() -> None:
    """SM-12."""
    manager = slot_manager(WORKER, 4, max_slots=4)
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    start_worker(manager, 1)
    manager.set_requirements(requirements(), 2.0)
    manager.worker_group_lost(group("g1"), "its node died", 3.0)
    actions = manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 4.0)
    assert len(only(actions, StartWorkerGroup)) == 1


# --- what can never be ----------------------------------------------------------------------------


def test_unfulfillable_requirement_waits_until_start_up_has_ended() -> None:
    """SM-14, RM-09."""
    manager = slot_manager(WORKER, 4)
    manager.set_fail_unfulfillable(False)
    manager.set_requirements(requirements((ResourceProfile(5.0), 1)), 0.0)
    manager.set_requirements(requirements((LARGE, 1), job_id=OTHER_JOB), 0.0)
    (waiting,) = manager.shortages(JOB, 0.0, ANY_CLUSTER)
    assert not waiting.unfulfillable
    assert "starting up" in waiting.reason
    manager.set_fail_unfulfillable(True)
    (failing,) = manager.shortages(JOB, 0.0, ANY_CLUSTER)
    assert failing.unfulfillable
    (other,) = manager.shortages(OTHER_JOB, 0.0, ANY_CLUSTER)
    assert not other.unfulfillable


def test_requirement_that_only_a_busy_larger_worker_fits_is_not_unfulfillable() -> None:
    """SM-14: the busy worker is larger than the workers that are started now."""
    manager = slot_manager(WORKER, 4)
    huge = ResourceProfile(16.0, 16 * GIB)
    manager.recover_worker_group(group("huge"), (huge,), 1, None, (0,), 0.0)
    busy = report("te", (OTHER_JOB, allocation(1)), profile=huge)
    manager.register_task_executor(location("te", 0, "huge"), huge, busy, 1.0)
    manager.set_requirements(requirements((ResourceProfile(8.0), 1)), 2.0)
    (waiting,) = manager.shortages(JOB, 2.0, ANY_CLUSTER)
    assert not waiting.unfulfillable


# --- reserves -------------------------------------------------------------------------------------


def test_redundant_workers_are_started_in_addition_to_the_needed_workers() -> None:
    manager = slot_manager(WORKER, 4, redundant_workers=1)
    started = manager.set_requirements(requirements((SMALL, 2)), 0.0)
    assert len(only(started, StartWorkerGroup)) == 2
    confirm(manager, start_worker(manager, 1))
    assert start_worker(manager, 2) == []


def test_slots_of_a_lost_worker_are_replaced_at_once_by_a_redundant_worker() -> None:
    manager = slot_manager(WORKER, 4, redundant_workers=1)
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    confirm(manager, start_worker(manager, 1))
    start_worker(manager, 2)
    actions = manager.task_executor_lost(ResourceID("te1"), "killed", 40.0)
    assert asked_at(actions) == ["te2_0", "te2_1"]
    assert one(actions, StartTaskExecutor).group_id == group("g1")


def test_redundant_workers_are_kept_while_jobs_run_and_released_after_the_last_job() -> None:
    """SM-15."""
    manager = slot_manager(WORKER, 4, redundant_workers=1)
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    confirm(manager, start_worker(manager, 1))
    start_worker(manager, 2)
    assert manager.check(1000.0) == []
    manager.clear_requirements(JOB, True, 1000.0)
    asked = [a.group_id for a in only(manager.check(1030.0), AskWhetherReleasable)]
    assert asked == [group("g2")]


def three_idle_workers_and_one_in_use() -> tuple[SlotManager, list[WorkerGroupId]]:
    """One worker is the reserve.  With those that were asked at 33 s whether they can go."""
    manager = slot_manager(WORKER, 4, redundant_workers=1)
    manager.set_requirements(requirements((SMALL, 12)), 0.0)
    asked = [only(start_worker(manager, number), RequestSlot) for number in (1, 2, 3)]
    confirm(manager, [request for requests in asked for request in requests])
    assert start_worker(manager, 4) == []
    manager.set_requirements(requirements((SMALL, 1)), 3.0)
    for request in (*asked[1], *asked[2]):
        manager.slot_freed(request.slot_id, request.allocation_id, 3.0)
    actions = [*manager.check(31.0), *manager.check(33.0)]
    return manager, [action.group_id for action in only(actions, AskWhetherReleasable)]


def test_redundant_workers_are_kept_when_other_idle_workers_are_released() -> None:
    """Each worker alone could be released; not all of them together."""
    manager, asked = three_idle_workers_and_one_in_use()
    assert {*asked} == {group("g2"), group("g3"), group("g4")}

    answers = [manager.may_be_released(group_id, True, 33.0) for group_id in asked]

    released = [
        action.group_id for answer in answers for action in only(answer, ReleaseWorkerGroup)
    ]
    assert released == asked[:2]
    assert manager.check(1000.0) == []


def test_idle_worker_that_became_the_redundant_worker_meanwhile_is_not_released() -> None:
    """A job has taken the slots of the other idle workers meanwhile."""
    manager, _ = three_idle_workers_and_one_in_use()
    taken = only(manager.set_requirements(requirements((SMALL, 9)), 33.0), RequestSlot)
    assert {request.slot_id.resource_id for request in taken} == {
        ResourceID("te2"),
        ResourceID("te3"),
    }

    assert only(manager.may_be_released(group("g4"), True, 33.0), ReleaseWorkerGroup) == []


def test_worker_group_dedicated_to_a_job_does_not_count_as_redundant_workers() -> None:
    manager = slot_manager(WORKER, 4, redundant_workers=1)
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(1, group("own"), 1.0)
    where = location("te0", 0, "own")
    asked = one(manager.register_task_executor(where, SMALL, report("te0", None), 1.0), RequestSlot)
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 2.0)
    manager.set_requirements(requirements(), 2.0)
    actions = manager.slot_request_failed(asked.slot_id, asked.allocation_id, "not wanted", 3.0)
    released = one([*actions, *manager.check(33.0)], ReleaseWorkerGroup)
    assert released.group_id == group("own")


def test_no_redundant_workers_are_started_while_no_job_runs() -> None:
    manager = slot_manager(WORKER, 4, redundant_workers=2)
    assert manager.check(0.0) == []
    assert manager.set_requirements(requirements(), 1.0) == []


# --- nodes ----------------------------------------------------------------------------------------


def test_workers_on_a_blocked_node_give_no_slots_until_the_block_ends() -> None:
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    confirm(manager, start_worker(manager, 1, node="bad"))
    assert manager.block_nodes([BlockedNode("bad", "its disk is full", 100.0)], 2.0) == []
    actions = manager.set_requirements(requirements((SMALL, 2)), 3.0)
    assert asked_at(actions) == []
    assert len(only(actions, StartWorkerGroup)) == 1
    assert [node.node_id for node in manager.blocked_nodes()] == ["bad"]
    assert asked_at(manager.check(102.0)) == ["te1_1"]
    assert manager.blocked_nodes() == ()


def test_worker_that_registers_from_a_blocked_node_is_not_used() -> None:
    manager = slot_manager(WORKER, 4)
    manager.block_nodes([BlockedNode("bad", "its disk is full", 100.0)], 0.0)
    manager.set_requirements(requirements((SMALL, 1)), 1.0)
    assert asked_at(start_worker(manager, 1, node="bad")) == []
    assert asked_at(manager.unblock_node("bad", 5.0)) == ["te1_0"]


def test_unblocking_a_node_cancels_the_check_at_the_end_of_its_block() -> None:
    manager = slot_manager(WORKER, 4)
    manager.block_nodes([BlockedNode("bad", "its disk is full", 100.0)], 0.0)
    assert manager.next_check_time() == 100.0
    manager.unblock_node("bad", 5.0)
    assert manager.next_check_time() is None


def test_worker_of_an_unknown_group_is_not_used_after_its_node_is_unblocked() -> None:
    manager = slot_manager(WORKER, 4)
    where = location("te1", 0, "unknown")
    manager.register_task_executor(where, WORKER, report("te1", *[None] * 4), 0.0)
    manager.block_nodes([BlockedNode("n0", "its disk is full", 100.0)], 1.0)
    manager.unblock_node("n0", 2.0)
    assert asked_at(manager.set_requirements(requirements((SMALL, 1)), 3.0)) == []


def test_idle_worker_that_fits_no_requirement_is_released_while_other_workers_start() -> None:
    manager = slot_manager(WORKER, 4)
    manager.recover_worker_group(group("old"), (WORKER,), 4, None, (0,), 0.0)
    free = report("te0", *[None] * 4)
    manager.register_task_executor(location("te0", 0, "old"), WORKER, free, 0.0)
    manager.block_nodes([BlockedNode("n0", "its disk is full", 1000.0)], 0.0)
    manager.set_requirements(requirements((SMALL, 1)), 1.0)
    manager.worker_group_started(1, group("g1"), 2.0)
    idle = [action.group_id for action in only(manager.check(31.0), AskWhetherReleasable)]
    assert idle == [group("old")]


def test_blocking_a_node_again_never_shortens_its_block() -> None:
    manager = slot_manager(WORKER, 4)
    manager.block_nodes([BlockedNode("bad", "first", 100.0)], 0.0)
    manager.block_nodes([BlockedNode("bad", "second", 10.0)], 1.0)
    manager.check(50.0)
    assert [node.cause for node in manager.blocked_nodes()] == ["first"]


# --- failing starts -------------------------------------------------------------------------------


def test_too_many_failed_starts_within_a_minute_pause_all_starts() -> None:
    manager = slot_manager(WORKER, 4, max_start_failures_per_minute=2.0, start_retry_interval=30.0)
    manager.set_requirements(requirements((SMALL, 12)), 0.0)
    for number in (1, 2, 3):
        manager.worker_group_started(number, group(f"g{number}"), 1.0)
    for number in (1, 2):
        again = manager.task_executor_start_failed(group(f"g{number}"), 0, "no disk", 2.0)
        assert one(again, StartTaskExecutor).delay == 0.0
    third = manager.task_executor_start_failed(group("g3"), 0, "no disk", 3.0)
    assert one(third, StartTaskExecutor).delay == 30.0
    (shortage,) = manager.shortages(JOB, 3.0, ANY_CLUSTER)
    assert "Too many starts of workers have failed" in shortage.reason


def test_worker_groups_are_requested_again_when_the_pause_of_starts_is_over() -> None:
    manager = slot_manager(WORKER, 4, max_start_failures_per_minute=1.0, start_retry_interval=30.0)
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    assert manager.worker_group_failed(1, "refused", 1.0) == []
    assert one(manager.check(2.0), StartWorkerGroup).request_number == 2
    assert manager.worker_group_failed(2, "refused", 3.0) == []
    assert manager.check(32.9) == []
    assert one(manager.check(33.0), StartWorkerGroup).request_number == 3


def test_no_worker_is_started_while_those_of_the_last_resource_manager_may_register() -> None:
    """SM-10"""
    manager = slot_manager(WORKER, 4, previous_worker_timeout=20.0)
    manager.recover_worker_group(group("g1"), (WORKER,), 4, None, (0,), 0.0)
    assert manager.set_requirements(requirements((SMALL, 4)), 1.0) == []
    assert manager.check(19.9) == []
    assert one(manager.check(20.0), StartTaskExecutor).group_id == group("g1")


# --- jobs -----------------------------------------------------------------------------------------


def test_unused_slots_of_a_job_are_freed_when_its_job_master_is_lost() -> None:
    """SM-18."""
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    confirm(manager, start_worker(manager, 1))
    assert only(manager.set_requirements(requirements(), 3.0), FreeInactiveSlots) == []
    freed = one(manager.clear_requirements(JOB, False, 4.0), FreeInactiveSlots)
    assert (freed.resource_id, freed.job_id) == ("te1", JOB)


def test_requirements_that_several_jobs_declare_together_are_checked_once() -> None:
    """SM-16: as many workers are started as the jobs need together."""
    manager = slot_manager(WORKER, 4)
    jobs = [requirements((SMALL, 1), job_id=id_of(JobID, number)) for number in (1, 2, 3)]
    actions = manager.set_all_requirements(jobs, 0.0)
    assert len(only(actions, StartWorkerGroup)) == 1
    assert manager.check(0.0) == []


def test_slot_manager_finds_the_task_executors_of_a_job() -> None:
    manager = slot_manager(WORKER, 4)
    manager.set_requirements(requirements((SMALL, 5)), 0.0)
    for number in (1, 2):
        confirm(manager, start_worker(manager, number))
    assert manager.task_executors_of(JOB) == ("te1", "te2")
    assert manager.task_executors_of(OTHER_JOB) == ()
    assert manager.worker_groups() == (WorkerGroupId("g1"), WorkerGroupId("g2"))
