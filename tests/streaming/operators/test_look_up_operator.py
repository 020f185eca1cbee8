"""Records that look rows up in a table."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.operator_errors import operator_error
from flinkray.streaming.operators.look_up import DuplicateKeyError, LookUpOperator
from flinkray.streaming.operators.task_services import LookUpRoom, TaskServices
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Watermark, WatermarkStatus
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import (
    BY_FIRST,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    failure,
    unlike_five,
)


def both(value: Any, row: Any) -> Any:
    return value, row and row[1]


def operator(function: Any = both, **keys: Keys) -> LookUpOperator:
    return LookUpOperator(
        function, keys.get("keys", BY_FIRST), keys.get("of_table", BY_FIRST), "planes"
    )


def harness(function: Any = both, **context: Any) -> OperatorHarness:
    return OperatorHarness(operator(function), keyed=True, **context)


def end_table(h: OperatorHarness) -> None:
    h.watermark(MAX_TIMESTAMP, on=1)
    h.run_mail()


def test_look_up_pairs_a_record_with_the_table_row_of_its_key_or_none() -> None:
    h = harness()
    h.process(("a", "A"), ("b", "B"), on=1)
    end_table(h)
    h.process(("a", 1), ("c", 2), at=[7, 8])
    assert h.output() == [Record((("a", 1), "A"), 7), Record((("c", 2), None), 8)]


def test_look_up_records_wait_for_the_end_of_the_table_in_order_of_their_key() -> None:
    h = harness()
    h.process(("a", 1), ("b", 2), at=[7, 3])
    h.process(("b", "B"), on=1)
    h.process_columns(columns([9, 5], k=["a", "b"], n=[3, 4]))
    h.process(("a", "A"), on=1)
    h.process(("a", 5))
    assert h.output() == []
    end_table(h)
    found = [(value[0], value[1], row, time) for (value, row), time in h.output()]
    assert [one for one in found if one[0] == "a"] == [
        ("a", 1, "A", 7), ("a", 3, "A", 9), ("a", 5, "A", None),
    ]  # fmt: skip
    assert [one for one in found if one[0] == "b"] == [("b", 2, "B", 3), ("b", 4, "B", 5)]


def test_table_of_columns_is_looked_up_by_its_key_column() -> None:
    h = OperatorHarness(operator(of_table=Keys("tailnum")), keyed=True)
    h.process_columns(columns(tailnum=["a", "b"], built=[1999, 2004]), on=1)
    end_table(h)
    h.process(("b", 1))
    assert h.values() == [(("b", 1), 2004)]


def test_watermarks_of_records_do_not_overtake_waiting_records() -> None:
    h = harness()
    h.process(("a", 1), at=5)
    h.watermark(10)
    h.watermark(20)
    h.watermark(15, on=1)
    h.status(True, on=1)
    assert h.output() == []
    end_table(h)
    assert h.output() == [Record((("a", 1), None), 5), Watermark(20)]
    h.watermark(30)
    assert h.output() == [Watermark(30)]


def test_idleness_is_forwarded_once_no_record_waits_for_a_look_up() -> None:
    h = harness()
    h.process(("a", 1), at=5)
    h.watermark(10)
    h.status(True)
    assert h.output() == []
    end_table(h)
    assert h.output() == [Record((("a", 1), None), 5), Watermark(10), WatermarkStatus(True)]


def test_idle_period_before_the_end_of_a_look_up_table_is_not_forwarded() -> None:
    h = harness()
    h.status(True)
    h.status(False)
    end_table(h)
    assert h.output() == []


def test_look_up_table_does_not_delay_the_watermark_once_it_is_complete() -> None:
    h = harness()
    end_table(h)
    assert_time_passes_and_the_end_adds_nothing(h)


def test_many_waiting_records_are_looked_up_in_portions() -> None:
    h = harness(is_head=True)
    h.process(*((number, number) for number in range(1000)), at=3)
    h.process(*((number, -number) for number in range(0, 1000, 2)), on=1)
    h.watermark(4)
    h.watermark(MAX_TIMESTAMP, on=1)
    first = h.output()
    assert 0 < len(first) < 1000
    h.run_mail()
    *rest, last = h.output()
    assert last == Watermark(4)
    answers = {value[0]: row for (value, row), _ in [*first, *rest]}
    assert answers == {n: None if n % 2 else -n for n in range(1000)}


@pytest.mark.parametrize("unknown", [None, (None, 1), (1, None)])
def test_null_key_of_a_look_up_record_matches_no_table_row(unknown: Any) -> None:
    """Two table rows with a missing key are no duplicates."""
    h = harness()
    h.process((unknown, "A"), (unknown, "B"), on=1)
    end_table(h)
    h.process((unknown, 1))
    assert h.values() == [((unknown, 1), None)]


def test_look_up_matches_equal_keys_of_different_types() -> None:
    h = harness()
    h.process((1, "one"), (float("nan"), "no number"), on=1)
    end_table(h)
    h.process((1.0, "x"), (True, "y"))
    assert [row for _, row in h.values()] == ["one", "one"]
    h.process((float("nan"), "z"))
    assert [row for _, row in h.values()] == ["no number"]


@pytest.mark.parametrize("before", [0, 2])
def test_duplicate_table_key_raises_an_error_that_names_the_key(before: int) -> None:
    """Whether the rows come in one batch or in two."""
    h = harness()
    rows = [(1, "one"), (2, "two"), (1.0, "eins"), (3, "three")]
    h.process(*rows[:before], on=1)
    with pytest.raises(DuplicateKeyError) as caught:
        h.process(*rows[before:], on=1)
    assert "the table 'planes' has several rows of the key 1.0" in str(caught.value)
    assert operator_error(caught.value, "the task").record == "(1.0, 'eins')"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_row_changed_by_a_function_does_not_affect_later_look_ups() -> None:
    def changing(value: Any, row: Any) -> Any:
        row.append(value[1])
        return row

    h = harness(changing)
    h.process(["a", "A"], on=1)
    h.process(("a", 1))
    end_table(h)
    h.process(("a", 2))
    assert h.values() == [["a", "A", 1], ["a", "A", 2]]


class Counting:
    """Has a state of its own, and says when it is closed."""

    closed = False

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", default_value=0))

    def look_up(self, value: Any, row: Any) -> Any:
        self.count.update(self.count.value() + 1)
        return value[0], self.count.value()

    def close(self) -> None:
        self.closed = True


def test_look_up_function_object_has_keyed_state_and_is_closed() -> None:
    counting = Counting()
    h = harness(counting)
    h.process(("a", 1), ("b", 1), ("a", 1))
    end_table(h)
    h.process(("a", 1))
    assert sorted(h.values()) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    h.close()
    assert counting.closed


def test_table_rows_and_waiting_records_are_restored() -> None:
    h = harness()
    h.process(("a", 1), ("b", 2), ("a", 3), at=4)
    h.process(("a", "A"), on=1)
    later = harness(restore=h.snapshot())
    later.process(("b", "B"), on=1)
    later.process(("b", 4), at=9)
    end_table(later)
    assert sorted(later.records()) == [
        ((("a", 1), "A"), 4), ((("a", 3), "A"), 4), ((("b", 2), "B"), 4), ((("b", 4), "B"), 9),
    ]  # fmt: skip


def test_restored_look_up_waits_for_the_end_of_its_stored_table() -> None:
    h = harness()
    h.process(("a", "A"), on=1)
    h.process(("a", 0))
    end_table(h)
    h.output()
    later = harness(restore=h.snapshot())
    later.process(("a", 1))
    later.watermark(5)
    assert later.output() == []
    end_table(later)
    assert later.output() == [Record((("a", 1), "A"), None), Watermark(5)]


def test_table_row_read_again_after_a_restore_is_refused_as_a_duplicate() -> None:
    h = harness()
    h.process(("a", "A"), on=1)
    later = harness(restore=h.snapshot())
    with pytest.raises(DuplicateKeyError, match="'a'"):
        later.process(("a", "A"), on=1)


def test_error_in_a_look_up_names_the_record() -> None:
    def strict(value: Any, row: Any) -> Any:
        return unlike_five(value)

    def at_once(h: OperatorHarness) -> None:
        end_table(h)
        h.process(("a", 4), ("a", 5), ("a", 6))

    def later(h: OperatorHarness) -> None:
        h.process(("a", 4), ("a", 5), ("a", 6))
        end_table(h)

    for act in (at_once, later):
        assert failure(operator(strict), act, keyed=True).record == "('a', 5)"


# --- room for records that wait -------------------------------------------------------------------


class Room(LookUpRoom):
    """For three."""

    most = 3

    def __init__(self) -> None:
        self.told: list[str] = []

    def full(self) -> None:
        self.told.append("full")

    def free(self) -> None:
        self.told.append("free")


def in_room(**context: Any) -> tuple[OperatorHarness, Room]:
    room = Room()

    class Services(TaskServices):
        def look_up_room(self, operator_id: str) -> LookUpRoom:
            return room

    return OperatorHarness(operator(), keyed=True, services=Services(), **context), room


def test_look_up_reports_once_that_too_many_records_wait_and_once_that_none_waits() -> None:
    h, room = in_room()
    h.process(("a", 1), ("b", 2))
    assert room.told == []
    h.process(("a", 3))
    h.process(("a", 4))
    assert room.told == ["full"]
    h.process(("a", "A"), on=1)
    end_table(h)
    assert room.told == ["full", "free"]
    h.process(*[("a", n) for n in range(10)])
    assert room.told == ["full", "free"]


def test_restored_look_up_reports_at_once_that_too_many_records_wait() -> None:
    h, room = in_room()
    h.process(("a", 1))
    assert room.told == []
    _, again = in_room(restore=h.snapshot())
    assert again.told == ["full"]


def test_restored_look_up_reports_free_memory_only_when_its_table_is_complete_again() -> None:
    h, _ = in_room()
    h.process(("a", 1))
    end_table(h)
    again, room = in_room(restore=h.snapshot())
    assert room.told == []
    end_table(again)
    assert room.told == ["free"]
