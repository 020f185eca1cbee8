"""TaskSlotTable: slots of a TaskExecutor."""

from __future__ import annotations

import pytest

from flinkray.core.errors import IllegalTransitionError, SlotAllocationError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    JobID,
    ResourceID,
)
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import SlotStatus
from flinkray.scheduler.task_slots.task_slot_table import (
    CleanSlot,
    EndTask,
    SlotDifference,
    TaskSlotTable,
)
from tests.scheduler.builders import (
    GIB,
    GRAPH,
    JOB,
    LARGE,
    OTHER_JOB,
    SMALL,
    VERTEX,
    allocation,
    one,
    only,
    slot_id,
)

A, B, C = allocation(1), allocation(2), allocation(3)


def attempt(number: int) -> ExecutionAttemptID:
    return ExecutionAttemptID(GRAPH, ExecutionVertexID(VERTEX, number), 0)


@pytest.fixture
def table() -> TaskSlotTable:
    """Two slots of SMALL."""
    return TaskSlotTable(ResourceID("te"), ResourceProfile(2.0, 2 * GIB), 2, slot_timeout=10.0)


def test_repeating_the_allocation_of_a_slot_succeeds_and_changes_nothing(
    table: TaskSlotTable,
) -> None:
    """TM-19."""
    assert table.allocate_slot(0, JOB, A, SMALL, 0.0) == slot_id("te", 0)
    assert table.allocate_slot(0, JOB, A, SMALL, 1.0) == slot_id("te", 0)
    assert table.allocations_of(JOB) == (A,)


@pytest.mark.parametrize(
    ("index", "job_id", "number", "profile", "why"),
    [
        (1, JOB, A, SMALL, "the allocation has slot 0 of job"),
        (0, OTHER_JOB, A, SMALL, "the allocation has slot 0 of job"),
        (0, OTHER_JOB, B, SMALL, "the slot is that of job 00000000, allocation 00000000"),
        (1, JOB, B, LARGE, "4 CPU, 4g memory is more than the 1 CPU, 1g memory there is"),
        (2, JOB, B, SMALL, "it has 2 slots, from 0"),
        (-1, JOB, B, LARGE, "is more than the 1 CPU, 1g memory there is"),
    ],
)
def test_impossible_slot_allocation_is_refused_with_the_reason(
    table: TaskSlotTable,
    index: int,
    job_id: JobID,
    number: AllocationID,
    profile: ResourceProfile,
    why: str,
) -> None:
    """TM-19."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    with pytest.raises(SlotAllocationError, match=rf"te cannot give slot {index} .*{why}"):
        table.allocate_slot(index, job_id, number, profile, 0.0)
    assert table.allocations_of(JOB) == (A,)


def test_dynamic_slot_is_reported_with_its_profile_until_freed(
    table: TaskSlotTable,
) -> None:
    """TM-19, TM-22."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    half = ResourceProfile(0.5, GIB // 2)
    assert table.allocate_slot(-1, OTHER_JOB, B, half, 0.0) == slot_id("te", 2)
    assert table.report().slots == (
        SlotStatus(slot_id("te", 0), SMALL, JOB, A),
        SlotStatus(slot_id("te", 1), SMALL),
        SlotStatus(slot_id("te", 2), half, OTHER_JOB, B, is_dynamic=True),
    )
    with pytest.raises(SlotAllocationError, match="dynamic slots have left no more"):
        table.allocate_slot(1, JOB, C, SMALL, 0.0)
    table.free_slot(B, "done")
    table.slot_cleaned(B)
    assert [s.slot_id.slot_index for s in table.report().slots] == [0, 1]
    table.allocate_slot(1, JOB, C, SMALL, 0.0)


def test_static_slot_is_refused_for_a_profile_above_its_share(
    table: TaskSlotTable,
) -> None:
    """TM-19."""
    with pytest.raises(SlotAllocationError, match="is more than the 1 CPU, 1g memory there is"):
        table.allocate_slot(0, JOB, A, ResourceProfile(2.0, 2 * GIB), 0.0)


