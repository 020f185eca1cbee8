"""SlotManager: jobs that share workers, and what reports tell of slots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.ids import JobID, ResourceID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.slot_manager import SlotManager
from flinkray.scheduler.resources.slot_manager_actions import (
    AskWhetherReleasable,
    CancelWorkerGroupRequest,
    NotifyAllocationFailure,
    ReclaimSlot,
    ReleaseWorkerGroup,
    RequestSlot,
    SlotManagerAction,
    StartTaskExecutor,
    StartWorkerGroup,
    StopTaskExecutor,
)
from flinkray.scheduler.shared.slots import SlotReport, SlotStatus
from tests.scheduler.builders import (
    GIB,
    JOB,
    LARGE,
    OTHER_JOB,
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

WORKER = ResourceProfile(2.0, 2 * GIB)
DEVICE = ResourceProfile(1.0, 2 * GIB, {"GPU": 1.0})


@pytest.fixture
def manager() -> SlotManager:
    return slot_manager(WORKER, 2)


def start_worker(manager: SlotManager, number: int, now: float = 1.0) -> list[SlotManagerAction]:
    """The worker of request *number* comes up in group ``g<number>`` as ``te<number>``."""
    manager.worker_group_started(number, group(f"g{number}"), now)
    name = f"te{number}"
    where = location(name, 0, f"g{number}")
    return manager.register_task_executor(where, WORKER, report(name, None, None), now)


def test_request_for_a_third_slot_starts_a_second_worker_if_workers_have_two_slots(
    manager: SlotManager,
) -> None:
    """SM-10."""
    assert manager.set_requirements(requirements((SMALL, 1)), 0.0) == [
        StartWorkerGroup(1, (WORKER,), 2, None)
    ]
    assert manager.set_requirements(requirements((SMALL, 2)), 0.0) == []
    third = manager.set_requirements(requirements((SMALL, 3)), 0.0)
    assert third == [StartWorkerGroup(2, (WORKER,), 2, None)]


def test_slots_of_workers_being_started_are_not_requested_a_second_time(
    manager: SlotManager,
) -> None:
    """SM-10."""
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    manager.worker_group_started(1, group("g1"), 1.0)
    assert manager.set_requirements(requirements((SMALL, 2), job_id=OTHER_JOB), 1.0) == [
        StartWorkerGroup(2, (WORKER,), 2, None)
    ]


def test_worker_request_that_is_no_longer_needed_is_cancelled(manager: SlotManager) -> None:
    manager.set_requirements(requirements((SMALL, 4)), 0.0)
    actions = manager.set_requirements(requirements((SMALL, 1)), 1.0)
    assert actions == [CancelWorkerGroupRequest(2)]
    actions = manager.set_requirements(requirements(), 2.0)
    assert actions == [CancelWorkerGroupRequest(1)]


def test_new_worker_serves_the_missing_slots_of_all_jobs(manager: SlotManager) -> None:
    """SM-01."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 0.0)
    asked = only(start_worker(manager, 1), RequestSlot)
    assert [(a.slot_id, a.job_id) for a in asked] == [
        (slot_id("te1", 0), JOB),
        (slot_id("te1", 1), OTHER_JOB),
    ]


def test_free_slots_of_a_new_worker_are_given_but_not_its_slots_in_use(
    manager: SlotManager,
) -> None:
    """SM-11, SM-17."""
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    manager.worker_group_started(1, group("g1"), 1.0)
    held = report("te1", (OTHER_JOB, allocation(1)), None)
    actions = manager.register_task_executor(location("te1", 0, "g1"), WORKER, held, 1.0)
    assert [a.slot_id for a in only(actions, RequestSlot)] == [slot_id("te1", 1)]
    assert only(actions, StartWorkerGroup) == [StartWorkerGroup(2, (WORKER,), 2, None)]


def test_worker_smaller_than_requested_is_stopped_and_replaced(
    manager: SlotManager,
) -> None:
    """SM-17: the requested worker is still expected."""
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    manager.worker_group_started(1, group("g1"), 1.0)
    where = location("te1", 0, "g1")
    actions = manager.register_task_executor(where, SMALL, report("te1", None), 1.0)
    assert only(actions, RequestSlot) == []
    assert "was to have 2 CPU" in one(actions, StopTaskExecutor).reason
    assert one(actions, StartTaskExecutor).profile == WORKER
    assert only(actions, StartWorkerGroup) == []
    actions = manager.register_task_executor(
        location("te2", 0, "g1"), WORKER, report("te2", None, None), 2.0
    )
    assert [a.slot_id for a in only(actions, RequestSlot)] == [slot_id("te2", 0), slot_id("te2", 1)]


