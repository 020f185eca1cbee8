"""Tables on the heap whose places nearly all change: they note nothing for some captures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flinkray.state import (
    HeapKeyedStateBackend,
    KeyedSnapshot,
    ListStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state.heap_tables import HeapValueTable

VALUES: Any = ValueStateDescriptor("values")


def extended(left: list[int], right: list[int]) -> list[int]:
    left.extend(right)
    return left


SUMS: Any = ReducingStateDescriptor("values", extended)


class Busy:
    """A backend with one value table, of which everything changes between captures."""

    def __init__(self, descriptor: Any = VALUES, **values: Any) -> None:
        self.descriptor = descriptor
        self.backend = HeapKeyedStateBackend()
        self.state = self.backend.state(descriptor)
        table = self.backend.value_table(descriptor)
        assert isinstance(table, HeapValueTable)
        self.table = table
        self.put(**values)
        self.number = 0

    def put(self, **values: Any) -> None:
        for key, value in values.items():
            self.table.put(key, value)

    def update(self, **values: Any) -> None:
        for key, value in values.items():
            self.backend.context.key = key
            self.state.update(value)

    def capture(self) -> Any:
        self.number += 1
        return self.backend.capture(self.number, self.number - 1 or None)

    def rest(self) -> KeyedSnapshot:
        """The table does from now on; what it held."""
        whole = self.capture().write()
        self.put(**{place: self.table.get(place) for place in self.table.places()})
        self.capture().write()
        assert not self.notes
        return whole  # type: ignore[no-any-return]

    @property
    def notes(self) -> bool:
        return self.table._changed is not None

    def held(self, *snapshots: KeyedSnapshot) -> dict[Any, Any]:
        """What is restored from these."""
        copy = HeapKeyedStateBackend()
        copy.restore(snapshots)
        return dict(copy.value_table(self.descriptor).entries())


def is_whole(snapshot: KeyedSnapshot) -> bool:
    return snapshot.tables["values"].whole


def test_table_whose_values_all_change_stops_tracking_changes_and_is_written_whole() -> None:
    busy = Busy(a=0, b=0)
    busy.capture().write()
    for rest in (2, 4, 8, 16, 16):
        assert busy.notes
        busy.put(a=rest, b=rest)
        first = busy.capture()
        busy.put(a=-1)
        assert not is_whole(first.write())
        for number in range(rest):
            assert not busy.notes
            number = min(number, rest - 2)  # at the end of the rest nothing has changed
            busy.put(a=number, b=number, new=number)
            later = busy.capture()
            busy.put(a=-1, another=-1)
            busy.table.remove("new")
            snapshot = later.write()
            assert is_whole(snapshot)
            assert busy.held(snapshot) == {"a": number, "b": number, "new": number}
            busy.table.remove("another")
    assert busy.notes


def test_table_tracks_changes_again_when_only_a_part_of_its_values_changes() -> None:
    busy = Busy(a=0, b=0, c=0)
    busy.rest()
    for number in range(100):
        busy.put(a=number, b=number)
        snapshot = busy.capture().write()
        assert not busy.notes
        assert is_whole(snapshot)
        assert busy.held(snapshot) == {"a": number, "b": number, "c": 0}
    for number in range(16):
        busy.put(a=-number)
        snapshot = busy.capture().write()
        if busy.notes:
            break
    assert busy.notes
    assert busy.held(snapshot) == {"a": -number, "b": 99, "c": 0}
    busy.put(a=100)
    assert not is_whole(busy.capture().write())


@pytest.mark.parametrize(
    ("changed", "notes"),
    [
        (range(1000), False),
        (range(600), False),
        (range(400, 1000), False),
        (range(400), True),
        (range(600, 1000), True),
    ],
)
def test_keys_sampled_for_changes_are_spread_over_a_large_table(
    changed: range, notes: bool
) -> None:
    busy = Busy(**{f"k{number}": -1000 for number in range(1000)})
    busy.rest()
    busy.capture().release()
    busy.put(**{f"k{number}": number for number in changed})
    busy.capture().release()
    assert busy.notes is notes


def test_table_with_few_changes_tracks_changes_and_writes_increments() -> None:
    busy = Busy(a=0, b=0, c=0)
    busy.rest()
    busy.capture().release()
    whole = busy.capture().write()
    assert is_whole(whole)
    for number in (1, 2, 3):
        assert busy.notes
        busy.put(a=number)
        changes = busy.capture().write()
        assert not is_whole(changes)
        assert busy.held(whole, changes) == {"a": number, "b": 0, "c": 0}
    busy.put(a=1, b=1)
    busy.capture()  # and nobody writes it
    assert not busy.notes
    busy.capture()
    busy.capture()
    assert busy.notes  # it rests as shortly as at first


def test_snapshot_has_the_whole_table_if_changes_since_its_base_were_not_tracked() -> None:
    busy = Busy(a=0, b=0)
    before = busy.capture().write()
    busy.put(a=1, b=1)
    busy.capture().write()
    busy.put(a=2, b=2)
    busy.capture().release()
    busy.capture().release()
    assert busy.notes
    later = busy.backend.capture(9, since=1).write()
    assert is_whole(later)
    assert busy.held(before, later) == {"a": 2, "b": 2}


def test_table_tracks_changes_while_an_earlier_snapshot_is_not_yet_written() -> None:
    busy = Busy(a=0, b=0)
    waiting = busy.capture()
    busy.put(a=1, b=1)
    changes = busy.capture()
    assert busy.notes
    busy.put(a=2, b=2, c=2)
    assert busy.held(waiting.write()) == {"a": 0, "b": 0}
    changes.release()
    busy.capture()
    assert not busy.notes


def test_table_above_the_size_limit_always_tracks_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flinkray.state.heap_tables._MOST_AT_REST", 2)
    for places, rests in ((("a", "b"), True), (("a", "b", "c"), False)):
        busy = Busy(**dict.fromkeys(places, 0))
        busy.capture().write()
        busy.put(**dict.fromkeys(places, 1))
        busy.capture().write()
        assert busy.notes is not rests


def test_table_that_grows_above_the_size_limit_tracks_changes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flinkray.state.heap_tables._MOST_AT_REST", 2)
    busy = Busy(a=0, b=0)
    busy.rest()
    busy.put(c=0)
    waiting = busy.capture()
    assert busy.notes
    busy.put(c=1)
    assert busy.held(waiting.write()) == {"a": 0, "b": 0, "c": 0}


def test_snapshot_without_a_checkpoint_id_makes_the_table_track_changes_again() -> None:
    busy = Busy(a=0, b=0)
    busy.rest()
    waiting = busy.backend.capture()
    assert busy.notes
    busy.put(a=1)
    assert busy.held(waiting.write()) == {"a": 0, "b": 0}


def test_change_in_place_is_not_in_an_earlier_snapshot_that_is_written_later() -> None:
    """The table notes no changes at the capture. After the in-place change, it always does."""
    busy = Busy(SUMS, a=[1], b=[1])
    busy.rest()
    waiting = busy.capture()
    assert not busy.notes
    for key in ("a", "b"):
        busy.backend.context.key = key
        busy.state.add([2])
    busy.table.take("b").append(3)
    assert busy.held(waiting.write()) == {"a": [1], "b": [1]}
    assert busy.table.get("a") == [1, 2]
    for _ in range(4):
        busy.put(a=[5])
        busy.capture().write()
        assert busy.notes


def test_change_of_a_value_taken_from_a_table_is_not_in_an_unwritten_snapshot() -> None:
    busy = Busy(a=[1], b=[1])
    busy.rest()
    waiting = busy.capture()
    assert not busy.notes
    busy.table.take("a").append(2)
    assert busy.held(waiting.write()) == {"a": [1], "b": [1]}


def test_changes_by_an_update_method_that_a_program_stored_are_in_later_snapshots() -> None:
    busy = Busy()
    kept = [busy.state.update]

    def update(value: int) -> None:
        for number, method in enumerate(kept):
            for key in range(number, 30, len(kept)):
                busy.backend.context.key = key
                method(value)
                method(value + 1)

    written: list[KeyedSnapshot] = []
    for number in range(12):
        update(10 * number)
        waiting = busy.capture()
        if len(kept) < 3 and (number < 1 or not busy.notes):
            kept.append(busy.state.update)
        update(-5)
        snapshot = waiting.write()
        if is_whole(snapshot):
            written.clear()
        written.append(snapshot)
        expected = dict.fromkeys(range(30), 10 * number + 1)
        assert busy.held(*written) == expected


def test_snapshot_that_contains_all_tables_whole_needs_no_base_checkpoint() -> None:
    busy = Busy(a=0, b=0)
    queue = busy.backend.timer_queue("timers")
    queue.add(1, "a", None)
    busy.rest()
    for _ in range(2):
        busy.put(a=1)
        capture = busy.capture()
        assert capture.is_whole
        snapshot = capture.write()
        assert busy.held(snapshot) == {"a": 1, "b": 0}
        assert len(snapshot.timers["timers"]) == 1
    assert busy.notes
    assert not busy.capture().is_whole


@pytest.mark.parametrize("columnar", [False, True])
def test_snapshot_with_an_incremental_table_needs_its_base_checkpoint(
    columnar: bool,
) -> None:
    """The other state is either restored and unused, or noting its changes."""

    def ask(backend: HeapKeyedStateBackend) -> None:
        if columnar:
            backend.columns().column("numbers", np.dtype("int64"), 0)
        else:
            backend.list_table(ListStateDescriptor("others")).append("a", 5)

    busy = Busy(a=0, b=0)
    ask(busy.backend)
    stored = busy.rest()
    assert not busy.capture().is_whole
    restored = HeapKeyedStateBackend()
    restored.restore([stored], 7)
    table = restored.value_table(VALUES)
    for number in (8, 9):
        table.put("a", number)
        table.put("b", number)
        capture = restored.capture(number, number - 1)
        assert not capture.is_whole
        written = capture.write()
    assert is_whole(written)
    ask(restored)
    assert not restored.capture(10, 9).is_whole
