"""slot_sharing_groups: which subtasks share a slot."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.ids import ExecutionVertexID, JobVertexID
from flinkray.scheduler.slots.slot_sharing import Producers, SharingVertex, slot_sharing_groups
from tests.scheduler.builders import LARGE, SMALL, id_of


def vertex(
    number: int,
    parallelism: int,
    *,
    group: str = "default",
    located_with: str | None = None,
    producers: Producers | None = None,
) -> SharingVertex:
    return SharingVertex(
        id_of(JobVertexID, number), parallelism, group, SMALL, located_with, producers
    )


def shares(*vertices: SharingVertex) -> list[list[tuple[int, int]]]:
    """Per slot: (number of the vertex, index of the subtask)."""
    return [
        [(int.from_bytes(v.job_vertex_id.value, "big"), v.subtask_index) for v in group.vertices]
        for group in slot_sharing_groups(vertices)
    ]


def test_only_subtasks_of_different_vertices_share_a_slot() -> None:
    """SP-20."""
    assert shares(vertex(1, 2), vertex(2, 3)) == [[(1, 0), (2, 0)], [(1, 1), (2, 1)], [(2, 2)]]


def test_vertices_of_different_slot_sharing_groups_never_share_a_slot() -> None:
    """SP-20."""
    assert shares(vertex(1, 1), vertex(2, 1, group="other")) == [[(1, 0)], [(2, 0)]]


def test_subtask_shares_the_slot_of_its_first_producer() -> None:
    """Of four producers read in pairs, the consumers sit beside the first of each pair."""

    def first_of_pair(subtask: ExecutionVertexID) -> list[ExecutionVertexID]:
        return [ExecutionVertexID(id_of(JobVertexID, 1), 2 * subtask.subtask_index)]

    assert shares(vertex(1, 4), vertex(2, 2, producers=first_of_pair)) == [
        [(1, 0), (2, 0)],
        [(1, 1)],
        [(1, 2), (2, 1)],
        [(1, 3)],
    ]


def test_co_located_subtasks_share_a_slot_whatever_their_producers() -> None:
    """EG-09: the constraint beats the preference."""

    def crosswise(subtask: ExecutionVertexID) -> list[ExecutionVertexID]:
        return [ExecutionVertexID(id_of(JobVertexID, 1), 1 - subtask.subtask_index)]

    slots = shares(
        vertex(1, 2, located_with="together"),
        vertex(2, 2),
        vertex(3, 2, located_with="together", producers=crosswise),
    )
    assert [{(n, i) for n, i in slot if n != 2} for slot in slots] == [
        {(1, 0), (3, 0)},
        {(1, 1), (3, 1)},
    ]


def test_co_location_across_sharing_groups_or_parallelisms_is_refused() -> None:
    """EG-09."""
    with pytest.raises(ValueError, match="same slot-sharing group and the same parallelism"):
        shares(vertex(1, 2, located_with="x"), vertex(2, 3, located_with="x"))
    with pytest.raises(ValueError, match="co-location group 'x'"):
        shares(vertex(1, 2, located_with="x"), vertex(2, 2, located_with="x", group="other"))


def test_two_profiles_in_a_slot_sharing_group_are_refused() -> None:
    large = SharingVertex(id_of(JobVertexID, 2), 1, "default", LARGE)
    with pytest.raises(ValueError, match="its slots need one profile"):
        slot_sharing_groups([vertex(1, 1), large])


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from("ab"), st.booleans()), max_size=6),
    st.randoms(use_true_random=False),
)
def test_each_subtask_gets_one_slot_and_no_slot_has_two_subtasks_of_a_vertex(
    shapes: list[tuple[int, str, bool]], random: object
) -> None:
    """SP-20, EG-09: as many slots as the widest vertex of each group has subtasks."""
    choose = random.randrange  # type: ignore[attr-defined]
    vertices: list[SharingVertex] = []
    for number, (parallelism, group, located) in enumerate(shapes):
        earlier = [v for v in vertices if v.slot_sharing_group == group]

        def producers(
            subtask: ExecutionVertexID, earlier: list[SharingVertex] = earlier
        ) -> list[ExecutionVertexID]:
            return [ExecutionVertexID(v.vertex_id, choose(v.parallelism)) for v in earlier]

        where = f"{group}{parallelism}" if located else None
        vertices.append(
            vertex(number, parallelism, group=group, located_with=where, producers=producers)
        )
    slots = slot_sharing_groups(vertices)
    seen = Counter(subtask for slot in slots for subtask in slot.vertices)
    assert seen == {
        ExecutionVertexID(v.vertex_id, i): 1 for v in vertices for i in range(v.parallelism)
    }
    widest: dict[str, int] = {}
    for v in vertices:
        widest[v.slot_sharing_group] = max(widest.get(v.slot_sharing_group, 0), v.parallelism)
    assert len(slots) == sum(widest.values())
    slot_of = {subtask: i for i, slot in enumerate(slots) for subtask in slot.vertices}
    for slot in slots:
        assert len({subtask.job_vertex_id for subtask in slot.vertices}) == len(slot.vertices)
    located_at: dict[tuple[str, int], int] = {}
    for v in vertices:
        for i in range(v.parallelism):
            if v.co_location_group is not None:
                here = slot_of[ExecutionVertexID(v.vertex_id, i)]
                assert located_at.setdefault((v.co_location_group, i), here) == here
