"""Rows: each compiled kernel has the results, errors and changes of its Python definition."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core import values
from flinkray.core.values import IMMUTABLE
from flinkray.kernels import python_rows, rows
from flinkray.kernels.compiled import native
from flinkray.state import ReducingStateDescriptor, ValueStateDescriptor
from flinkray.state.errors import StateError
from flinkray.state.handles import TableReducingState, TableValueState
from flinkray.state.heap_tables import HeapValueTable
from flinkray.state.key_values import are_plain, as_key
from flinkray.state.table import KeyContext

pytestmark = pytest.mark.skipif(native is None, reason="compares compiled kernels with Python code")


class Colour(Enum):
    RED = 1


def deep(levels: int) -> Any:
    value: Any = (1,)
    for _ in range(levels):
        value = (value,)
    return value


ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([1 << 70, float("nan"), -0.0, 1.5, "a", "\ud800", b"b", Colour.RED]),
)
MUTABLE: st.SearchStrategy[Any] = st.one_of(
    st.lists(st.integers(0, 3), max_size=2),
    st.builds(dict, a=st.integers(0, 3)),
    st.builds(bytearray, st.just(b"b")),
)
VALUES = st.recursive(
    ATOMS | MUTABLE | st.sampled_from([deep(7), deep(9)]),
    lambda part: st.lists(part, max_size=3).map(tuple),
    max_leaves=5,
)


def log_of(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or type and text of its error."""
    try:
        return "result", call()
    except (LookupError, RuntimeError, StateError, StopIteration, TypeError, ValueError) as error:
        return type(error), str(error)


@given(VALUES)
def test_values_are_copied_as_by_the_python_code(value: Any) -> None:
    copied, expected = rows.own(value), values.own(value)
    assert repr(copied) == repr(expected)
    assert (copied is value) == (expected is value)


@given(st.lists(VALUES, max_size=4))
def test_lists_of_values_are_copied_as_by_the_python_code(items: list[Any]) -> None:
    copied, expected = rows.own_all(items), values.own_all(items)
    assert repr(copied) == repr(expected)
    assert [one is other for one, other in zip(copied, items, strict=True)] == [
        one is other for one, other in zip(expected, items, strict=True)
    ]


@given(st.lists(VALUES, max_size=4))
def test_keys_that_count_as_plain_need_no_conversion(keys: list[Any]) -> None:
    if python_rows.are_of(IMMUTABLE, keys):
        assert rows.are_of(IMMUTABLE, keys)
    if are_plain(keys):
        assert all(as_key(key) is key for key in keys)


# --- the loop around a user's function ------------------------------------------------------------


class Times:
    record_timestamp: int | None = None


RESULTS = st.one_of(
    st.none(),
    st.sampled_from([0, 1.5, KeyError("user"), StopIteration("user"), TypeError("user")]),
    st.lists(VALUES | st.sampled_from([ValueError("late"), StopIteration("late")]), max_size=3),
    st.lists(VALUES, max_size=3).map(tuple),
)
"""What the user's function does with a record: it returns a value or raises an error; a list
becomes a generator, which raises the errors in the list."""


