"""DeclarativeSlotPool: which offers it takes and what it gives back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.ids import ResourceID, SlotRequestId
from flinkray.scheduler.shared.slots import SlotOffer
from flinkray.scheduler.slots.slot_pool import (
    DeclarativeSlotPool,
    DeclareRequirements,
    FreeSlot,
    SlotsChanged,
)
from flinkray.scheduler.slots.slot_requests import (
    SlotRequest,
    SlotRequests,
    TaskExecutorWithoutSlots,
)
from flinkray.scheduler.slots.unconstrained_slots import UnconstrainedSlots
from tests.scheduler.builders import (
    JOB,
    LARGE,
    OTHER_JOB,
    SMALL,
    allocation,
    id_of,
    location,
    offer,
    one,
    only,
    requirements,
    slot_on,
)

TE = ResourceID("te")


def pool_that_requires(number: int) -> DeclarativeSlotPool:
    pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster", idle_timeout=50.0)
    pool.register_task_executor(location("te"), 0.0)
    pool.set_requirements(requirements((SMALL, number)), 0.0)
    return pool


def accepted(pool: DeclarativeSlotPool, *offers: SlotOffer, of: str = "te") -> list[int]:
    answer, _ = pool.offer_slots(ResourceID(of), offers, 1.0)
    return [int.from_bytes(a.value, "big") for a in answer.accepted]


def test_offer_of_an_unregistered_task_executor_is_refused() -> None:
    """SP-03."""
    assert accepted(pool_that_requires(1), offer(1), of="stranger") == []


def test_repeated_slot_offer_is_accepted_again_and_changes_nothing() -> None:
    """SP-03."""
    pool = pool_that_requires(1)
    assert accepted(pool, offer(1)) == [1]
    answer, actions = pool.offer_slots(TE, (offer(1),), 2.0)
    assert answer.accepted == (allocation(1),)
    assert actions == []


def test_known_allocation_offered_from_another_slot_or_task_executor_is_refused() -> None:
    """SP-03."""
    pool = pool_that_requires(3)
    pool.register_task_executor(location("other", bundle=1), 0.0)
    assert accepted(pool, offer(1, index=0)) == [1]
    assert accepted(pool, offer(1, index=1)) == []
    assert accepted(pool, offer(1, index=0), of="other") == []


def test_slot_offers_beyond_the_requirements_are_refused() -> None:
    """SP-21."""
    pool = pool_that_requires(2)
    assert accepted(pool, offer(1, 0), offer(2, 1), offer(3, 2)) == [1, 2]


def test_slot_too_small_for_the_missing_profile_is_refused() -> None:
    pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster")
    pool.register_task_executor(location("te"), 0.0)
    pool.set_requirements(requirements((LARGE, 1)), 0.0)
    assert accepted(pool, offer(1, profile=SMALL)) == []
    assert accepted(pool, offer(2, profile=LARGE)) == [2]


def test_small_slot_is_refused_when_large_slots_fulfil_all_requirements() -> None:
    pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster")
    pool.register_task_executor(location("te"), 0.0)
    pool.set_requirements(requirements((SMALL, 1), (LARGE, 1)), 0.0)
    assert accepted(pool, offer(1, 0, LARGE), offer(2, 1, LARGE)) == [1, 2]
    assert accepted(pool, offer(3, 2, SMALL)) == []


def test_new_requirements_replace_the_old_ones_and_are_declared() -> None:
    """SP-21."""
    pool = pool_that_requires(1)
    wanted = requirements((SMALL, 5))
    assert pool.set_requirements(wanted, 1.0) == [DeclareRequirements(wanted)]
    assert pool.requirements == wanted


def test_requirements_set_again_are_declared_again_with_the_new_address() -> None:
    """SP-21: the ResourceManager may have missed the earlier declaration."""
    pool = pool_that_requires(1)
    wanted = requirements((SMALL, 1))
    assert pool.set_requirements(wanted, 1.0) == [DeclareRequirements(wanted)]
    moved = replace(wanted, job_master_address="JobMaster/another")
    assert pool.set_requirements(moved, 2.0) == [DeclareRequirements(moved)]


def test_new_slot_offered_together_with_a_repeated_offer_is_accepted() -> None:
    """SP-03."""
    pool = pool_that_requires(2)
    assert accepted(pool, offer(1, 0)) == [1]
    assert accepted(pool, offer(1, 0), offer(2, 1)) == [1, 2]


def test_shared_slot_is_refused_when_a_worker_group_is_required() -> None:
    pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster")
    pool.register_task_executor(location("te"), 0.0)
    pool.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    assert accepted(pool, offer(1)) == []


def test_closed_slot_pool_refuses_slots_and_requirements() -> None:
    """SP-06."""
    pool = pool_that_requires(1)
    assert accepted(pool, offer(1)) == [1]
    pool.close("the job has ended")
    assert pool.slots == ()
    assert accepted(pool, offer(2, 1)) == []
    with pytest.raises(IllegalTransitionError, match="register a TaskExecutor"):
        pool.register_task_executor(location("other"), 2.0)
    with pytest.raises(IllegalTransitionError, match="take requirements"):
        pool.set_requirements(requirements((SMALL, 1)), 2.0)


def test_setting_requirements_of_another_job_raises_an_error() -> None:
    with pytest.raises(ValueError, match=str(OTHER_JOB)):
        pool_that_requires(1).set_requirements(requirements(job_id=OTHER_JOB), 0.0)


def test_slot_pool_reports_every_slot_that_it_gains_or_loses() -> None:
    pool = pool_that_requires(2)
    _, actions = pool.offer_slots(TE, (offer(1, 0), offer(2, 1)), 1.0)
    change = one(actions, SlotsChanged)
    assert [s.allocation_id for s in change.gained] == [allocation(1), allocation(2)]
    change = one(pool.fail_allocation(allocation(1), "broken", 2.0), SlotsChanged)
    assert change == SlotsChanged((), (allocation(1),))


def test_released_task_executor_loses_all_its_slots_without_a_call() -> None:
    """SP-04."""
    pool = pool_that_requires(2)
    pool.register_task_executor(location("other", bundle=1), 0.0)
    accepted(pool, offer(1))
    accepted(pool, offer(2), of="other")
    actions = pool.release_task_executor(TE, "it died", 2.0)
    assert only(actions, FreeSlot) == []
    assert one(actions, SlotsChanged) == SlotsChanged((), (allocation(1),))
    assert only(actions, TaskExecutorWithoutSlots) == [], "there is nobody to let go"
    assert accepted(pool, offer(3)) == []


def test_task_executor_that_comes_back_as_another_process_has_lost_its_slots() -> None:
    """JM-01."""
    pool = pool_that_requires(1)
    accepted(pool, offer(1))
    assert pool.register_task_executor(location("te"), 2.0) == []
    assert pool.slots_of(TE) != ()
    actions = pool.register_task_executor(location("te", pid=2), 3.0)
    assert one(actions, SlotsChanged).lost == (allocation(1),)
    assert accepted(pool, offer(2)) == [2]


def test_failed_slot_is_freed_and_a_task_executor_without_slots_is_reported() -> None:
    """SP-09."""
    pool = pool_that_requires(2)
    accepted(pool, offer(1, 0), offer(2, 1))
    actions = pool.fail_allocation(allocation(1), "broken", 2.0)
    assert one(actions, FreeSlot) == FreeSlot(location("te"), allocation(1), "broken")
    assert only(actions, TaskExecutorWithoutSlots) == []
    assert pool.fail_allocation(allocation(1), "broken", 2.0) == []
    actions = pool.fail_allocation(allocation(2), "broken", 2.0)
    assert one(actions, TaskExecutorWithoutSlots).resource_id == TE


def test_slot_that_the_job_releases_is_replaced_by_a_newly_offered_slot() -> None:
    pool = pool_that_requires(1)
    accepted(pool, offer(1))
    pool.release_slots((allocation(1), allocation(9)), "of an old group", 2.0)
    assert accepted(pool, offer(2, 1)) == [2]


def test_slot_beyond_the_requirements_is_freed_after_the_idle_timeout() -> None:
    """SP-07."""
    pool = pool_that_requires(2)
    accepted(pool, offer(1, 0), offer(2, 1))
    assert pool.next_deadline() is None
    pool.set_requirements(requirements((SMALL, 1)), 10.0)
    assert pool.next_deadline() == 60.0
    assert pool.time_passed(59.9) == []
    actions = pool.time_passed(60.0)
    freed = FreeSlot(location("te"), allocation(2), "not required for 50 s")
    assert one(actions, FreeSlot) == freed
    assert pool.next_deadline() is None


def test_idle_slot_that_is_required_again_before_its_timeout_is_not_freed() -> None:
    """SP-23."""
    pool = pool_that_requires(1)
    accepted(pool, offer(1))
    pool.set_requirements(requirements(), 10.0)
    pool.set_requirements(requirements((SMALL, 1)), 59.0)
    assert pool.time_passed(1000.0) == []


def test_slot_freed_after_its_idle_timeout_leaves_the_slot_pool() -> None:
    """SP-08."""
    pool = pool_that_requires(1)
    accepted(pool, offer(1))
    pool.set_requirements(requirements(), 0.0)
    pool.time_passed(100.0)
    assert pool.slots == ()


def test_restarting_job_accepts_slots_beyond_its_requirements_and_keeps_them() -> None:
    """SP-26."""
    pool = pool_that_requires(0)
    pool.set_job_restarting(True, (), 0.0)
    assert accepted(pool, offer(1, 0)) == [1]
    pool.set_job_restarting(False, (), 0.0)
    assert accepted(pool, offer(2, 1)) == []
    assert len(pool.slots) == 1


def test_new_allocation_in_an_offered_slot_replaces_the_older_allocation() -> None:
    pool = pool_that_requires(1)
    accepted(pool, offer(1, 0))
    assert accepted(pool, offer(2, 0)) == [2]
    assert [s.allocation_id for s in pool.slots] == [allocation(2)]


def test_closing_the_pool_frees_every_slot_and_withdraws_the_requirements() -> None:
    """SP-06."""
    pool = pool_that_requires(2)
    accepted(pool, offer(1, 0), offer(2, 1))
    actions = pool.close("the job ended")
    assert [a.allocation_id for a in only(actions, FreeSlot)] == [allocation(1), allocation(2)]
    assert one(actions, DeclareRequirements).requirements == requirements()
    assert accepted(pool, offer(3, 2)) == []
    assert pool.close("again") == []
    with pytest.raises(IllegalTransitionError, match=r"after it was closed.*\n.*2 slots are req"):
        pool.set_requirements(requirements((SMALL, 1)), 3.0)


def test_closing_a_pool_that_never_declared_requirements_declares_nothing() -> None:
    """SP-06: a pool that declared requirements withdraws them even if they are empty by now,
    because the last declaration may be lost."""
    assert DeclarativeSlotPool(JOB, "JobMaster/jobmaster").close("over") == []
    assert pool_that_requires(0).close("over") == [DeclareRequirements(requirements())]


def test_slot_removed_before_it_was_given_serves_no_request() -> None:
    slots = UnconstrainedSlots(late_slots_for=50.0, spread_out=False)
    slots.request(SlotRequests(SMALL, (SlotRequest(id_of(SlotRequestId, 1)),)), 300.0, 0.0)
    slots.add(slot_on("te", 7), SMALL, 1.0)
    slots.remove(allocation(7), 1.0)
    assert not slots.is_reserved(allocation(7))
    assert slots.serve() == []
