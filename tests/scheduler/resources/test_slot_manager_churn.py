"""SlotManager: it holds on to nothing of jobs, groups and TaskExecutors that are gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.ids import AllocationID, JobID, ResourceID
from flinkray.scheduler.resources.resource_tracker import RELEASED_GROUP_MEMORY
from flinkray.scheduler.resources.slot_manager import SlotManager
from flinkray.scheduler.resources.slot_manager_actions import (
    ReleaseWorkerGroup,
    RequestSlot,
    SlotManagerAction,
    StartTaskExecutor,
    StartWorkerGroup,
    StopTaskExecutor,
)
from flinkray.scheduler.shared.slots import profile_of_slot
from tests.held_entries import held_entries
from tests.scheduler.builders import (
    JOB,
    SMALL,
    group,
    id_of,
    location,
    one,
    only,
    report,
    requirements,
    slot_manager,
)
from tests.scheduler.resources.test_slot_manager_dedicated import SHARED


class Cluster:
    """Carries out what the SlotManager asks for, at once; jobs come and go."""

    def __init__(self) -> None:
        self.manager = slot_manager(SHARED, 2)
        self.now = 0.0
        self.started = 0
        self.held: dict[AllocationID, RequestSlot] = {}

    def carry_out(self, actions: list[SlotManagerAction]) -> None:
        for action in actions:
            self.now += 0.01
            if isinstance(action, StartWorkerGroup):
                self.started += 1
                number, name = action.request_number, group(f"g{self.started}")
                self.carry_out(self.manager.worker_group_started(number, name, self.now))
            elif isinstance(action, StartTaskExecutor):
                self.register(action)
            elif isinstance(action, RequestSlot):
                self.held[action.allocation_id] = action
                self.carry_out(
                    self.manager.slot_request_succeeded(
                        action.slot_id, action.allocation_id, self.now
                    )
                )

    def register(self, action: StartTaskExecutor) -> None:
        self.started += 1
        name = f"te{self.started}"
        slots = action.number_of_slots
        where = replace(location(name, action.bundle_index), worker_group=action.group_id)
        told = report(name, *[None] * slots, profile=profile_of_slot(action.profile, slots))
        self.carry_out(self.manager.register_task_executor(where, action.profile, told, self.now))

    def runs_a_job(self, number: int, *, dedicated: bool) -> None:
        job_id = id_of(JobID, number)
        wanted = requirements((SMALL, 2), job_id=job_id, dedicated=dedicated)
        self.carry_out(self.manager.set_requirements(wanted, self.now))
        held, self.held = self.held, {}
        assert len(held) == 2
        self.carry_out(self.manager.set_requirements(replace(wanted, requirements=()), self.now))
        for allocation_id, asked in held.items():
            self.carry_out(self.manager.slot_freed(asked.slot_id, allocation_id, self.now))
        self.carry_out(self.manager.clear_requirements(job_id, False, self.now))
        self.carry_out(self.manager.clear_requirements(job_id, True, self.now))

    def passes(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.manager.next_check_time()) is not None and due <= until:
            self.now = max(self.now, due)
            self.carry_out(self.manager.check(self.now))
        self.now = until


@pytest.mark.parametrize("dedicated", [False, True])
def test_memory_of_the_slot_manager_does_not_grow_with_the_number_of_past_jobs(
    dedicated: bool,
) -> None:
    """Neither with released groups and jobs nor with slots that were given."""
    cluster = Cluster()
    sizes = []
    for number in range(1, 601):
        cluster.runs_a_job(number, dedicated=dedicated)
        if number % 300 == 0:
            cluster.passes(RELEASED_GROUP_MEMORY + 1)
            sizes.append(held_entries(cluster.manager))
    few, many = sizes
    assert many < few + 200, "the stories of workers and heaps of the index have their limits"


def test_memory_of_the_slot_manager_does_not_grow_during_a_long_job_on_one_worker() -> None:
    """Nor does the heap of workers whose slots are all in use."""
    cluster = Cluster()
    for number in range(1, 2001):
        cluster.runs_a_job(number, dedicated=False)
    assert cluster.started == 2, "one group, one TaskExecutor"
    assert held_entries(cluster.manager) < 1500


def test_task_executor_that_registers_soon_after_its_group_was_released_is_stopped() -> None:
    manager: SlotManager = slot_manager(SHARED, 2)
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    one(manager.clear_requirements(JOB, True, 2.0), ReleaseWorkerGroup)

    late = 2.0 + RELEASED_GROUP_MEMORY
    manager.check(late - 1)
    actions = manager.register_task_executor(location(), SMALL, report("te", None), late - 1)
    assert one(actions, StopTaskExecutor).resource_id == ResourceID("te")

    manager.check(late)
    actions = manager.register_task_executor(location(), SMALL, report("te", None), late)
    assert only(actions, StopTaskExecutor) == []
    assert manager.worker_groups() == (group(),)
    assert one(manager.check(late + 31), ReleaseWorkerGroup).group_id == group()
