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


@given(
    st.lists(
        st.tuples(st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0]), st.integers(0, 9)),
        max_size=6,
    )
)
def test_number_of_needed_workers_equals_that_of_first_fit_decreasing_packing(
    missing: list[tuple[float, int]],
) -> None:
    """SM-10, SM-14: each into the first worker with room for it; none has room for 5 CPUs, and a
    static slot is served whole."""
    fitting = [(1.0 if 0.5 < cpu <= 1.0 else cpu, count) for cpu, count in missing if cpu <= 4.0]
    sizes = sorted((cpu for cpu, count in fitting for _ in range(count)), reverse=True)
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