def test_worker_that_registers_too_small_is_replaced_after_growing_delays(
    manager: SlotManager,
) -> None:
    """SM-17: no further workers are requested in its place."""
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    manager.worker_group_started(1, group("g1"), 1.0)
    delays = []
    for number in range(5):
        name = f"te{number}"
        where = location(name, 0, "g1")
        actions = manager.register_task_executor(where, SMALL, report(name, None), 1.0)
        delays.append(one(actions, StartTaskExecutor).delay)
        assert only(actions, StartWorkerGroup) == []
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("further", [(), (None,)])
def test_worker_smaller_than_requested_is_kept_if_its_slots_are_in_use(
    manager: SlotManager, further: tuple[None, ...]
) -> None:
    """SM-17: the missing slots are requested."""
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    manager.worker_group_started(1, group("g1"), 1.0)
    held = report("te1", (JOB, allocation(1)), *further)
    actions = manager.register_task_executor(location("te1", 0, "g1"), SMALL, held, 1.0)
    assert only(actions, StopTaskExecutor) == []
    assert len(manager.task_executors()) == 1
    more = [] if further else [StartWorkerGroup(2, (WORKER,), 2, None)]
    assert only(actions, StartWorkerGroup) == more


def test_worker_of_another_group_does_not_count_as_the_worker_that_was_requested(
    manager: SlotManager,
) -> None:
    """SM-17: it has another profile. The slots of the requested worker are still counted."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    manager.worker_group_started(1, group("g1"), 1.0)
    manager.recover_worker_group(group("g0"), (LARGE,), 1, None, (0,), 1.0)
    free = report("te0", None, profile=LARGE)
    actions = manager.register_task_executor(location("te0", 0, "g0"), LARGE, free, 1.0)
    assert one(actions, RequestSlot).resource_id == ResourceID("te0")
    actions = manager.set_requirements(requirements((SMALL, 6)), 1.0)
    assert [a.resource_id for a in only(actions, RequestSlot)] == [ResourceID("te0")] * 3
    assert only(actions, StartWorkerGroup) == []
    actions = manager.register_task_executor(
        location("te1", 0, "g1"), WORKER, report("te1", None, None), 2.0
    )
    assert [a.slot_id for a in only(actions, RequestSlot)] == [slot_id("te1", 0), slot_id("te1", 1)]


def test_slots_of_the_fullest_worker_are_used_first_so_that_others_become_idle(
    manager: SlotManager,
) -> None:
    """SM-13."""
    manager.set_requirements(requirements((SMALL, 3)), 0.0)
    confirm(manager, start_worker(manager, 1))
    confirm(manager, start_worker(manager, 2))
    third = id_of(JobID, 3)
    manager.set_requirements(requirements((SMALL, 2), job_id=OTHER_JOB), 2.0)
    confirm(manager, start_worker(manager, 3))
    free = [i.location.resource_id for i in manager.task_executors() if i.free_slots]
    assert free == [ResourceID("te3")]
    actions = manager.set_requirements(requirements((SMALL, 1), job_id=third), 3.0)
    assert one(actions, RequestSlot).slot_id == slot_id("te3", 1)


def test_smallest_slot_that_fits_the_requirement_is_taken(manager: SlotManager) -> None:
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    manager.recover_worker_group(group("large"), (LARGE,), 1, None, (0,), 0.0)
    manager.recover_worker_group(group("small"), (SMALL,), 1, None, (0,), 0.0)
    for name, profile in (("small", SMALL), ("large", LARGE)):
        free = report(name, None, profile=profile)
        actions = manager.register_task_executor(location(name, 0, name), profile, free, 1.0)
        if name == "small":
            assert one(actions, RequestSlot).slot_id == slot_id("small")
        else:
            assert only(actions, RequestSlot) == []


def test_refused_slot_request_is_repeated_at_another_slot(manager: SlotManager) -> None:
    """SM-05."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    actions = manager.slot_request_failed(asked.slot_id, asked.allocation_id, "busy", 2.0)
    assert one(actions, RequestSlot).slot_id == slot_id("te1", 1)
    assert manager.task_executors()[0].free_slots == 1