def test_four_dynamic_slots_of_half_size_fit_where_two_static_slots_would(
    table: TaskSlotTable,
) -> None:
    """TM-22."""
    half = ResourceProfile(0.5, GIB // 2)
    given = [table.allocate_slot(-1, JOB, allocation(n), half, 0.0) for n in range(1, 5)]
    assert given == [slot_id("te", index) for index in range(2, 6)]


def test_slot_is_free_once_its_tasks_have_ended_and_it_was_cleaned(
    table: TaskSlotTable,
) -> None:
    """TM-19, TM-21."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.add_task(attempt(0), JOB, A)
    table.add_task(attempt(1), JOB, A)
    assert table.free_slot(A, "not wanted") == [
        EndTask(attempt(0), "not wanted"),
        EndTask(attempt(1), "not wanted"),
    ]
    assert table.free_slot(A, "again") == []
    assert table.remove_task(attempt(0)) == []
    assert table.is_being_freed(A)
    assert table.remove_task(attempt(1)) == [CleanSlot(slot_id("te"), JOB, A, "not wanted")]
    with pytest.raises(SlotAllocationError, match="it is being freed"):
        table.allocate_slot(0, OTHER_JOB, B, SMALL, 0.0)
    assert table.slot_cleaned(A) == slot_id("te")
    assert table.slot_cleaned(A) is None
    table.allocate_slot(0, OTHER_JOB, B, SMALL, 0.0)


def test_marking_a_slot_in_use_as_cleaned_raises_an_error(table: TaskSlotTable) -> None:
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    with pytest.raises(IllegalTransitionError, match="slot 0 allocated to job"):
        table.slot_cleaned(A)


def test_allocated_slot_that_no_job_activates_times_out(table: TaskSlotTable) -> None:
    """TM-21."""
    table.allocate_slot(0, JOB, A, SMALL, 5.0)
    assert table.next_deadline() == 15.0
    assert table.free_timed_out_slots(14.9) == []
    assert one(table.free_timed_out_slots(15.0), CleanSlot).allocation_id == A
    assert table.next_deadline() is None


def test_active_slot_does_not_time_out(table: TaskSlotTable) -> None:
    """TM-21."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    assert table.mark_slot_active(A)
    assert table.next_deadline() is None
    assert table.free_timed_out_slots(100.0) == []


def test_unknown_slot_cannot_be_activated(table: TaskSlotTable) -> None:
    assert not table.mark_slot_active(A)


def held(table: TaskSlotTable) -> None:
    """A, in which a task runs, since 90.0; the next JobMaster has been there since 100.0."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.add_task(attempt(0), JOB, A)
    assert table.hold_slots_of_job(JOB, "it died", 90.0) == []
    table.job_master_registered(JOB, 100.0)


def test_task_in_a_slot_reserved_for_the_next_job_master_runs_on_in_the_adopted_slot(
    table: TaskSlotTable,
) -> None:
    """TM-15. Until it is adopted, the slot takes no other task, is not offered, and cannot be
    allocated to another job."""
    held(table)
    assert table.offer_slots(JOB) is None
    assert not table.mark_slot_active(A)
    with pytest.raises(SlotAllocationError, match="is held until the job's next JobMaster has ad"):
        table.add_task(attempt(1), JOB, A)
    with pytest.raises(SlotAllocationError, match="the slot is that of job"):
        table.allocate_slot(0, OTHER_JOB, B, SMALL, 101.0)
    assert table.compare_with_job_master(JOB, ()) == SlotDifference((), ())
    assert table.adopt_slots(JOB, (A,), 101.0) == []
    assert table.tasks_of(A) == (attempt(0),)
    assert table.next_deadline() is None
    table.add_task(attempt(1), JOB, A)


def test_slot_stays_reserved_for_the_next_job_master_after_its_tasks_ended(
    table: TaskSlotTable,
) -> None:
    """The next JobMaster hears of the end of the tasks before it decides about the slot."""
    held(table)
    assert table.remove_task(attempt(0)) == []
    assert table.holds_slots_of(JOB)
    assert table.adopt_slots(JOB, (A,), 101.0) == []
    assert not table.holds_slots_of(JOB)


def test_reserved_slot_that_no_job_master_adopts_is_freed_after_the_timeout(
    table: TaskSlotTable,
) -> None:
    """The timeout starts anew for each further JobMaster."""
    held(table)
    assert table.hold_slots_of_job(JOB, "it died, too", 110.0) == []
    table.job_master_registered(JOB, 120.0)
    assert table.free_timed_out_slots(179.9) == []
    reason = "no JobMaster took it for 60 s: it died, too"
    assert table.free_timed_out_slots(180.0) == [EndTask(attempt(0), reason)]
    assert one(table.remove_task(attempt(0)), CleanSlot).reason == reason
    assert table.slot_cleaned(A) == slot_id("te")


def test_second_adoption_does_not_change_slots_that_are_in_use(table: TaskSlotTable) -> None:
    """Adoption may come twice, and after new slots were gained."""
    held(table)
    table.adopt_slots(JOB, (A,), 101.0)
    table.allocate_slot(1, JOB, B, SMALL, 102.0)
    table.add_task(attempt(1), JOB, B)
    assert table.adopt_slots(JOB, (), 103.0) == []
    assert table.slots_in_use(JOB) != ()
    assert table.next_deadline() is None


def test_answer_of_a_lost_job_master_to_an_offer_is_ignored(table: TaskSlotTable) -> None:
    """Otherwise the slot would stay in use for ever without a job that uses it."""
    vacated(table)
    table.remove_task(attempt(0))
    table.slot_cleaned(A)
    offering = table.offer_slots(JOB)
    assert offering is not None
    table.hold_slots_of_job(JOB, "it died, too", 102.0)
    assert table.offer_answered(offering, (A,), 103.0) == []
    assert table.is_kept(A)


def vacated(table: TaskSlotTable) -> None:
    """A, in which a task ran, at 100.0."""
    held(table)
    assert table.adopt_slots(JOB, (), 100.0) == [EndTask(attempt(0), "it died")]


def test_used_slot_that_the_next_job_master_does_not_adopt_is_offered_once_cleaned(
    table: TaskSlotTable,
) -> None:
    """TM-15. The slot is not offered before that."""
    vacated(table)
    assert table.hold_slots_of_job(JOB, "it is dead, too", 101.0) == []
    assert table.adopt_slots(JOB, (A,), 101.0) == []
    assert table.offer_slots(JOB) is None
    assert one(table.remove_task(attempt(0)), CleanSlot).allocation_id == A
    assert table.offer_slots(JOB) is None
    with pytest.raises(SlotAllocationError, match="is being vacated"):
        table.add_task(attempt(1), JOB, A)
    assert table.slot_cleaned(A) is None
    assert table.is_kept(A)
    assert table.report().slots[0].allocation_id == A, "no other job gets it"
    offering = table.offer_slots(JOB)
    assert offering is not None
    assert [offer.allocation_id for offer in offering.offers] == [A]
    assert table.offer_answered(offering, (A,), 102.0) == []
    assert table.next_deadline() is None
    table.add_task(attempt(1), JOB, A)


def test_unused_slot_the_next_job_master_does_not_adopt_is_cleaned_and_kept_for_it(
    table: TaskSlotTable,
) -> None:
    """TM-15."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.mark_slot_active(A)
    assert table.hold_slots_of_job(JOB, "it died", 1.0) == []
    actions = table.adopt_slots(JOB, (), 2.0)
    assert actions == [CleanSlot(slot_id("te"), JOB, A, "it died")]
    table.slot_cleaned(A)
    assert table.is_kept(A)


def test_slot_kept_for_the_next_job_master_takes_tasks_once_it_is_offered(
    table: TaskSlotTable,
) -> None:
    """TM-11: tasks may come before the JobMaster's answer."""
    vacated(table)
    table.remove_task(attempt(0))
    table.slot_cleaned(A)
    with pytest.raises(SlotAllocationError, match="is kept for the job's next JobMaster"):
        table.add_task(attempt(1), JOB, A)
    offering = table.offer_slots(JOB)
    table.add_task(attempt(1), JOB, A)
    assert offering is not None
    assert table.offer_answered(offering, (), 102.0) == [], "it is in use by then"


def test_slot_not_yet_active_is_freed_when_its_job_master_is_lost(table: TaskSlotTable) -> None:
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, OTHER_JOB, B, SMALL, 0.0)
    table.mark_slot_active(B)
    actions = table.hold_slots_of_job(JOB, "it died", 1.0)
    assert [a.allocation_id for a in only(actions, CleanSlot)] == [A]
    assert table.slot_cleaned(A) == slot_id("te", 0)


