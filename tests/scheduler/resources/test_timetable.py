"""Timetable: at most one per key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flinkray.scheduler.resources.resource_tracker import Timetable


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "remove", "pop"]), st.integers(0, 5), st.integers(0, 50)),
        max_size=300,
    )
)
def test_timetable_returns_the_same_deadlines_as_a_plain_dictionary(
    steps: list[tuple[str, int, int]],
) -> None:
    deadlines, model = Timetable(), dict[int, float]()
    for step, key, time in steps:
        if step == "set":
            deadlines.set(key, float(time))
            model[key] = float(time)
        elif step == "remove":
            deadlines.remove(key)
            model.pop(key, None)
        else:
            due = deadlines.pop_due(float(time))
            assert sorted(due) == sorted(k for k, when in model.items() if when <= time)  # type: ignore[type-var]
            assert [model[k] for k in due] == sorted(model[k] for k in due)  # type: ignore[index]
            model = {k: when for k, when in model.items() if when > time}
        assert deadlines.next() == min(model.values(), default=None)


def test_timetable_keeps_deadlines_while_another_key_changes_many_times() -> None:
    """Only outdated entries are removed now and then."""
    deadlines = Timetable()
    deadlines.set("late", 5000.0)
    deadlines.set("early", 10.0)
    for turn in range(500):
        deadlines.set("changing", 1000.0 + turn)
    assert deadlines.next() == 10.0
    assert deadlines.pop_due(2000.0) == ["early", "changing"]
    assert deadlines.pop_due(5000.0) == ["late"]


def test_equal_timetable_deadlines_come_in_the_order_they_were_set() -> None:
    deadlines = Timetable()
    names = [f"key {number}" for number in range(20, 0, -1)]
    for name in names:
        deadlines.set(name, 3.0)
    assert deadlines.pop_due(2.9) == []
    assert deadlines.pop_due(3.0) == names


def test_order_of_equal_deadlines_is_kept_when_outdated_deadlines_are_removed() -> None:
    deadlines = Timetable()
    times = [100.0 + number * 7 % 40 for number in range(40)]
    for number, time in enumerate(times):
        deadlines.set(time, time)
        for turn in range(5):
            deadlines.set("changing", (number * 5 + turn) * 7.0 % 151)
    deadlines.remove("changing")
    assert deadlines.pop_due(1000.0) == sorted(times)
