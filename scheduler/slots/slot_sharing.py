"""Decides which subtasks share a slot.
Subtasks of different vertices of one *slot-sharing group* may share a slot; subtasks of the same
vertex never do (SP-20).  So a group needs as many slots as its widest vertex has subtasks.
Subtasks with the same index of the vertices of one *co-location group* must share a slot (EG-09).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flinkray.core.ids import ExecutionVertexID, JobVertexID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import SameWorkerGroup

Producers = Callable[[ExecutionVertexID], Iterable[ExecutionVertexID]]


@dataclass(frozen=True, slots=True)
class SharingVertex:
    """The properties of a job vertex that decide which subtasks share a slot."""

    vertex_id: JobVertexID
    parallelism: int
    slot_sharing_group: str
    """Vertices of different groups never share a slot."""
    slot_profile: ResourceProfile
    """Profile of the group's slots; equal for all vertices of a group."""
    co_location_group: str | None = None
    producers: Producers | None = None
    """Returns producers near which a subtask should run; None if the place does not matter."""
    needs_worker_group: bool = False
    """Whether subtask i must be in bundle i of a worker group.
    Then all slots of its slot-sharing group are bundles of this worker group."""


@dataclass(frozen=True, slots=True)
class ExecutionSlotSharingGroup:
    """Subtasks that share one slot."""

    vertices: tuple[ExecutionVertexID, ...]
    """At most one subtask of each vertex, in the order of the vertices."""
    profile: ResourceProfile
    constraint: SameWorkerGroup | None = None
    """Constraint if the slots of the slot-sharing group are bundles of a worker group, or None."""
    bundle: int = 0
    """With a constraint: index of the bundle of this slot."""


@dataclass(slots=True)
class _Open:
    """A slot-sharing group while subtasks are being assigned to its slots."""

    profile: ResourceProfile
    slots: list[dict[JobVertexID, ExecutionVertexID]]
    slot_of: dict[ExecutionVertexID, int]
    co_located: dict[tuple[str, int], int]
    """(co-location group, subtask index) -> index of the slot."""


def slot_sharing_groups(vertices: Sequence[SharingVertex]) -> tuple[ExecutionSlotSharingGroup, ...]:
    """Return all slots that the vertices need, each with the subtasks that share it. *vertices*
    must be in topological order.  In a group that needs a worker group, subtask i of each vertex
    gets slot i.  In other groups a subtask gets, in this order of preference: the slot of its
    co-location group; the slot of one of its producers; the slot with its own index; the first slot
    without a subtask of its vertex.  The time is linear.

    Raises ValueError if the vertices of a co-location group differ in slot-sharing group or
    parallelism, or the vertices of a slot-sharing group in profile.
    """
    _refuse_contradictions(vertices)
    groups: dict[str, _Open] = {}
    bundled = {v.slot_sharing_group for v in vertices if v.needs_worker_group}
    for vertex in vertices:
        group = groups.get(vertex.slot_sharing_group)
        if group is None:
            group = _Open(vertex.slot_profile, [], {}, {})
            groups[vertex.slot_sharing_group] = group
        if vertex.slot_sharing_group in bundled:
            _place_by_index(vertex, group)
        else:
            _place(vertex, group)
    return tuple(
        ExecutionSlotSharingGroup(
            tuple(slot.values()),
            group.profile,
            SameWorkerGroup(name, len(group.slots)) if name in bundled else None,
            bundle if name in bundled else 0,
        )
        for name, group in groups.items()
        for bundle, slot in enumerate(group.slots)
    )


def _place_by_index(vertex: SharingVertex, group: _Open) -> None:
    for index in range(vertex.parallelism):
        if index == len(group.slots):
            group.slots.append({})
        group.slots[index][vertex.vertex_id] = ExecutionVertexID(vertex.vertex_id, index)


def _place(vertex: SharingVertex, group: _Open) -> None:
    subtasks = [ExecutionVertexID(vertex.vertex_id, i) for i in range(vertex.parallelism)]
    taken: set[int] = set()

    def put(subtask: ExecutionVertexID, index: int) -> None:
        taken.add(index)
        group.slots[index][vertex.vertex_id] = subtask
        group.slot_of[subtask] = index
        if vertex.co_location_group is not None:
            group.co_located[vertex.co_location_group, subtask.subtask_index] = index

    homeless = []
    for subtask in subtasks:
        index = None
        if vertex.co_location_group is not None:
            index = group.co_located.get((vertex.co_location_group, subtask.subtask_index))
        if index is None:
            homeless.append(subtask)
        else:
            put(subtask, index)
    strangers = []
    for subtask in homeless:
        near = vertex.producers(subtask) if vertex.producers is not None else ()
        for producer in near:
            index = group.slot_of.get(producer)
            if index is not None and index not in taken:
                put(subtask, index)
                break
        else:
            strangers.append(subtask)
    last = []
    for subtask in strangers:
        index = subtask.subtask_index
        if index < len(group.slots) and index not in taken:
            put(subtask, index)
        else:
            last.append(subtask)
    free = (index for index in range(len(group.slots)) if index not in taken)
    for subtask in last:
        index = next(free, None)
        if index is None:
            index = len(group.slots)
            group.slots.append({})
        put(subtask, index)


def _refuse_contradictions(vertices: Sequence[SharingVertex]) -> None:
    first_of_sharing: dict[str, SharingVertex] = {}
    first_of_location: dict[str, SharingVertex] = {}
    for vertex in vertices:
        first = first_of_sharing.setdefault(vertex.slot_sharing_group, vertex)
        if first.slot_profile != vertex.slot_profile:
            raise ValueError(
                f"the vertices {first.vertex_id} ({first.slot_profile}) and {vertex.vertex_id} "
                f"({vertex.slot_profile}) are in slot-sharing group {vertex.slot_sharing_group!r}: "
                "its slots need one profile"
            )
        if vertex.co_location_group is None:
            continue
        first = first_of_location.setdefault(vertex.co_location_group, vertex)
        if (first.slot_sharing_group, first.parallelism) != (
            vertex.slot_sharing_group,
            vertex.parallelism,
        ):
            raise ValueError(
                f"the vertices {first.vertex_id} and {vertex.vertex_id} are in co-location group "
                f"{vertex.co_location_group!r}: they need the same slot-sharing group and the same "
                "parallelism"
            )