def test_slot_kept_for_the_next_job_master_is_freed_if_not_accepted_in_time(
    table: TaskSlotTable,
) -> None:
    vacated(table)
    table.remove_task(attempt(0))
    table.slot_cleaned(A)
    assert table.next_deadline() == 160.0
    assert table.free_timed_out_slots(159.9) == []
    freed = one(table.free_timed_out_slots(160.0), CleanSlot)
    assert freed.reason == "no JobMaster took it for 60 s: it died"
    assert table.slot_cleaned(A) == slot_id("te")


def test_slot_whose_tasks_end_too_slowly_times_out_but_its_tasks_are_ended_only_once(
    table: TaskSlotTable,
) -> None:
    vacated(table)
    assert table.free_timed_out_slots(160.0) == []
    assert table.is_being_freed(A)
    assert one(table.remove_task(attempt(0)), CleanSlot).allocation_id == A
    assert table.slot_cleaned(A) == slot_id("te")


def test_slot_freed_while_cleaned_for_the_next_job_master_is_cleaned_once(
    table: TaskSlotTable,
) -> None:
    vacated(table)
    table.remove_task(attempt(0))
    assert table.free_slot(A, "the job has ended") == []
    assert table.slot_cleaned(A) == slot_id("te")


def test_slot_kept_for_the_next_job_master_is_freed_if_it_refuses_the_slot(
    table: TaskSlotTable,
) -> None:
    vacated(table)
    table.remove_task(attempt(0))
    table.slot_cleaned(A)
    offering = table.offer_slots(JOB)
    assert offering is not None
    assert one(table.offer_answered(offering, (), 101.0), CleanSlot).allocation_id == A