def test_slot_that_a_report_names_as_allocated_is_no_longer_free(manager: SlotManager) -> None:
    """SM-04."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    confirm(manager, start_worker(manager, 1))
    manager.report_slot_status(
        ResourceID("te1"), report("te1", None, (OTHER_JOB, allocation(7))), 2.5
    )
    info = manager.task_executors()[0]
    assert (info.number_of_slots, info.free_slots) == (2, 0)
    assert info.jobs == (JOB, OTHER_JOB)


def test_total_and_free_slot_numbers_equal_those_of_the_listed_task_executors(
    manager: SlotManager,
) -> None:
    """With static and dynamic slots that are free, requested and allocated."""
    seen = [manager.numbers_of_slots()]
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    confirm(manager, start_worker(manager, 1))
    seen.append(manager.numbers_of_slots())
    tiny = ResourceProfile(0.25, GIB // 4)
    manager.set_requirements(requirements((SMALL, 1), (tiny, 1)), 3.0)
    (info,) = manager.task_executors()
    seen.append(manager.numbers_of_slots())
    assert seen == [(0, 0), (2, 1), (3, 1)]
    assert (info.number_of_slots, info.free_slots) == seen[-1]


def test_refused_slot_of_a_worker_without_another_slot_is_requested_again_later(
    manager: SlotManager,
) -> None:
    """SM-05."""
    manager.recover_worker_group(group("g0"), (SMALL,), 1, None, (0,), 0.0)
    manager.register_task_executor(location("te0", 0, "g0"), SMALL, report("te0", None), 0.0)
    asked = one(manager.set_requirements(requirements((SMALL, 1)), 1.0), RequestSlot)
    actions = manager.slot_request_failed(asked.slot_id, asked.allocation_id, "busy", 2.0)
    assert only(actions, RequestSlot) == []
    assert one(manager.check(3.0), RequestSlot).slot_id == slot_id("te0")


def test_job_gets_the_slots_it_has_on_a_recovered_worker_instead_of_new_slots(
    manager: SlotManager,
) -> None:
    """SM-08."""
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    held = report("te0", (JOB, allocation(1)), (JOB, allocation(2)))
    actions = manager.register_task_executor(location("te0", 0, "g0"), WORKER, held, 1.0)
    assert actions == [CancelWorkerGroupRequest(1)]


def test_worker_with_the_largest_used_share_is_taken_first(manager: SlotManager) -> None:
    """SM-13."""
    others = iter(range(1, 10))
    for name, slots in (("two", 2), ("four", 4)):
        total = SMALL.times(slots)
        manager.recover_worker_group(group(name), (total,), slots, None, (0,), 0.0)
        held = [(OTHER_JOB, allocation(next(others))) for _ in range(slots - 1)]
        seen = report(name, *held, None)
        manager.register_task_executor(location(name, 0, name), total, seen, 0.0)
    asked = one(manager.set_requirements(requirements((SMALL, 1)), 1.0), RequestSlot)
    assert asked.slot_id == slot_id("four", 3)


def test_worker_group_being_started_that_no_job_needs_is_released_after_idle_timeout(
    manager: SlotManager,
) -> None:
    """SM-15."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    manager.worker_group_started(1, group("g1"), 1.0)
    assert manager.set_requirements(requirements(), 2.0) == []
    assert manager.check(31.9) == []
    assert one(manager.check(32.0), ReleaseWorkerGroup).group_id == group("g1")


def test_loss_of_a_worker_is_reported_only_to_jobs_with_slots_on_it(
    manager: SlotManager,
) -> None:
    """SM-09."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    confirm(manager, start_worker(manager, 1))
    asked = one(
        manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 3.0), RequestSlot
    )
    assert asked.resource_id == ResourceID("te1")
    lost = manager.task_executor_lost(ResourceID("te1"), "killed", 4.0)
    assert one(lost, NotifyAllocationFailure).job_id == JOB


def test_requested_slot_stays_requested_although_a_report_says_that_it_is_free(
    manager: SlotManager,
) -> None:
    """SM-04: the request may be on its way for longer than a report."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    assert manager.report_slot_status(ResourceID("te1"), report("te1", None, None), 9.0) == []
    manager.slot_request_succeeded(asked.slot_id, asked.allocation_id, 10.0)
    assert manager.task_executors()[0].jobs == (JOB,)