def generator(results: list[Any]) -> Iterator[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
        yield result


def refuse(results: Any) -> None:
    if results is not None and not hasattr(results, "__iter__"):
        raise LookupError(f"refused {results!r}")


def story(
    process_each: Callable[..., Any],
    actions: list[Any],
    with_times: bool,
    with_keys: bool,
    limit: int,
) -> list[Any]:
    """Return all that others see of the loop over records with these *actions*."""
    events: list[Any] = []
    context, key_context = Times(), KeyContext()
    records: Any = iter(list(range(len(actions))))

    def process(record: int, about: Any) -> Any:
        events.append((record, about.record_timestamp, key_context.key if with_keys else None))
        action = actions[record]
        if isinstance(action, BaseException):
            raise action
        return generator(action) if type(action) is list else action

    def put_out(results: list[Any], times: list[int] | None) -> int:
        events.append(("portion", repr(results), times))
        return len(events) % 3 + 1

    places = list(range(len(actions)))
    last = log_of(
        lambda: process_each(
            process,
            records,
            context,
            [f"key {place}" for place in places] if with_keys else None,
            key_context if with_keys else None,
            [10 * place for place in places] if with_times else None,
            put_out,
            values.own,
            refuse,
            IMMUTABLE,
            limit,
        )
    )
    return [*events, repr(last), records.__length_hint__(), context.record_timestamp]


@given(st.lists(RESULTS, max_size=6), st.booleans(), st.booleans(), st.integers(1, 4))
def test_loop_around_a_user_function_does_what_the_python_loop_does(
    actions: list[Any], with_times: bool, with_keys: bool, limit: int
) -> None:
    told = story(rows.process_each, actions, with_times, with_keys, limit)
    assert told == story(python_rows.process_each, actions, with_times, with_keys, limit)


def test_loop_keeps_no_references_to_records_keys_and_results() -> None:
    record, key, result, error = object(), object(), [1], ValueError("user")
    context = KeyContext()

    def process(value: Any, about: Any) -> Any:
        yield result
        yield (value, 1)
        raise error

    def run() -> None:
        log_of(
            lambda: rows.process_each(
                process,
                iter([record]),
                Times(),
                [key],
                context,
                [7],
                lambda *_: 1,
                str,
                refuse,
                IMMUTABLE,
                1,
            )
        )
        context.key = error.__traceback__ = None

    run()
    before = [sys.getrefcount(it) for it in (record, key, result, error, context)]
    for _ in range(100):
        run()
    assert [sys.getrefcount(it) for it in (record, key, result, error, context)] == before


# --- handles --------------------------------------------------------------------------------------


def add(current: Any, value: Any) -> Any:
    if value == "bad":
        raise ValueError("user")
    return f"{current}{value}"


class Tracked:
    """A handle, its table and its context, with the state that a test compares."""

    def __init__(self, handle: Any, is_compiled: bool, table: HeapValueTable, slow: Any) -> None:
        self.handle, self.table = handle, table
        self.captures: list[Any] = []
        self.context = slow._context
        arguments = self.context, table._entries, table._first_change, slow, add
        handle._bind(*([rows.KeyHolder, IMMUTABLE] if is_compiled else []), *arguments)

    def do(self, step: tuple[str, Any]) -> Any:
        kind, argument = step
        if kind == "key":
            self.context.key = argument
        elif kind == "capture":
            self.captures.append(self.table.capture(len(self.captures)))
            self.handle._follow(self.table._changed)
        elif kind == "written":
            for capture in self.captures:
                capture.done = True
        else:
            return log_of(lambda: getattr(self.handle, kind)(*argument))
        return None

    def state(self) -> str:
        changed = self.table._changed
        return repr(
            (
                self.table._entries,
                None if changed is None else sorted(changed),
                sorted(self.table._fresh),
                [(capture.places, capture.before) for capture in self.captures],
            )
        )


def of_value_state(kind: Any, is_compiled: bool) -> Tracked:
    descriptor: ValueStateDescriptor[Any] = ValueStateDescriptor("value")
    table = HeapValueTable(descriptor, False, {})
    slow = TableValueState(table, KeyContext(), [0])
    return Tracked(kind(), is_compiled, table, slow)


def of_reducing_state(kind: Any, is_compiled: bool) -> Tracked:
    table = HeapValueTable(ReducingStateDescriptor("value", add), False, {})
    return Tracked(kind(), is_compiled, table, TableReducingState(table, KeyContext(), add))


STORED = VALUES | st.just("bad")
COMMON = st.one_of(
    st.tuples(st.just("key"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["capture", "written"]), st.none()),
)
VALUE_STEPS = st.lists(
    COMMON | st.just(("value", ())) | st.tuples(st.just("update"), st.tuples(STORED)), max_size=25
)
REDUCING_STEPS = st.lists(
    COMMON | st.just(("get", ())) | st.tuples(st.just("add"), st.tuples(STORED)), max_size=25
)


@given(VALUE_STEPS)
def test_handle_of_value_state_leaves_the_state_of_the_python_handle(steps: list[Any]) -> None:
    compiled = of_value_state(rows.ValueHandle, True)
    expected = of_value_state(python_rows.ValueHandle, False)
    for step in steps:
        assert repr(compiled.do(step)) == repr(expected.do(step))
        assert compiled.state() == expected.state()


@given(REDUCING_STEPS)
def test_handle_of_reducing_state_leaves_the_state_of_the_python_handle(steps: list[Any]) -> None:
    compiled = of_reducing_state(rows.ReducingHandle, True)
    expected = of_reducing_state(python_rows.ReducingHandle, False)
    for step in steps:
        assert repr(compiled.do(step)) == repr(expected.do(step))
        assert compiled.state() == expected.state()


@pytest.mark.parametrize("call", [("value", ()), ("update", (1,))])
def test_handle_without_a_table_is_refused(call: Any) -> None:
    name, arguments = call
    with pytest.raises(RuntimeError, match="not bound to a table"):
        getattr(rows.ValueHandle(), name)(*arguments)


# --- contents of windows --------------------------------------------------------------------------


def windows_story(which: Any, stamped: list[tuple[int, int]], appends: bool) -> str:
    """Return all that others see when records (key, time) go into windows of three moments.
    The window from 0 to 3 takes records singly; that from 3 to 6 has two windows."""
    events: list[Any] = []
    held: dict[Any, Any] = {}
    changed = {(0, "w3")}
    records: Any = iter(list(range(len(stamped))))

    def one(window: str) -> Any:
        if appends:
            timers = held.setdefault((window, "timers"), {})
            lists = held.setdefault("lists", {})
            return window, lists, timers, changed if window == "w3" else None, events.append
        return window, held.setdefault(window, {})

    def pane_of(time: int) -> Any:
        events.append(("pane", time))
        if time == 20:
            raise ValueError("user")
        start = time - time % 3
        names = [f"w{start}", "second"] if start == 3 else [f"w{start}"]
        return start, start + 3, None if start == 0 else [one(name) for name in names]

    def fold(record: int, before: Any) -> Any:
        if record == 9:
            raise StopIteration("user")
        return [*before, record]

    def begin(key: Any, window: Any, record: int) -> Any:
        return [key, window, record]

    keys, times = [key for key, _ in stamped], [time for _, time in stamped]
    common = records, keys, times, pane_of, lambda *arguments: events.append(arguments)
    if appends:
        end = log_of(lambda: which.append_panes(*common))
    else:
        end = log_of(lambda: which.fold_panes(*common, fold, begin))
    return repr((events, held, end, records.__length_hint__()))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 20)), max_size=14), st.booleans())
def test_windows_get_the_contents_of_the_python_code(
    stamped: list[tuple[int, int]], appends: bool
) -> None:
    told = windows_story(rows, stamped, appends)
    assert told == windows_story(python_rows, stamped, appends)


@pytest.mark.parametrize("which", [rows, python_rows])
def test_records_that_are_no_iterator_raise_type_error(which: Any) -> None:
    with pytest.raises(TypeError):
        which.append_panes(5, [], [], lambda time: None, lambda *arguments: None)
