"""Computes the parallelism with which a job can run in the available slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flinkray.core.errors import JobStateError, JobSubmissionError
from flinkray.core.ids import JobVertexID
from flinkray.core.job_options import SCHEDULER
from flinkray.core.key_group_ranges import default_max_parallelism
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    JobGraph,
    JobVertex,
    ParallelismBounds,
    ParallelismRange,
    SchedulerMode,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.shared.slots import ResourceRequirement, size_of

Parallelism = Mapping[JobVertexID, int]

NOT_KNOWN: Parallelism = {}


@dataclass(frozen=True, slots=True)
class SharingGroupBounds:
    """How many slots a slot-sharing group needs (*lower*) and can use (*upper*).
    A group needs as many slots as its widest vertex has subtasks."""

    name: str
    profile: ResourceProfile
    lower: int
    upper: int


def sharing_group_bounds(job_graph: JobGraph) -> tuple[SharingGroupBounds, ...]:
    """Return the bounds of all slot-sharing groups, in the order of their first vertices."""
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
    """Return the parallelism bounds of all vertices of an elastic job; empty for other jobs."""
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
    """Return *bounds*, extended by the range *others* for each vertex that *bounds* does not name
    and that can have more than one subtask. If *others* is None, *bounds* is returned unchanged."""
    if others is None:
        return tuple(bounds)
    named = {one.vertex_id for one in bounds}
    added = (
        ParallelismBounds(vertex.vertex_id, others.lower, others.upper)
        for vertex in job_graph.vertices
        if vertex.vertex_id not in named and not vertex.non_parallel
    )
    return (*bounds, *added)


def with_bounds(
    job_graph: JobGraph,
    bounds: Sequence[ParallelismBounds],
    max_parallelism: Parallelism = NOT_KNOWN,
) -> JobGraph:
    """Return the graph of an elastic job with other bounds for some of its vertices (DI-20).
    *max_parallelism*: number of key groups of vertices with state; for other vertices the graph's
    number counts.  Raises JobStateError if the bounds are not possible; the text says why."""
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
    vertices = []
    for vertex in job_graph.vertices:
        one = wanted.get(vertex.vertex_id)
        if one is not None:
            most = max_parallelism.get(vertex.vertex_id, vertex.key_groups)
            if one.upper > most and not vertex.non_parallel:
                raise JobStateError(job_id, _too_much(vertex, one, most))
            vertex = _with_bounds(vertex, one, most)
        vertices.append(vertex)
    changed = replace(job_graph, vertices=tuple(vertices))
    try:
        validate(changed)
    except JobSubmissionError as error:
        raise JobStateError(job_id, error.text) from error
    return changed


def _too_much(vertex: JobVertex, bounds: ParallelismBounds, most: int) -> str:
    return (
        f"vertex {vertex.name!r} cannot have {bounds.lower} to {bounds.upper} subtasks: its max "
        f"parallelism is {most}, which cannot be changed for a running job or its state. Ask for "
        f"{most} at most"
    )


def _with_bounds(vertex: JobVertex, bounds: ParallelismBounds, most: int) -> JobVertex:
    """Return the vertex with other bounds. The max parallelism is unchanged, so that keys keep
    their key groups."""
    is_derived_so = vertex.max_parallelism or default_max_parallelism(bounds.upper) == most
    return replace(
        vertex,
        min_parallelism=bounds.lower,
        parallelism=bounds.upper,
        derived_max_parallelism=None if is_derived_so else most,
    )


def within(job_graph: JobGraph, max_parallelism: Parallelism) -> JobGraph:
    """Return the graph with upper bounds lowered to *max_parallelism*: the number of key groups of
    each vertex with state, which cannot be divided among more subtasks. The vertices of a
    co-location group get the same upper bound."""
    uppers = {
        vertex.vertex_id: min(
            vertex.parallelism, max_parallelism.get(vertex.vertex_id, vertex.parallelism)
        )
        for vertex in job_graph.vertices
    }
    for group in _co_located(job_graph):
        uppers |= dict.fromkeys(group, min(uppers[vertex_id] for vertex_id in group))
    vertices = [
        replace(vertex, parallelism=upper, min_parallelism=min(vertex.min_parallelism, upper))
        if (upper := uppers[vertex.vertex_id]) < vertex.parallelism
        else vertex
        for vertex in job_graph.vertices
    ]
    return replace(job_graph, vertices=tuple(vertices))


def _co_located(job_graph: JobGraph) -> Iterable[list[JobVertexID]]:
    groups: dict[str, list[JobVertexID]] = {}
    for vertex in job_graph.vertices:
        if vertex.co_location_group is not None:
            groups.setdefault(vertex.co_location_group, []).append(vertex.vertex_id)
    return groups.values()


def desired_slots(job_graph: JobGraph) -> tuple[ResourceRequirement, ...]:
    """Return the slots that the job needs to run with the upper bounds of its parallelism."""
    return tuple(ResourceRequirement(b.profile, b.upper) for b in sharing_group_bounds(job_graph))


def parallelism_for(job_graph: JobGraph, slots: Sequence[ResourceProfile]) -> Parallelism | None:
    """Return the parallelism of each vertex with these slots; None if they do not suffice for the
    lower bounds. A vertex gets as many subtasks as its slot-sharing group gets slots, within its
    bounds. Slots beyond the lower bounds go one at a time to the group with the smallest share of
    what it can use."""
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
    """Return whether the slots suffice for *counts* slots of each group. The groups with the
    largest slots come first, and each takes the smallest slots that fit. *supply*: (profile, number
    of slots), smallest profiles first."""
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
