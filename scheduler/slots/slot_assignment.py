"""Which of a job's slots its subtasks get."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.core.ids import AllocationID, WorkerGroupId
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirement,
    ResourceRequirements,
    SameWorkerGroup,
)


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """``slots[i]`` is subtask i's; None: not all are there yet.  ``useless`` stand in the way."""

    slots: tuple[AllocatedSlot, ...] | None
    useless: tuple[AllocationID, ...] = ()


def assign_by_bundle(slots: tuple[AllocatedSlot, ...], parallelism: int) -> SlotAssignment:
    """Subtask i gets the slot in bundle i; all must be of one worker group.

    *slots* in the order in which they came.  A newer slot in the same bundle stands for a
    TaskExecutor that replaced another.  When there are enough slots but of several groups, the
    older groups' are useless: they keep the newest group's from being accepted.
    """
    groups: dict[WorkerGroupId, dict[int, AllocatedSlot]] = {}
    useless: list[AllocationID] = []
    for slot in slots:
        bundles = groups.setdefault(slot.location.worker_group, {})
        before = bundles.pop(slot.location.bundle_index, None)
        if before is not None:
            useless.append(before.allocation_id)
        bundles[slot.location.bundle_index] = slot
    for bundles in reversed(groups.values()):
        if all(i in bundles for i in range(parallelism)):
            return SlotAssignment(tuple(bundles[i] for i in range(parallelism)))
    if len(slots) >= parallelism:
        for bundles in list(groups.values())[:-1]:
            useless += [slot.allocation_id for slot in bundles.values()]
        return SlotAssignment(None, tuple(useless))
    return SlotAssignment(None)


def required_slots(job_graph: JobGraph, job_master_address: str) -> ResourceRequirements:
    """What the job needs from its start to its end: its stages use the same slots in turn."""
    vertex = job_graph.vertices[0]
    return ResourceRequirements(
        job_graph.job_id,
        job_master_address,
        (
            ResourceRequirement(
                vertex.slot_profile,
                vertex.parallelism,
                SameWorkerGroup(vertex.slot_sharing_group, vertex.parallelism),
            ),
        ),
    )
