"""SlotManager: jobs with a worker group of their own."""

from __future__ import annotations

import pytest

from flinkray.core.ids import AllocationID, ResourceID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.cluster_resources import ClusterResources
from flinkray.scheduler.resources.resource_tracker import RELEASED_GROUP_MEMORY
from flinkray.scheduler.resources.slot_manager import SlotManager
from flinkray.scheduler.resources.slot_manager_actions import (
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
from tests.scheduler.builders import (
    GIB,
    JOB,
    LARGE,
    OTHER_JOB,
    OWNER,
    SMALL,
    allocation,
    group,
    location,
    one,
    only,
    report,
    requirements,
    slot_id,
    slot_manager,
)

SHARED = ResourceProfile(2.0, 4 * GIB)


@pytest.fixture
def manager() -> SlotManager:
    return slot_manager(SHARED, 2)


def register(
    manager: SlotManager, bundle: int, in_group: str = "g", now: float = 2.0, pid: int = 1
) -> list[SlotManagerAction]:
    name = f"te{bundle}"
    where = location(name, bundle, in_group, pid)
    return manager.register_task_executor(where, SMALL, report(name, None), now)


def job_with_group(manager: SlotManager, slots: int = 2) -> list[AllocationID]:
    """The job has all its slots in group g; their allocations by bundle."""
    manager.set_requirements(requirements((SMALL, slots), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    allocations = []
    for bundle in range(slots):
        asked = one(register(manager, bundle), RequestSlot)
        manager.slot_request_succeeded(asked.slot_id, asked.allocation_id, 3.0)
        allocations.append(asked.allocation_id)
    return allocations


def test_job_gets_one_worker_group_with_a_bundle_for_each_slot(manager: SlotManager) -> None:
    """SM-02."""
    wanted = requirements((SMALL, 3), dedicated=True)
    assert manager.set_requirements(wanted, 0.0) == [StartWorkerGroup(1, (SMALL,) * 3, 1, OWNER)]
    assert manager.set_requirements(wanted, 1.0) == []
    assert manager.check(100.0) == []


def test_started_worker_group_gets_a_task_executor_in_each_bundle(manager: SlotManager) -> None:
    manager.set_requirements(requirements((SMALL, 2), dedicated=True), 0.0)
    actions = manager.worker_group_started(1, group(), 1.0)
    assert actions == [StartTaskExecutor(group(), i, SMALL, 1, 0.0) for i in (0, 1)]


def test_registered_task_executor_is_asked_for_its_slot(manager: SlotManager) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    (asked,) = register(manager, 0)
    assert isinstance(asked, RequestSlot)
    assert (asked.slot_id, asked.job_id) == (slot_id("te0"), JOB)
    assert asked.job_master_address == "JobMaster/jobmaster"


def test_slots_of_a_worker_group_go_only_to_the_job_of_the_group(manager: SlotManager) -> None:
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 0.0)
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(2, group(), 1.0)
    assert [a.job_id for a in only(register(manager, 0), RequestSlot)] == [JOB]


def test_free_slots_of_shared_workers_do_not_serve_the_request_for_a_worker_group(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 0.0)
    manager.worker_group_started(1, group("shared"), 1.0)
    where = location("te", 0, "shared")
    manager.register_task_executor(where, SHARED, report("te", None, None), 1.0)
    actions = manager.set_requirements(requirements((SMALL, 1), dedicated=True), 2.0)
    assert actions == [StartWorkerGroup(2, (SMALL,), 1, OWNER)]


def test_free_slots_of_a_worker_group_are_requested_in_the_order_of_its_bundles(
    manager: SlotManager,
) -> None:
    """Whatever the order in which the TaskExecutors registered."""
    manager.recover_worker_group(group(), (SMALL, SMALL), 1, OWNER, (0, 1), 0.0)
    for bundle in (1, 0):
        register(manager, bundle, now=1.0)
    actions = manager.set_requirements(requirements((SMALL, 2), dedicated=True), 2.0)
    assert [a.slot_id for a in only(actions, RequestSlot)] == [slot_id("te0"), slot_id("te1")]


def test_request_for_a_worker_group_that_is_no_longer_required_is_cancelled(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    assert manager.set_requirements(requirements(), 1.0) == [CancelWorkerGroupRequest(1)]


def test_worker_group_that_starts_after_its_request_was_cancelled_is_released(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    assert manager.clear_requirements(JOB, True, 1.0) == [CancelWorkerGroupRequest(1)]
    released = one(manager.worker_group_started(1, group(), 2.0), ReleaseWorkerGroup)
    assert released.group_id == group()


def test_changed_slot_size_replaces_the_pending_request_for_a_worker_group(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    assert manager.set_requirements(requirements((LARGE, 1), dedicated=True), 1.0) == [
        CancelWorkerGroupRequest(1),
        StartWorkerGroup(2, (LARGE,), 1, OWNER),
    ]


def test_changed_requirements_release_the_group_and_request_a_new_one(manager: SlotManager) -> None:
    allocations = job_with_group(manager)
    actions = manager.set_requirements(requirements((SMALL, 3), dedicated=True), 5.0)
    assert one(actions, ReleaseWorkerGroup).group_id == group()
    assert one(actions, StartWorkerGroup).bundles == (SMALL,) * 3
    failed = [a.allocation_id for a in only(actions, NotifyAllocationFailure)]
    assert failed == allocations


def test_lost_task_executor_fails_its_allocation_and_is_replaced_in_its_bundle(
    manager: SlotManager,
) -> None:
    """SM-09."""
    allocations = job_with_group(manager)
    actions = manager.task_executor_lost(ResourceID("te1"), "killed", 50.0)
    failure = one(actions, NotifyAllocationFailure)
    assert (failure.job_id, failure.allocation_id) == (JOB, allocations[1])
    assert failure.resource_id == ResourceID("te1")
    assert "te1 (bundle 1 on 10.0.0.1): killed" in failure.cause
    assert one(actions, StartTaskExecutor) == StartTaskExecutor(group(), 1, SMALL, 1, 0.0)
    assert [a.slot_id for a in only(register(manager, 1, now=52.0, pid=2), RequestSlot)] == [
        slot_id("te1")
    ]


def test_task_executor_that_dies_again_and_again_is_restarted_with_growing_delays(
    manager: SlotManager,
) -> None:
    job_with_group(manager, slots=1)
    delays = []
    for round_number in range(7):
        now = 10.0 + round_number
        actions = manager.task_executor_lost(ResourceID("te0"), "killed", now)
        delays.append(one(actions, StartTaskExecutor).delay)
        register(manager, 0, now=now, pid=10 + round_number)
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_task_executor_that_lived_long_is_replaced_at_once(manager: SlotManager) -> None:
    job_with_group(manager, slots=1)
    manager.task_executor_lost(ResourceID("te0"), "killed", 10.0)
    register(manager, 0, now=10.0, pid=2)
    actions = manager.task_executor_lost(ResourceID("te0"), "killed", 41.0)
    assert one(actions, StartTaskExecutor).delay == 0.0


def test_task_executor_that_does_not_register_in_time_is_started_again_in_its_bundle(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    assert manager.next_check_time() == 61.0
    assert manager.check(60.9) == []
    assert one(manager.check(61.0), StartTaskExecutor).bundle_index == 0


def test_failed_start_of_a_task_executor_is_retried(manager: SlotManager) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    first = manager.task_executor_start_failed(group(), 0, "no such module", 2.0)
    second = manager.task_executor_start_failed(group(), 0, "no such module", 3.0)
    assert [one(a, StartTaskExecutor).delay for a in (first, second)] == [0.0, 1.0]


def test_failed_worker_group_is_requested_again_after_a_while(manager: SlotManager) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    assert manager.worker_group_failed(1, "Ray is away", 1.0) == []
    assert manager.next_check_time() == 2.0
    assert manager.check(2.0) == [StartWorkerGroup(2, (SMALL,), 1, OWNER)]


def test_failed_worker_group_is_requested_at_once_for_a_new_job_master(
    manager: SlotManager,
) -> None:
    """The failed group of another job waits as before."""
    jobs = JOB, OTHER_JOB
    for number, job_id in enumerate(jobs, 1):
        wanted = requirements((SMALL, 1), job_id=job_id, dedicated=True)
        manager.set_requirements(wanted, 0.0)
        manager.worker_group_failed(number, "Ray is away", 1.0)
    assert manager.clear_requirements(JOB, False, 1.2) == []
    started = [
        manager.set_requirements(requirements((SMALL, 1), job_id=job_id, dedicated=True), 1.5)
        for job_id in jobs
    ]
    assert started == [[StartWorkerGroup(3, (SMALL,), 1, OWNER)], []]


def test_released_worker_group_leaves_no_pending_starts_and_no_slot_requests(
    manager: SlotManager,
) -> None:
    """One bundle was being started, and a refused slot was to be requested again."""
    manager.set_requirements(requirements((SMALL, 2), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    asked = one(register(manager, 0), RequestSlot)
    manager.slot_request_failed(asked.slot_id, asked.allocation_id, "busy", 3.0)
    assert manager.next_check_time() == 3.5
    manager.clear_requirements(JOB, True, 3.1)
    assert manager.next_check_time() == 3.1 + RELEASED_GROUP_MEMORY


def test_lost_worker_group_is_released_and_requested_again(manager: SlotManager) -> None:
    job_with_group(manager)
    actions = manager.worker_group_lost(group(), "its node died", 5.0)
    assert [type(a) for a in actions] == [
        NotifyAllocationFailure,
        NotifyAllocationFailure,
        ReleaseWorkerGroup,
        StartWorkerGroup,
    ]
    assert manager.worker_group_lost(group(), "its node died", 6.0) == []


def test_worker_group_of_an_ended_job_is_released_at_once(manager: SlotManager) -> None:
    """SM-18."""
    job_with_group(manager)
    released = one(manager.clear_requirements(JOB, True, 5.0), ReleaseWorkerGroup)
    assert (released.group_id, released.reason) == (group(), f"job {JOB} has ended")
    assert released.task_executors == (ResourceID("te0"), ResourceID("te1"))
    assert manager.task_executors() == ()
    assert manager.worker_groups() == ()


def test_dedicated_worker_group_is_kept_for_the_next_job_master_as_long_as_its_slots(
    manager: SlotManager,
) -> None:
    """The TaskExecutors know how long the slots are kept."""
    first, second = job_with_group(manager)
    actions = manager.clear_requirements(JOB, False, 5.0)
    assert [a.resource_id for a in only(actions, FreeInactiveSlots)] == ["te0", "te1"]
    assert only(actions, ReleaseWorkerGroup) == []
    assert manager.next_check_time() is None
    assert manager.set_requirements(requirements((SMALL, 2), dedicated=True), 64.0) == []
    manager.clear_requirements(JOB, False, 70.0)
    assert manager.slot_freed(slot_id("te0"), first, 130.0) == []
    assert manager.slot_freed(slot_id("te1"), second, 130.0) == []
    assert manager.check(159.9) == []
    assert one(manager.check(160.0), ReleaseWorkerGroup).group_id == group()


def test_unused_worker_group_is_released_when_another_group_finds_no_room(
    manager: SlotManager,
) -> None:
    first, second = job_with_group(manager)
    manager.set_requirements(requirements(dedicated=True), 5.0)
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 6.0)
    assert manager.check(7.0) == [], "its slots are not freed"
    manager.slot_freed(slot_id("te0"), first, 8.0)
    freed = manager.slot_freed(slot_id("te1"), second, 9.0)
    assert one(freed, ReleaseWorkerGroup).group_id == group()


def test_worker_group_of_a_job_without_a_job_master_is_kept_in_spite_of_a_shortage(
    manager: SlotManager,
) -> None:
    first, second = job_with_group(manager)
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB), 4.0)
    manager.clear_requirements(JOB, False, 5.0)
    assert only(manager.check(64.0), ReleaseWorkerGroup) == []
    manager.slot_freed(slot_id("te0"), first, 65.0)
    manager.slot_freed(slot_id("te1"), second, 65.0)
    assert only(manager.check(80.0), ReleaseWorkerGroup) == []
    assert one(manager.check(95.0), ReleaseWorkerGroup).group_id == group()


def test_shortage_says_whether_a_worker_group_waits_for_room(manager: SlotManager) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    cluster = ClusterResources(LARGE, LARGE, (LARGE,))
    (early,) = manager.shortages(JOB, 0.9, cluster)
    (late,) = manager.shortages(JOB, 1.0, cluster)
    assert (early.awaits_room, late.awaits_room) == (False, True)
    manager.worker_group_started(1, group(), 2.0)
    (starting,) = manager.shortages(JOB, 9.0, cluster)
    assert not starting.awaits_room, "TaskExecutors are being started"


def test_slot_request_in_flight_is_given_up_when_its_job_master_is_lost(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    asked = one(register(manager, 0), RequestSlot)
    actions = manager.clear_requirements(JOB, False, 3.0)
    assert only(actions, ReclaimSlot) == []  # the answer may be late, and the job at work there
    freed = one(actions, FreeInactiveSlots)
    assert (freed.resource_id, freed.job_id) == (asked.slot_id.resource_id, JOB)
    again = manager.set_requirements(requirements((SMALL, 1), dedicated=True), 4.0)
    assert one(again, RequestSlot).allocation_id != asked.allocation_id


def test_job_that_declares_no_requirements_keeps_its_slots_until_they_are_freed(
    manager: SlotManager,
) -> None:
    """SM-18."""
    first, second = job_with_group(manager)
    assert manager.set_requirements(requirements(dedicated=True), 5.0) == []
    assert manager.check(1000.0) == []
    manager.slot_freed(slot_id("te0"), first, 1001.0)
    assert manager.slot_freed(slot_id("te1"), second, 1002.0) == []
    assert one(manager.check(1032.0), ReleaseWorkerGroup).group_id == group()


def test_refused_slot_is_requested_again_a_little_later(manager: SlotManager) -> None:
    """SM-05."""
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    asked = one(register(manager, 0), RequestSlot)
    assert manager.slot_request_failed(asked.slot_id, asked.allocation_id, "busy", 3.0) == []
    assert manager.next_check_time() == 3.5
    again = one(manager.check(3.5), RequestSlot)
    assert again.slot_id == asked.slot_id
    assert again.allocation_id != asked.allocation_id


def test_slot_request_without_an_answer_times_out_and_is_repeated(manager: SlotManager) -> None:
    """SM-05."""
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    register(manager, 0, now=2.0)
    assert manager.check(12.0) == []
    assert one(manager.check(12.5), RequestSlot).slot_id == slot_id("te0")


def test_late_answer_to_a_slot_request_that_has_timed_out_is_ignored(manager: SlotManager) -> None:
    """SM-03."""
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    old = one(register(manager, 0, now=2.0), RequestSlot)
    manager.check(12.0)
    new = one(manager.check(12.5), RequestSlot)
    manager.slot_request_succeeded(old.slot_id, old.allocation_id, 13.0)
    manager.slot_request_succeeded(new.slot_id, new.allocation_id, 13.0)
    assert manager.slot_freed(old.slot_id, old.allocation_id, 14.0) == []
    assert not manager.has_shortage


def test_task_executor_of_a_released_group_is_stopped(manager: SlotManager) -> None:
    job_with_group(manager)
    manager.clear_requirements(JOB, True, 5.0)
    assert one(register(manager, 0, now=6.0), StopTaskExecutor).resource_id == ResourceID("te0")


def test_second_task_executor_in_a_bundle_is_stopped(manager: SlotManager) -> None:
    job_with_group(manager)
    actions = manager.register_task_executor(
        location("slow", 0, "g", 9), SMALL, report("slow", None), 4.0
    )
    assert one(actions, StopTaskExecutor).resource_id == ResourceID("slow")
    assert len(manager.task_executors()) == 2


def test_worker_group_of_the_last_resource_manager_is_adopted_with_its_allocations(
    manager: SlotManager,
) -> None:
    """SM-08."""
    actions = manager.recover_worker_group(group(), (SMALL, SMALL), 1, OWNER, (0, 1), 0.0)
    assert actions == []
    for bundle in (0, 1):
        name = f"te{bundle}"
        held = report(name, (JOB, allocation(bundle)))
        manager.register_task_executor(location(name, bundle), SMALL, held, 1.0)
    assert manager.set_requirements(requirements((SMALL, 2), dedicated=True), 2.0) == []
    assert not manager.has_shortage
    assert manager.worker_groups_of(JOB) == (group(),)


def test_recovered_worker_group_no_job_claims_is_released_after_the_idle_timeout(
    manager: SlotManager,
) -> None:
    manager.recover_worker_group(group(), (SMALL,), 1, OWNER, (0,), 0.0)
    held = report("te0", (JOB, allocation(1)))
    manager.register_task_executor(location("te0"), SMALL, held, 1.0)
    assert manager.check(59.9) == [], "a JobMaster may come that takes over what is kept for it"
    manager.slot_freed(slot_id("te0"), allocation(1), 60.0)
    assert one(manager.check(90.0), ReleaseWorkerGroup).group_id == group()


def test_adopted_worker_group_replaces_dead_task_executors_once_its_job_needs_it(
    manager: SlotManager,
) -> None:
    manager.recover_worker_group(group(), (SMALL, SMALL), 1, OWNER, (0,), 0.0)
    actions = manager.set_requirements(requirements((SMALL, 2), dedicated=True), 1.0)
    assert actions == [StartTaskExecutor(group(), 1, SMALL, 1, 0.0)]


def test_recovery_of_a_worker_group_cancels_the_request_made_for_it_before(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    actions = manager.recover_worker_group(group(), (SMALL,), 1, OWNER, (0,), 1.0)
    assert actions == [CancelWorkerGroupRequest(1)]


def test_second_recovered_worker_group_of_the_same_job_is_released(manager: SlotManager) -> None:
    """SM-02."""
    job_with_group(manager)
    actions = manager.recover_worker_group(group("g2"), (SMALL, SMALL), 1, OWNER, (0, 1), 5.0)
    reason = f"job {JOB} has another worker group 'default'"
    assert actions == [ReleaseWorkerGroup(group("g2"), reason)]
    late = location("late", 0, "g2")
    actions = manager.register_task_executor(late, SMALL, report("late", None), 6.0)
    assert one(actions, StopTaskExecutor).resource_id == ResourceID("late")


def test_worker_group_without_task_executors_is_kept_for_its_job_for_a_while(
    manager: SlotManager,
) -> None:
    (held,) = job_with_group(manager, slots=1)
    manager.set_requirements(requirements(), 4.0)
    manager.slot_freed(slot_id("te0"), held, 5.0)
    assert manager.task_executor_lost(ResourceID("te0"), "killed", 6.0) == []
    assert manager.check(34.9) == []
    assert one(manager.check(35.0), ReleaseWorkerGroup).group_id == group()


def test_task_executor_that_registers_before_its_worker_group_is_recovered_is_kept(
    manager: SlotManager,
) -> None:
    held = report("te0", (JOB, allocation(1)))
    assert manager.register_task_executor(location("te0"), SMALL, held, 0.0) == []
    manager.recover_worker_group(group(), (SMALL,), 1, OWNER, (), 1.0)
    assert manager.set_requirements(requirements((SMALL, 1), dedicated=True), 2.0) == []
    assert not manager.has_shortage


def test_unused_task_executor_of_a_worker_group_that_is_never_recovered_is_released(
    manager: SlotManager,
) -> None:
    manager.register_task_executor(location("te0"), SMALL, report("te0", None), 0.0)
    actions = manager.set_requirements(requirements((SMALL, 1)), 1.0)
    assert only(actions, RequestSlot) == []
    assert one(manager.check(30.0), ReleaseWorkerGroup).group_id == group()


def test_task_executor_process_that_registers_again_keeps_its_slots(manager: SlotManager) -> None:
    """RM-01."""
    (first,) = job_with_group(manager, slots=1)
    where = location("te0")
    held = report("te0", (JOB, first))
    assert manager.register_task_executor(where, SMALL, held, 5.0) == []
    assert len(manager.task_executors()) == 1


def test_new_process_with_the_name_of_a_task_executor_replaces_its_slots(
    manager: SlotManager,
) -> None:
    """RM-01."""
    (first,) = job_with_group(manager, slots=1)
    actions = register(manager, 0, now=5.0, pid=2)
    assert one(actions, NotifyAllocationFailure).allocation_id == first
    assert one(actions, RequestSlot).slot_id == slot_id("te0")
    assert only(actions, StartTaskExecutor) == []
    assert len(manager.task_executors()) == 1


def test_shut_down_cancels_all_group_requests_and_releases_all_groups(manager: SlotManager) -> None:
    job_with_group(manager)
    manager.set_requirements(requirements((SMALL, 1), job_id=OTHER_JOB, dedicated=True), 4.0)
    assert manager.shut_down("the cluster shuts down") == [
        CancelWorkerGroupRequest(2),
        ReleaseWorkerGroup(
            group(), "the cluster shuts down", (ResourceID("te0"), ResourceID("te1"))
        ),
    ]
    assert manager.check(5.0) == []
    actions = register(manager, 0, now=6.0)
    assert one(actions, StopTaskExecutor).resource_id == ResourceID("te0"), "it comes too late"
    assert manager.check(1000.0) == []


def test_event_log_of_a_task_executor_lists_what_happened_to_its_slots(
    manager: SlotManager,
) -> None:
    job_with_group(manager, slots=1)
    story = manager.story_of(ResourceID("te0"))
    assert "registered from bundle 0 of worker group 'default' (g) on 10.0.0.1, pid 1" in story
    assert "slot 0 free -> requested for job 00000000" in story
    assert "slot 0 requested -> allocated" in story