def test_slot_reported_as_allocated_stays_allocated_if_its_answer_never_comes(
    manager: SlotManager,
) -> None:
    """SM-04: the answer is delayed at the TaskExecutor, or is lost."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    given = report("te1", (JOB, asked.allocation_id), None)
    assert manager.report_slot_status(ResourceID("te1"), given, 3.0) == []
    assert only(manager.check(11.0), RequestSlot) == []
    assert manager.slot_request_failed(asked.slot_id, asked.allocation_id, "late", 11.1) == []
    assert manager.task_executors()[0].jobs == (JOB,)


def test_requested_slot_that_is_reported_as_given_to_another_job_is_replaced(
    manager: SlotManager,
) -> None:
    """SM-06."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    foreign = report("te1", (OTHER_JOB, allocation(7)), None)
    actions = manager.report_slot_status(ResourceID("te1"), foreign, 2.0)
    assert one(actions, RequestSlot).slot_id == slot_id("te1", 1)
    manager.slot_request_failed(asked.slot_id, asked.allocation_id, "taken", 3.0)
    assert manager.task_executors()[0].jobs == (OTHER_JOB, JOB)


def test_slot_reported_as_allocated_is_not_given_to_another_job(manager: SlotManager) -> None:
    """SM-08."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    confirm(manager, start_worker(manager, 1))
    manager.report_slot_status(
        ResourceID("te1"), report("te1", None, (OTHER_JOB, allocation(7))), 2.5
    )
    actions = manager.set_requirements(requirements((SMALL, 2)), 3.0)
    assert only(actions, RequestSlot) == []
    assert len(only(actions, StartWorkerGroup)) == 1


def test_report_older_than_the_confirmation_of_a_slot_does_not_free_the_slot(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    confirm(manager, start_worker(manager, 1), now=2.0)
    free = report("te1", None, None)
    assert manager.report_slot_status(ResourceID("te1"), free, 2.1) == []
    actions = manager.report_slot_status(ResourceID("te1"), free, 12.0)
    assert one(actions, RequestSlot).job_id == JOB


def test_slot_missing_in_a_report_is_removed_and_a_new_index_adds_a_slot(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    confirm(manager, start_worker(manager, 1))
    first = manager.set_requirements(requirements(), 3.0)
    assert first == []
    other = SlotReport(tuple(SlotStatus(slot_id("te1", i), SMALL, None, None) for i in (0, 2)))
    manager.report_slot_status(ResourceID("te1"), other, 5.0)
    asked = only(manager.set_requirements(requirements((SMALL, 2)), 6.0), RequestSlot)
    assert [a.slot_id for a in asked] == [slot_id("te1", 0), slot_id("te1", 2)]


def test_refused_slot_that_another_job_used_meanwhile_is_requested_once_later(
    manager: SlotManager,
) -> None:
    """SM-05."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    first = one(start_worker(manager, 1), RequestSlot)
    second = one(
        manager.slot_request_failed(first.slot_id, first.allocation_id, "busy", 2.0), RequestSlot
    )
    manager.slot_request_succeeded(second.slot_id, second.allocation_id, 2.1)
    mine, name = (JOB, second.allocation_id), ResourceID("te1")
    manager.report_slot_status(name, report("te1", (OTHER_JOB, allocation(5)), mine), 2.2)
    manager.report_slot_status(name, report("te1", None, mine), 5.0)
    manager.check(10.0)
    actions = manager.set_requirements(requirements((SMALL, 3)), 11.0)
    assert [a.slot_id for a in only(actions, RequestSlot)] == [slot_id("te1", 0)]
    assert len(only(actions, StartWorkerGroup)) == 1


def test_report_of_an_unknown_task_executor_is_ignored(manager: SlotManager) -> None:
    """SM-08."""
    assert manager.report_slot_status(ResourceID("te9"), report("te9", None), 1.0) == []


def test_lost_worker_is_replaced_in_its_group_only_while_its_slots_are_wanted(
    manager: SlotManager,
) -> None:
    """SM-09."""
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    confirm(manager, start_worker(manager, 1))
    actions = manager.task_executor_lost(ResourceID("te1"), "killed", 40.0)
    assert len(only(actions, NotifyAllocationFailure)) == 2
    assert one(actions, StartTaskExecutor).group_id == group("g1")
    manager.set_requirements(requirements(), 41.0)
    actions = manager.task_executor_start_failed(group("g1"), 0, "killed", 42.0)
    assert one(actions, ReleaseWorkerGroup).group_id == group("g1")


