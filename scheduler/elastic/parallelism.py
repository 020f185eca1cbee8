"""With which parallelism a job can run in the slots that there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flinkray.core.errors import JobStateError, JobSubmissionError
from flinkray.core.ids import JobVertexID
from flinkray.core.job_options import SCHEDULER
from flinkray.core.key_groups import default_max_parallelism
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    JobGraph,
    JobVertex,
    ParallelismBounds,
    ParallelismRange,
    SchedulerMode,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.shared.requirement_matching import size_of
from flinkray.scheduler.shared.slots import ResourceRequirement

Parallelism = Mapping[JobVertexID, int]


@dataclass(frozen=True, slots=True)
class SharingGroupBounds:
    """How many slots a slot-sharing group needs and can use: as many as its widest vertex has
    subtasks."""

    name: str
    profile: ResourceProfile
    lower: int
    upper: int


def sharing_group_bounds(job_graph: JobGraph) -> tuple[SharingGroupBounds, ...]:
    """Of all groups, in the order of their first vertices."""
    bounds: dict[str, SharingGroupBounds] = {}
    for vertex in job_graph.vertices:
        name = vertex.slot_sharing_group
        known = bounds.get(name)
        bounds[name] = SharingGroupBounds(
            name,
            vertex.slot_profile,
            max(vertex.min_parallelism, known.lower if known else 0),
            max(vertex.parallelism, known.upper if known else 0),
        )
    return tuple(bounds.values())


def parallelism_bounds(job_graph: JobGraph) -> tuple[ParallelismBounds, ...]:
    """Of all vertices of an elastic job; of another job none."""
    if job_graph.scheduler_mode is not SchedulerMode.ADAPTIVE:
        return ()
    return tuple(
        ParallelismBounds(v.vertex_id, v.min_parallelism, v.parallelism) for v in job_graph.vertices
    )


def bounds_for(
    job_graph: JobGraph,
    bounds: Sequence[ParallelismBounds],
    others: ParallelismRange | None,
) -> tuple[ParallelismBounds, ...]:
    """With *others* for the vertices that are not named and can have more than one subtask."""
    if others is None:
        return tuple(bounds)
    named = {one.vertex_id for one in bounds}
    added = (
        ParallelismBounds(vertex.vertex_id, others.lower, others.upper)
        for vertex in job_graph.vertices
        if vertex.vertex_id not in named and not vertex.non_parallel
    )
    return (*bounds, *added)


def with_bounds(job_graph: JobGraph, bounds: Sequence[ParallelismBounds]) -> JobGraph:
    """The graph of an elastic job with other bounds for some of its vertices (DI-20).

    Raises:
        JobStateError: they are not possible; the text says why.
    """
    job_id = job_graph.job_id
    if job_graph.scheduler_mode is not SchedulerMode.ADAPTIVE:
        text = f"its parallelism is fixed: submit it with {SCHEDULER.key}=adaptive"
        raise JobStateError(job_id, text)
    if not bounds:
        raise JobStateError(job_id, "no vertex is named whose parallelism is to change")
    wanted = {one.vertex_id: one for one in bounds}
    unknown = wanted.keys() - {vertex.vertex_id for vertex in job_graph.vertices}
    if unknown:
        raise JobStateError(job_id, f"it has no vertex {min(unknown)}")
    vertices = tuple(
        replace(
            vertex,
            min_parallelism=one.lower,
            parallelism=one.upper,
            max_parallelism=_max_parallelism(vertex, one.upper),
        )
        if (one := wanted.get(vertex.vertex_id)) is not None
        else vertex
        for vertex in job_graph.vertices
    )
    changed = replace(job_graph, vertices=vertices)
    try:
        validate(changed)
    except JobSubmissionError as error:
        raise JobStateError(job_id, error.text) from error
    return changed


def _max_parallelism(vertex: JobVertex, upper: int) -> int | None:
    """So that state stays where it is.  It is left open where it is derived as before: the state
    that the job was restored with may have another one, and is refused where one is set."""
    derived = default_max_parallelism(vertex.parallelism)
    if vertex.max_parallelism is None and default_max_parallelism(upper) == derived:
        return None
    return vertex.max_parallelism or derived


def desired_slots(job_graph: JobGraph) -> tuple[ResourceRequirement, ...]:
    """What the job would like to have."""
    return tuple(ResourceRequirement(b.profile, b.upper) for b in sharing_group_bounds(job_graph))


def parallelism_for(job_graph: JobGraph, slots: Sequence[ResourceProfile]) -> Parallelism | None:
    """Each vertex with as many subtasks as its group has slots, within its bounds; None: the slots
    do not suffice for the lower bounds.

    First each group gets what it must have; what is left goes to the groups in turn, one slot
    at a time to the one with the smallest part of what it can use, so that no group starves.
    """
    bounds = sharing_group_bounds(job_graph)
    counts = [group.lower for group in bounds]
    supply = sorted(Counter(slots).items(), key=lambda item: size_of(item[0]))
    if not _suffices(supply, bounds, counts):
        return None
    open_groups = [i for i, group in enumerate(bounds) if counts[i] < group.upper]
    while open_groups:
        index = min(open_groups, key=lambda i: (counts[i] / bounds[i].upper, i))
        counts[index] += 1
        if not _suffices(supply, bounds, counts):
            counts[index] -= 1
            open_groups.remove(index)
        elif counts[index] == bounds[index].upper:
            open_groups.remove(index)
    by_name = {group.name: count for group, count in zip(bounds, counts, strict=True)}
    return {
        vertex.vertex_id: min(vertex.parallelism, by_name[vertex.slot_sharing_group])
        for vertex in job_graph.vertices
    }


def _suffices(
    supply: Sequence[tuple[ResourceProfile, int]],
    bounds: Sequence[SharingGroupBounds],
    counts: Sequence[int],
) -> bool:
    """Whether the largest profiles, then the smaller ones, find the smallest slots that hold them
    (as :func:`flinkray.scheduler.shared.requirement_matching.missing_slots`, by numbers)."""
    left = [count for _, count in supply]
    order = sorted(range(len(bounds)), key=lambda i: size_of(bounds[i].profile), reverse=True)
    for index in order:
        missing = counts[index]
        for place, (profile, _) in enumerate(supply):
            if missing and left[place] and bounds[index].profile.fits_into(profile):
                taken = min(missing, left[place])
                left[place] -= taken
                missing -= taken
        if missing:
            return False
    return True
