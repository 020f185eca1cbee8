"""workers_for: how many workers it takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.requirement_check import redundant_workers_missing, workers_for
from flinkray.scheduler.shared.slots import ResourceRequirement, profile_of_slot

WORKER = ResourceProfile(4.0, 4000)
SLOT = profile_of_slot(WORKER, 4)


def needed(*missing: tuple[float, int]) -> int:
    """Of profiles with so many CPUs and a thousand bytes for each."""
    wanted = [ResourceRequirement(ResourceProfile(c, int(1000 * c)), n) for c, n in missing]
    return workers_for(wanted, WORKER, SLOT)


def test_number_of_workers_is_rounded_up_to_hold_all_static_slots() -> None:
    """SM-10."""
    assert [needed((1.0, n)) for n in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


def test_worker_holds_twice_as_many_slots_of_half_the_size() -> None:
    assert needed((0.5, 8)) == 1
    assert needed((0.5, 9)) == 2


def test_small_slots_use_the_free_room_beside_large_slots_of_a_worker() -> None:
    assert needed((3.0, 2), (1.0, 2)) == 2
    assert needed((3.0, 2), (1.0, 3)) == 3
    assert needed((3.0, 1), (2.0, 2), (0.5, 2)) == 2


def test_slot_too_large_for_any_worker_needs_no_worker() -> None:
    """SM-14."""
    assert needed((5.0, 3)) == 0


@given(
    st.lists(st.tuples(st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]), st.integers(0, 9)))
)
def test_needed_workers_have_room_for_all_missing_slots_and_are_at_most_one_per_slot(
    missing: list[tuple[float, int]],
) -> None:
    number = needed(*missing)
    # what is served by a static slot takes one whole
    cpus = sum((1.0 if 0.5 < cpu <= 1.0 else cpu) * count for cpu, count in missing)
    assert number * WORKER.cpu >= cpus
    assert number <= sum(count for _, count in missing)
    alone: dict[float, int] = {}
    for cpu, count in missing:
        alone[cpu] = alone.get(cpu, 0) + count
    assert number <= sum(needed((cpu, count)) for cpu, count in alone.items())


@given(
    st.lists(
        st.tuples(st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]), st.integers(0, 9)),
        max_size=6,
    )
)
def test_number_of_needed_workers_equals_that_of_first_fit_decreasing_packing(
    missing: list[tuple[float, int]],
) -> None:
    """SM-10: each into the first worker with room for it."""
    sizes = sorted(
        (1.0 if 0.5 < cpu <= 1.0 else cpu for cpu, count in missing for _ in range(count)),
        reverse=True,
    )
    room: list[float] = []
    for size in sizes:
        place = next((index for index, left in enumerate(room) if left >= size), None)
        if place is None:
            room.append(WORKER.cpu - size)
        else:
            room[place] -= size
    assert needed(*missing) == len(room)


def test_number_of_missing_redundant_workers_decreases_with_free_slots() -> None:
    assert [redundant_workers_missing(2, 4, free) for free in (0, 3, 4, 7, 8, 20)] == [
        2,
        2,
        1,
        1,
        0,
        0,
    ]