def test_loss_of_a_worker_tells_each_job_only_its_own_lost_allocations(
    manager: SlotManager,
) -> None:
    """SM-09."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 0.0)
    confirm(manager, start_worker(manager, 1))
    actions = manager.task_executor_lost(ResourceID("te1"), "killed", 40.0)
    assert [a.job_id for a in only(actions, NotifyAllocationFailure)] == [JOB, OTHER_JOB]


def test_idle_worker_is_released_after_30_seconds_and_not_before(manager: SlotManager) -> None:
    """SM-15."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    confirm(manager, [asked])
    manager.set_requirements(requirements(), 3.0)
    assert manager.slot_freed(asked.slot_id, asked.allocation_id, 100.0) == []
    assert manager.next_check_time() == 130.0
    assert manager.check(129.9) == []
    asked_whether = AskWhetherReleasable(group("g1"), (ResourceID("te1"),))
    assert manager.check(130.0) == [asked_whether]
    assert manager.task_executors()[0].free_slots == 2
    released = manager.may_be_released(group("g1"), True, 130.1)
    assert one(released, ReleaseWorkerGroup).group_id == group("g1")


def idle_worker(manager: SlotManager) -> None:
    """The worker te1, idle since 4 s, asked at 34 s whether it can go."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    confirm(manager, [asked])
    manager.set_requirements(requirements(), 3.0)
    manager.slot_freed(asked.slot_id, asked.allocation_id, 4.0)
    assert len(only(manager.check(34.0), AskWhetherReleasable)) == 1


def test_idle_worker_is_released_at_once_when_a_worker_group_finds_no_room(
    manager: SlotManager,
) -> None:
    """Otherwise a job whose stages take turns on a full cluster would wait for timeouts."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    confirm(manager, [asked])
    manager.set_requirements(requirements(), 3.0)
    manager.slot_freed(asked.slot_id, asked.allocation_id, 4.0)
    manager.set_requirements(requirements((LARGE, 1), job_id=OTHER_JOB, dedicated=True), 5.0)
    assert manager.check(5.9) == [], "it may be placed any moment"
    assert manager.next_check_time() == 6.0
    assert one(manager.check(6.0), AskWhetherReleasable).group_id == group("g1")
    released = one(manager.may_be_released(group("g1"), True, 6.1), ReleaseWorkerGroup)
    assert released.reason == "not needed, and others wait for room"