def test_slot_kept_for_the_next_job_master_is_not_freed_by_any_other_master(
    table: TaskSlotTable,
) -> None:
    """A past JobMaster that wakes up disconnects; the ResourceManager frees inactive slots."""
    vacated(table)
    assert table.free_slots_of_job(JOB, "goodbye") == []
    table.remove_task(attempt(0))
    table.slot_cleaned(A)
    assert table.free_slots_of_job(JOB, "goodbye") == []
    assert table.free_inactive_slots_of_job(JOB, "nobody uses it") == []
    with pytest.raises(SlotAllocationError, match="is kept for the job's next JobMaster"):
        table.add_task(attempt(1), JOB, A)
    assert table.is_kept(A)


def test_slot_offer_lists_the_slots_of_its_job_that_are_not_active(table: TaskSlotTable) -> None:
    """TM-09."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, JOB, B, SMALL, 0.0)
    table.mark_slot_active(A)
    offering = table.offer_slots(JOB)
    assert offering is not None
    assert [(o.allocation_id, o.slot_index) for o in offering.offers] == [(B, 1)]
    assert table.offer_slots(OTHER_JOB) is None


def test_accepted_slot_becomes_active_and_the_refused_slot_is_freed(table: TaskSlotTable) -> None:
    """TM-10."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, JOB, B, SMALL, 0.0)
    offering = table.offer_slots(JOB)
    assert offering is not None
    actions = table.offer_answered(offering, (A,), 1.0)
    assert [a.allocation_id for a in only(actions, CleanSlot)] == [B]
    assert table.next_deadline() is None
    with pytest.raises(SlotAllocationError, match="is being freed"):
        table.add_task(attempt(0), JOB, B)


def test_refused_slot_is_not_freed_if_a_task_has_come_before_the_answer(
    table: TaskSlotTable,
) -> None:
    """TM-11."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, JOB, B, SMALL, 0.0)
    offering = table.offer_slots(JOB)
    assert offering is not None
    table.add_task(attempt(0), JOB, A)
    actions = table.offer_answered(offering, (), 1.0)
    assert [a.allocation_id for a in only(actions, CleanSlot)] == [B]
    assert table.tasks_of(A) == (attempt(0),)


def test_answer_to_an_outdated_slot_offer_is_ignored(table: TaskSlotTable) -> None:
    """TM-12."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    old, new = table.offer_slots(JOB), table.offer_slots(JOB)
    assert old is not None
    assert new is not None
    assert table.offer_answered(old, (), 1.0) == []
    assert table.offer_answered(old, (A,), 1.0) == []
    assert table.next_deadline() == 10.0, "an outdated acceptance activates nothing"
    assert one(table.offer_answered(new, (), 2.0), CleanSlot).allocation_id == A


