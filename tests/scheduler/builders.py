"""Short ways to make the records that the scheduling core works on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import TypeVar

from flinkray.core.ids import (
    AbstractID,
    AllocationID,
    ExecutionGraphID,
    JobID,
    JobVertexID,
    ResourceID,
    SlotID,
    WorkerGroupId,
)
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    SPARK,
    Invokable,
    JobGraph,
    JobVertex,
    NoRestart,
    RestartStrategy,
)
from flinkray.scheduler.resources.resource_tracker import SlotManagerSettings
from flinkray.scheduler.resources.slot_manager import SlotManager
from flinkray.scheduler.resources.slot_manager_actions import RequestSlot, SlotManagerAction
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirement,
    ResourceRequirements,
    SameWorkerGroup,
    SlotOffer,
    SlotReport,
    SlotStatus,
    WorkerGroupOwner,
    WorkerLocation,
)
from flinkray.scheduler.slots.slot_requests import SlotAllocated

Id = TypeVar("Id", bound=AbstractID)
T = TypeVar("T")

GIB = 2**30
SMALL = ResourceProfile(1.0, GIB)
LARGE = ResourceProfile(4.0, 4 * GIB)


def id_of(kind: type[Id], number: int) -> Id:
    """The id of that kind and number."""
    return kind(number.to_bytes(16, "big"))


def allocation(number: int) -> AllocationID:
    return id_of(AllocationID, number)


JOB = id_of(JobID, 1)
OTHER_JOB = id_of(JobID, 2)
GRAPH = id_of(ExecutionGraphID, 1)
OTHER_GRAPH = id_of(ExecutionGraphID, 2)
VERTEX = id_of(JobVertexID, 1)
NO_RESTART = NoRestart()
OWN_GROUP = "default"
"""The name of a constraint."""
OWNER = WorkerGroupOwner(JOB, OWN_GROUP)


def sequence(kind: type[Id]) -> Iterable[Id]:
    """Ids from 1000 on, none like another."""
    return (id_of(kind, number) for number in count(1000))


def group(name: str = "g") -> WorkerGroupId:
    return WorkerGroupId(name)


def location(
    name: str = "te", bundle: int = 0, in_group: str = "g", pid: int = 1
) -> WorkerLocation:
    return WorkerLocation(
        ResourceID(name), f"{name}/taskexecutor", "n0", "10.0.0.1", pid, group(in_group), bundle
    )


def requirements(
    *wanted: tuple[ResourceProfile, int], job_id: JobID = JOB, dedicated: bool = False
) -> ResourceRequirements:
    return ResourceRequirements(
        job_id,
        "JobMaster/jobmaster",
        tuple(
            ResourceRequirement(
                profile,
                number,
                SameWorkerGroup(OWN_GROUP, number) if dedicated and number else None,
            )
            for profile, number in wanted
        ),
    )


def offer(number: int, index: int = 0, profile: ResourceProfile = SMALL) -> SlotOffer:
    return SlotOffer(allocation(number), index, profile)


def allocated_slot(
    number: int, bundle: int = 0, in_group: str = "g", name: str = ""
) -> AllocatedSlot:
    where = location(name or f"te{bundle}-{in_group}", bundle, in_group)
    return AllocatedSlot(allocation(number), 0, SMALL, where)


def slot_on(
    name: str, number: int, index: int = 0, profile: ResourceProfile = SMALL
) -> AllocatedSlot:
    """A slot of that profile on the TaskExecutor of that name."""
    return AllocatedSlot(allocation(number), index, profile, location(name))


def slot_id(name: str, index: int = 0) -> SlotID:
    return SlotID(ResourceID(name), index)


def report(
    name: str, *held: tuple[JobID, AllocationID] | None, profile: ResourceProfile = SMALL
) -> SlotReport:
    """A report with one entry per slot: None is a free one."""
    return SlotReport(
        tuple(
            SlotStatus(slot_id(name, i), profile, *(entry or (None, None)))
            for i, entry in enumerate(held)
        )
    )


def spark_vertex(
    number: int = 1, parallelism: int = 2, profile: ResourceProfile = SMALL, name: str = "stage"
) -> JobVertex:
    invokable = Invokable(SPARK, b"code")
    return JobVertex(id_of(JobVertexID, number), name, parallelism, profile, invokable)


def spark_job(
    *vertices: JobVertex, restart_strategy: RestartStrategy | None = NO_RESTART
) -> JobGraph:
    return JobGraph(JOB, "a job", vertices or (spark_vertex(),), restart_strategy)


def only(actions: Iterable[object], kind: type[T]) -> list[T]:
    """The actions of one kind, in order."""
    return [action for action in actions if isinstance(action, kind)]


def one(actions: Iterable[object], kind: type[T]) -> T:
    """The single action of that kind."""
    (found,) = only(actions, kind)
    return found


def slot_manager(worker: ResourceProfile, slots: int, **settings: object) -> SlotManager:
    """Return a SlotManager whose workers have the profile *worker* and *slots* slots each."""
    ids = iter(sequence(AllocationID))
    fixed = SlotManagerSettings(worker, slots, lambda: next(ids))
    return SlotManager(replace(fixed, **settings))  # type: ignore[arg-type]


def confirm(manager: SlotManager, actions: list[SlotManagerAction], now: float = 2.0) -> None:
    """The TaskExecutors give all slots that *actions* ask for."""
    for asked in only(actions, RequestSlot):
        manager.slot_request_succeeded(asked.slot_id, asked.allocation_id, now)


def served(actions: Iterable[object]) -> dict[int, int]:
    """Number of the request -> number of the allocation."""
    return {
        int.from_bytes(a.request_id.value, "big"): int.from_bytes(a.slot.allocation_id.value, "big")
        for a in only(actions, SlotAllocated)
    }