def test_worker_idle_while_a_worker_group_lacks_room_is_released_at_once(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    confirm(manager, [asked])
    manager.set_requirements(requirements((LARGE, 1), job_id=OTHER_JOB, dedicated=True), 5.0)
    manager.check(6.0)
    manager.set_requirements(requirements(), 7.0)
    freed = manager.slot_freed(asked.slot_id, asked.allocation_id, 8.0)
    assert one(freed, AskWhetherReleasable).group_id == group("g1")


def test_idle_worker_is_kept_when_the_worker_group_that_lacked_room_is_given_up(
    manager: SlotManager,
) -> None:
    idle_worker_at = 4.0
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    confirm(manager, [asked])
    manager.set_requirements(requirements(), 3.0)
    manager.slot_freed(asked.slot_id, asked.allocation_id, idle_worker_at)
    manager.set_requirements(requirements((LARGE, 1), job_id=OTHER_JOB, dedicated=True), 5.0)
    manager.clear_requirements(OTHER_JOB, True, 5.5)
    assert only(manager.check(20.0), AskWhetherReleasable) == []
    assert manager.next_check_time() == idle_worker_at + 30.0


def test_idle_worker_that_may_not_be_released_yet_is_asked_again_after_a_while(
    manager: SlotManager,
) -> None:
    """SM-15: it has a partition that may still be read."""
    idle_worker(manager)
    assert manager.may_be_released(group("g1"), False, 35.0) == []
    assert manager.next_check_time() == 64.0
    assert len(only(manager.check(64.0), AskWhetherReleasable)) == 1


def test_idle_worker_that_gets_a_slot_request_before_its_release_is_not_released(
    manager: SlotManager,
) -> None:
    """SM-15."""
    idle_worker(manager)
    manager.set_requirements(requirements((SMALL, 1)), 34.5)
    assert only(manager.may_be_released(group("g1"), True, 35.0), ReleaseWorkerGroup) == []
    assert manager.worker_groups() == (group("g1"),)


def test_idle_worker_that_is_used_again_is_kept(manager: SlotManager) -> None:
    """SM-15."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    asked = one(start_worker(manager, 1), RequestSlot)
    confirm(manager, [asked])
    manager.set_requirements(requirements(), 3.0)
    manager.slot_freed(asked.slot_id, asked.allocation_id, 4.0)
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 33.0)
    assert manager.check(500.0) != []  # the request is tried again
    assert manager.worker_groups() == (group("g1"),)


def test_worker_that_starts_slowly_is_not_released_while_a_job_waits_for_it(
    manager: SlotManager,
) -> None:
    """SM-15."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    manager.worker_group_started(1, group("g1"), 1.0)
    assert manager.check(50.0) == []


def test_ended_job_has_its_slots_freed_on_shared_workers(manager: SlotManager) -> None:
    """SM-18."""
    manager.set_requirements(requirements((SMALL, 2)), 0.0)
    asked = only(start_worker(manager, 1), RequestSlot)
    confirm(manager, list(asked))
    freed = only(manager.clear_requirements(JOB, True, 3.0), ReclaimSlot)
    assert [f.allocation_id for f in freed] == [a.allocation_id for a in asked]
    assert manager.task_executors()[0].free_slots == 0


def test_freeing_a_slot_under_another_allocation_id_does_not_free_it(manager: SlotManager) -> None:
    """SM-03."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    confirm(manager, start_worker(manager, 1))
    manager.slot_freed(slot_id("te1"), allocation(99), 3.0)
    assert manager.task_executors()[0].free_slots == 1


def test_profile_too_large_for_a_default_worker_gets_a_shared_worker_of_its_size(
    manager: SlotManager,
) -> None:
    started = only(manager.set_requirements(requirements((LARGE, 1)), 0.0), StartWorkerGroup)
    assert [(s.bundles, s.slots_per_bundle, s.owner) for s in started] == [((LARGE,), 1, None)]
    started = only(
        manager.set_requirements(requirements((LARGE, 1), (SMALL, 1)), 1.0), StartWorkerGroup
    )
    assert [s.bundles for s in started] == [(WORKER,)]


def test_worker_with_a_device_serves_only_jobs_that_ask_for_the_same(
    manager: SlotManager,
) -> None:
    actions = manager.set_requirements(requirements((DEVICE, 1)), 0.0)
    assert one(actions, StartWorkerGroup).bundles == (DEVICE,)
    manager.worker_group_started(1, group("g1"), 1.0)
    free = report("te1", None, profile=DEVICE)
    asked = manager.register_task_executor(location("te1", 0, "g1"), DEVICE, free, 2.0)
    first = one(asked, RequestSlot)
    assert first.profile == DEVICE
    manager.slot_request_succeeded(first.slot_id, first.allocation_id, 2.0)
    manager.clear_requirements(JOB, True, 3.0)
    manager.slot_freed(first.slot_id, first.allocation_id, 3.0)

    assert not only(
        manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 4.0), RequestSlot
    )
    half = replace(DEVICE, extended={"GPU": 0.5})
    assert not only(
        manager.set_requirements(requirements((half, 1), job_id=OTHER_JOB), 5.0), RequestSlot
    )
    less = replace(DEVICE, memory=GIB)
    asked = manager.set_requirements(requirements((less, 1), job_id=OTHER_JOB), 6.0)
    assert one(asked, RequestSlot).slot_id == first.slot_id


def test_request_for_a_worker_is_canceled_with_the_slot_that_needs_its_device(
    manager: SlotManager,
) -> None:
    started = only(
        manager.set_requirements(requirements((SMALL, 1), (DEVICE, 2)), 0.0), StartWorkerGroup
    )
    assert sorted(s.bundles[0].extended.get("GPU", 0.0) for s in started) == [0.0, 1.0, 1.0]
    actions = manager.set_requirements(requirements((SMALL, 1), (DEVICE, 1)), 1.0)
    assert one(actions, CancelWorkerGroupRequest).request_number == 3
    actions = manager.set_requirements(requirements((SMALL, 1)), 2.0)
    assert one(actions, CancelWorkerGroupRequest).request_number == 2