def test_slot_offer_to_one_job_does_not_outdate_the_offer_to_another_job(
    table: TaskSlotTable,
) -> None:
    """TM-12."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, OTHER_JOB, B, SMALL, 0.0)
    first = table.offer_slots(JOB)
    table.offer_slots(OTHER_JOB)
    assert first is not None
    table.offer_answered(first, (A,), 1.0)
    assert [o.number for o in (first, table.offer_slots(OTHER_JOB)) if o is not None] == [1, 2]
    assert table.offer_slots(JOB) is None


def test_task_without_a_slot_or_added_twice_is_refused(table: TaskSlotTable) -> None:
    """TM-10."""
    with pytest.raises(SlotAllocationError, match="is not there"):
        table.add_task(attempt(0), JOB, A)
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.add_task(attempt(0), JOB, A)
    with pytest.raises(SlotAllocationError, match="is in te already"):
        table.add_task(attempt(0), JOB, A)
    assert table.remove_task(attempt(0)) == []
    assert table.remove_task(attempt(0)) == []


def test_task_does_not_run_in_the_slot_of_another_job(table: TaskSlotTable) -> None:
    """Otherwise it would end when the other job gives its slot back."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    with pytest.raises(SlotAllocationError, match=rf"is that of job {JOB}"):
        table.add_task(attempt(0), OTHER_JOB, A)
    assert table.tasks_of(A) == ()
    assert table.next_deadline() == 10.0, "it does not make the slot active either"
    table.add_task(attempt(0), JOB, A)


def test_slot_that_belongs_to_another_job_is_missing_for_a_job_master_expecting_it(
    table: TaskSlotTable,
) -> None:
    """TM-16."""
    table.allocate_slot(0, OTHER_JOB, A, SMALL, 0.0)
    table.mark_slot_active(A)
    assert table.compare_with_job_master(JOB, (A,)) == SlotDifference((A,), ())


def test_comparison_with_the_job_master_finds_slots_that_only_one_of_both_knows(
    table: TaskSlotTable,
) -> None:
    """TM-16."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, JOB, B, SMALL, 0.0)
    table.mark_slot_active(A)
    table.mark_slot_active(B)
    assert table.compare_with_job_master(JOB, (B, C)) == SlotDifference((C,), (A,))
    assert table.compare_with_job_master(JOB, (A, B)) == SlotDifference((), ())


def test_comparison_with_the_job_master_leaves_out_a_slot_still_being_offered(
    table: TaskSlotTable,
) -> None:
    """TM-16, JM-08."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    assert table.compare_with_job_master(JOB, ()) == SlotDifference((), ())


def test_freeing_slots_of_a_job_spares_other_jobs(table: TaskSlotTable) -> None:
    """TM-17."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, OTHER_JOB, B, SMALL, 0.0)
    actions = table.free_slots_of_job(JOB, "its master is not the right one")
    assert [a.allocation_id for a in only(actions, CleanSlot)] == [A]
    table.slot_cleaned(A)
    assert table.jobs() == (OTHER_JOB,)


def test_closed_slot_table_allocates_no_slots_and_is_empty_once_all_tasks_have_ended(
    table: TaskSlotTable,
) -> None:
    """TM-18, TM-21."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.add_task(attempt(0), JOB, A)
    assert table.close("it stops") == [EndTask(attempt(0), "it stops")]
    assert not table.is_empty
    with pytest.raises(SlotAllocationError, match="it is shutting down"):
        table.allocate_slot(1, JOB, B, SMALL, 0.0)
    one(table.remove_task(attempt(0)), CleanSlot)
    table.slot_cleaned(A)
    assert table.is_empty


def test_three_slots_of_a_third_of_a_worker_can_all_be_allocated() -> None:
    table = TaskSlotTable(ResourceID("te"), ResourceProfile(2.0, GIB, {"GPU": 1.0}), 3)
    profile = table.report().slots[0].profile
    for index in range(3):
        table.allocate_slot(index, JOB, allocation(index), profile, 0.0)
    assert len(table.allocations_of(JOB)) == 3


def test_slot_being_freed_is_neither_reserved_for_the_next_job_master_nor_reused(
    table: TaskSlotTable,
) -> None:
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.add_task(attempt(0), JOB, A)
    table.free_slot(A, "not wanted")
    assert table.hold_slots_of_job(JOB, "it died", 1.0) == []
    assert table.adopt_slots(JOB, (A,), 2.0) == []
    assert not table.mark_slot_active(A)
    with pytest.raises(SlotAllocationError, match="the allocation has slot 0"):
        table.allocate_slot(0, JOB, A, SMALL, 2.0)
    assert table.free_timed_out_slots(1000.0) == []
    assert table.is_being_freed(A)
    assert not table.is_being_freed(B)
    assert "is being freed: not wanted" in table.story()


def test_only_unused_slots_of_a_job_are_freed(
    table: TaskSlotTable,
) -> None:
    """SM-18."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, JOB, B, SMALL, 0.0)
    table.add_task(attempt(0), JOB, A)
    assert table.free_inactive_slots_of_job(OTHER_JOB, "its master is gone") == []
    assert table.free_inactive_slots_of_job(JOB, "its master is gone") == [
        CleanSlot(slot_id("te", 1), JOB, B, "its master is gone")
    ]
    assert not table.is_being_freed(A)


def test_accepted_slot_becomes_active_although_another_offered_slot_is_gone(
    table: TaskSlotTable,
) -> None:
    """TM-12."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, JOB, B, SMALL, 0.0)
    offering = table.offer_slots(JOB)
    assert offering is not None
    table.free_slot(A, "not wanted")
    table.slot_cleaned(A)
    assert table.offer_answered(offering, (A, B), 1.0) == []
    assert table.offer_slots(JOB) is None  # B is active


def test_answer_to_an_older_offer_is_ignored_although_one_of_its_slots_was_freed(
    table: TaskSlotTable,
) -> None:
    """TM-12."""
    table.allocate_slot(0, JOB, A, SMALL, 0.0)
    table.allocate_slot(1, JOB, B, SMALL, 0.0)
    first = table.offer_slots(JOB)
    assert first is not None
    table.free_slot(A, "not wanted")
    table.slot_cleaned(A)
    second = table.offer_slots(JOB)
    assert second is not None
    assert table.offer_answered(first, (), 1.0) == []
    assert table.offer_answered(second, (B,), 2.0) == []
    assert table.offer_slots(JOB) is None


def test_slot_table_returns_the_job_and_tasks_of_each_slot(table: TaskSlotTable) -> None:
    table.allocate_slot(1, JOB, A, SMALL, 0.0)
    table.allocate_slot(0, JOB, B, SMALL, 4.0)
    table.add_task(attempt(0), JOB, A)
    assert [table.job_of(one) for one in (A, B, C)] == [JOB, JOB, None]
    assert [table.contains(one) for one in (A, B, C)] == [True, True, False]
    assert [table.tasks_of(one) for one in (A, B, C)] == [(attempt(0),), (), ()]
    assert table.allocations_of(JOB) == (B, A)  # by index
    assert table.allocations_of(OTHER_JOB) == ()


def test_next_deadline_of_the_slot_table_is_the_earliest_slot_timeout(table: TaskSlotTable) -> None:
    assert table.next_deadline() is None
    table.allocate_slot(0, JOB, A, SMALL, 4.0)
    table.allocate_slot(1, OTHER_JOB, B, SMALL, 1.0)
    assert table.next_deadline() == 11.0
    table.mark_slot_active(B)
    assert table.next_deadline() == 14.0


def test_only_an_equal_dynamic_slot_request_may_be_repeated(
    table: TaskSlotTable,
) -> None:
    """TM-19."""
    half = ResourceProfile(0.5, GIB // 2)
    given = table.allocate_slot(-1, JOB, A, half, 0.0)
    assert table.allocate_slot(-1, JOB, A, half, 1.0) == given
    with pytest.raises(SlotAllocationError, match="the allocation has slot"):
        table.allocate_slot(0, JOB, A, half, 1.0)
    table.allocate_slot(0, JOB, B, SMALL, 2.0)
    with pytest.raises(SlotAllocationError, match="the allocation has slot 0"):
        table.allocate_slot(-1, JOB, B, half, 2.0)
