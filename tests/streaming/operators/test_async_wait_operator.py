"""Asynchronous functions: order, capacity, time-outs, retries, and what a checkpoint keeps."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest

from flinkray.datastream import RuntimeContext, Types
from flinkray.state.descriptors import ValueStateDescriptor
from flinkray.state.errors import StateError
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.async_functions import (
    NO_RETRY_STRATEGY,
    AsyncFunction,
    AsyncFunctionDescriptor,
    AsyncRetryStrategy,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operator_errors import OperatorError, operator_error
from flinkray.streaming.operators import event_loop_thread
from flinkray.streaming.operators.async_wait import AsyncWaitOperator, KeyedAsyncWaitOperator
from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.records.elements import Barrier, Watermark, WatermarkStatus
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness, Record
from flinkray.testing.waiting import wait_until
from tests.datastream.threads import none_left
from tests.streaming.operators.contract import (
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    unlike_five,
)

ORDERED = AsyncFunctionDescriptor.OutputMode.ORDERED
UNORDERED = AsyncFunctionDescriptor.OutputMode.UNORDERED
BOTH = pytest.mark.parametrize("mode", [ORDERED, UNORDERED], ids=["ordered", "unordered"])


class Calls(AsyncFunction[Any, Any]):
    """Its coroutines wait until they are told their results."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.outcomes: dict[Any, Future[Any]] = {}

    async def async_invoke(self, value: Any) -> Any:
        self.begun.append(value)
        return await asyncio.wrap_future(self.outcome(value))

    def outcome(self, value: Any) -> Future[Any]:
        return self.outcomes.setdefault(value, Future())

    def complete(self, *values: Any) -> None:
        """The value itself is the result."""
        for value in values:
            self.outcome(value).set_result([value])


class Applied(AsyncFunction[Any, Any]):
    """A function of the test."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    async def async_invoke(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return self.function(value)


class Endless(AsyncFunction[Any, Any]):
    """Its coroutines never have a result; they count, and say when they were cancelled."""

    def __init__(self) -> None:
        self.running = 0
        self.cancelled = 0

    async def async_invoke(self, value: Any) -> Any:
        self.running += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1


def harness(
    function: AsyncFunction[Any, Any],
    mode: AsyncFunctionDescriptor.OutputMode = ORDERED,
    timeout: int = 60_000,
    capacity: int = 100,
    retry: AsyncRetryStrategy[Any] = NO_RETRY_STRATEGY,
    **settings: Any,
) -> OperatorHarness:
    descriptor = AsyncFunctionDescriptor(function, timeout, capacity, retry, mode)
    return OperatorHarness(AsyncWaitOperator(descriptor), **settings)


# --- order ----------------------------------------------------------------------------------------


def test_ordered_results_come_in_the_order_of_the_records() -> None:
    calls = Calls()
    h = harness(calls)
    h.process("a", "b", at=[1, 2])
    h.process("c")
    calls.complete("c", "b", "a")
    assert h.wait_for(3) == [Record("a", 1), Record("b", 2), Record("c")]
    h.close()


def test_unordered_results_come_in_order_of_completion() -> None:
    calls = Calls()
    h = harness(calls, UNORDERED)
    h.process("a", "b", at=[1, 2])
    h.process("c")
    calls.complete("c")
    assert h.wait_for(1) == [Record("c")]
    calls.complete("b")
    assert h.wait_for(1) == [Record("b", 2)]
    calls.complete("a")
    assert h.wait_for(1) == [Record("a", 1)]
    h.close()


def test_unordered_results_do_not_overtake_a_watermark() -> None:
    calls = Calls()
    h = harness(calls, UNORDERED)
    h.process("a", "b")
    h.watermark(5)
    h.process("c")
    h.watermark(6)
    h.status(True)
    calls.complete("c", "b")
    assert h.wait_for(1) == [Record("b")]
    calls.complete("a")
    assert h.wait_for(5) == [
        Record("a"), Watermark(5), Record("c"), Watermark(6), WatermarkStatus(True),
    ]  # fmt: skip
    h.close()


def test_ordered_results_and_watermarks_keep_their_order() -> None:
    calls = Calls()
    h = harness(calls)
    h.process("a")
    h.watermark(5)
    h.status(True)
    h.status(False)
    h.process("b")
    assert h.output() == []
    calls.complete("b", "a")
    assert h.wait_for(5) == [
        Record("a"), Watermark(5), WatermarkStatus(True), WatermarkStatus(False), Record("b"),
    ]  # fmt: skip
    h.close()


@BOTH
def test_async_operator_emits_only_the_last_of_adjacent_waiting_watermarks(mode: Any) -> None:
    """Otherwise watermarks accumulate behind a slow record."""
    calls = Calls()
    h = harness(calls, mode)
    h.process("a")
    for timestamp in range(100):
        h.watermark(timestamp)
    calls.complete("a")
    assert h.wait_for(2) == [Record("a"), Watermark(99)]
    h.close()


@BOTH
def test_watermarks_pass_through_and_the_end_of_input_adds_no_result(mode: Any) -> None:
    h = harness(Calls(), mode)
    assert_time_passes_and_the_end_adds_nothing(h)
    h.close()


@BOTH
def test_end_of_input_waits_for_all_results(mode: Any) -> None:
    h = harness(Applied(lambda value: [value, -value]), mode)
    h.process(1, 2, 3)
    h.watermark(9)
    h.finish()
    assert sorted(h.output()[:-1]) == [(v, None) for v in (-3, -2, -1, 1, 2, 3)]
    h.close()


# --- how many at once -----------------------------------------------------------------------------


class Counting(AsyncFunction[Any, Any]):
    """How many run at the same time."""

    def __init__(self) -> None:
        self.running = self.most = 0

    async def async_invoke(self, value: Any) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(value % 5):
            await asyncio.sleep(0)
        self.running -= 1
        return [value]


@BOTH
@pytest.mark.parametrize("capacity", [1, 3])
def test_number_of_concurrent_calls_is_at_most_the_capacity(capacity: int, mode: Any) -> None:
    counting = Counting()
    h = harness(counting, mode, capacity=capacity)
    for _ in range(3):
        h.process(*range(20))
    h.finish()
    assert sorted(h.values()) == sorted([*range(20)] * 3)
    assert counting.most == capacity
    h.close()


def test_completed_async_call_that_waits_for_earlier_calls_counts_for_the_capacity() -> None:
    calls = Calls()
    h = harness(calls, capacity=2)
    turn = h.operator.context.turn
    wait = turn.wait_until
    waits = []

    def wait_for_a(condition: Callable[[], bool]) -> None:
        assert not condition()
        waits.append([*calls.begun])
        calls.complete("a")
        wait(condition)

    turn.wait_until = wait_for_a
    h.process("a", "b")
    calls.complete("b")
    operator: Any = h.operator
    wait_until(lambda: bool(operator._settled), 300, "b to be complete")
    h.process("c")
    assert waits == [["a", "b"]]
    assert h.output() == [Record("a"), Record("b")]
    calls.complete("c")
    assert h.wait_for(1) == [Record("c")]
    h.close()


# --- values ---------------------------------------------------------------------------------------


def test_function_gets_columns_as_rows_with_their_timestamps() -> None:
    h = harness(Applied(lambda row: [row.x]))
    h.process_columns(columns([7, 8], x=[1, 2]))
    h.process_columns(columns(x=[3]))
    h.finish()
    assert h.records() == [(1, 7), (2, 8), (3, None)]
    h.close()


def test_tagged_results_of_an_async_function_go_to_side_outputs() -> None:
    side: OutputTag[Any] = OutputTag("side")
    h = harness(Applied(lambda value: [value, (side, -value)]), side_outputs=["side"])
    h.process(1, 2)
    h.finish()
    assert (h.values(), h.side("side")) == ([1, 2], [-1, -2])
    h.close()


@pytest.mark.parametrize("object_reuse", [False, True])
def test_emitted_result_is_a_copy_unless_objects_are_reused(object_reuse: bool) -> None:
    kept: list[Any] = []

    def keep(value: Any) -> Any:
        kept.append(value)
        return [kept]

    h = harness(Applied(keep), object_reuse=object_reuse)
    h.process(1, 2, 3)
    h.finish()
    assert h.values() == ([[1, 2, 3]] * 3 if object_reuse else [[1], [1, 2], [1, 2, 3]])
    h.close()


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, r"cannot be none, and that of Applied\.async_invoke is"),
        (3, "should be of list type, and .* has returned 3"),
        ("abc", "should be of list type, and .* has returned 'abc'"),
        ({"a": 1}, "should be of list type"),
        (Row(1, 2), "should be of list type"),
    ],
)
def test_async_function_whose_result_is_no_list_is_refused(result: Any, words: str) -> None:
    h = harness(Applied(lambda value: result))
    h.process(1)
    with pytest.raises(StreamError, match=words):
        h.finish()
    h.close()


@pytest.mark.parametrize("results", [(1, 2), range(1, 3), iter([1, 2]), {1: "", 2: ""}.keys()])
def test_async_function_may_return_its_results_as_any_iterable(results: Any) -> None:
    h = harness(Applied(lambda value: results))
    h.process(0)
    h.finish()
    assert h.values() == [1, 2]
    h.close()


# --- failures -------------------------------------------------------------------------------------


def failure_of(h: OperatorHarness, act: Callable[[], object]) -> OperatorError:
    with pytest.raises(Exception, match=r".") as caught:
        act()
    h.close()
    return operator_error(caught.value, "the task")


@BOTH
@pytest.mark.parametrize("capacity", [1, 100])
def test_error_names_its_record_and_begins_with_the_frames_of_the_user(
    capacity: int, mode: Any
) -> None:
    h = harness(Applied(lambda value: [unlike_five(value)]), mode, capacity=capacity)

    def run() -> None:
        h.process(4, 5, 6)
        h.finish()

    error = failure_of(h, run)
    assert (error.operator, error.record) == ("operator", "5")
    assert error.story.index("in async_invoke") < error.story.index("in unlike_five")
    assert "ValueError: five is not liked" in error.story


def test_async_error_is_raised_although_calls_for_earlier_records_are_pending() -> None:
    calls = Calls()
    h = harness(calls)
    h.process("a", "b")
    calls.outcome("b").set_exception(LookupError("no b"))
    error = failure_of(h, lambda: h.wait_for(1))
    assert error.record == "'b'"


def test_coroutine_that_cancels_itself_fails_the_job() -> None:
    class Gives(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any) -> Any:
            raise asyncio.CancelledError

    h = harness(Gives())
    h.process(1)
    assert "was cancelled before its time was over" in failure_of(h, h.finish).story


def test_system_exit_in_an_async_function_fails_the_job() -> None:
    class Leaves(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any) -> Any:
            self.task = asyncio.create_task(self.leave())
            await asyncio.Event().wait()

        async def leave(self) -> None:
            raise SystemExit(3)

    h = harness(Leaves())
    h.process(1)
    with pytest.raises(SystemExit):
        h.finish()
    h.close()


# --- time -----------------------------------------------------------------------------------------


def test_record_that_exceeds_the_timeout_fails_the_job_and_is_named() -> None:
    endless = Endless()
    h = harness(endless, timeout=1)
    h.process("late")
    error = failure_of(h, h.finish)
    assert error.record == "'late'"
    assert "Async function call has timed out for input: 'late'" in error.story
    assert endless.cancelled == 1


@BOTH
def test_timeout_method_of_a_function_gives_results_for_late_records(mode: Any) -> None:
    class WithDefault(Endless):
        def timeout(self, value: Any) -> Any:
            return [value, "late"]

    function = WithDefault()
    h = harness(function, mode, timeout=1, capacity=2)
    h.process(1, 2, 3)
    h.finish()
    assert h.values() == [1, "late", 2, "late", 3, "late"]
    h.close()
    assert (function.running, function.cancelled) == (3, 3)


def test_timeout_method_is_not_called_for_completed_records() -> None:
    class Waits(AsyncFunction[Any, Any]):
        late: ClassVar[list[Any]] = []

        async def async_invoke(self, value: Any) -> Any:
            if value == "late":
                await asyncio.Event().wait()
            return [value]

        def timeout(self, value: Any) -> Any:
            self.late.append(value)
            return []

    h = harness(Waits(), timeout=20)
    h.process("in time", "late")
    h.finish()
    h.close()
    assert Waits.late == ["late"]


def test_timeout_method_that_returns_no_list_is_refused() -> None:
    class Careless(Endless):
        def timeout(self, value: Any) -> Any:
            return None

    h = harness(Careless(), timeout=1)
    h.process(1)
    with pytest.raises(StreamError, match=r"that of .*Careless\.timeout is"):
        h.finish()
    h.close()


def test_result_that_comes_after_the_timeout_is_ignored() -> None:
    class Stubborn(AsyncFunction[Any, Any]):
        ended = False

        async def async_invoke(self, value: Any) -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.ended = True
                return ["too late"]

        def timeout(self, value: Any) -> Any:
            return ["in time"]

    stubborn = Stubborn()
    h = harness(stubborn, timeout=1)
    h.process(1)
    assert h.wait_for(1) == [Record("in time")]
    wait_until(lambda: stubborn.ended, 300, "the coroutine to end")
    h.finish()
    h.close()
    assert h.output() == []


def test_timeout_of_zero_means_no_timeout() -> None:
    calls = Calls()
    h = harness(calls, timeout=0)
    h.process("a")
    calls.complete("a")
    assert h.wait_for(1) == [Record("a")]
    h.close()


# --- retries --------------------------------------------------------------------------------------


class Failing(AsyncFunction[Any, Any]):
    """Each record fails a number of times, and then is the number of attempts."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.attempts: dict[int, int] = {}

    async def async_invoke(self, value: list[int]) -> Any:
        value.append(0)  # what a retry is given must not show this
        assert len(value) == 2
        number = self.attempts[value[0]] = self.attempts.get(value[0], 0) + 1
        if number <= self.times:
            raise ConnectionError(f"attempt {number}")
        return [number]


def is_lost(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


def test_failed_call_is_retried() -> None:
    h = harness(Failing(2), retry=AsyncRetryStrategy.fixed_delay(2, 1, None, is_lost))
    h.process([1], [2])
    h.finish()
    assert h.values() == [3, 3]
    h.close()


def test_failure_of_the_last_retry_fails_the_job() -> None:
    h = harness(Failing(3), retry=AsyncRetryStrategy.fixed_delay(2, 1, None, is_lost))
    h.process([1])
    error = failure_of(h, h.finish)
    assert error.record == "[1]"
    assert "ConnectionError: attempt 3" in error.story


def test_failure_that_the_retry_predicate_rejects_is_not_retried() -> None:
    retry = AsyncRetryStrategy.fixed_delay(2, 1, None, lambda error: isinstance(error, OSError))
    h = harness(Applied(unlike_five), retry=retry)
    h.process(5)
    with pytest.raises(ValueError, match="five is not liked"):
        h.finish()
    h.close()


@pytest.mark.parametrize(("most", "expected"), [(5, [4]), (2, [3])])
def test_call_is_retried_while_the_predicate_rejects_its_results(
    most: int, expected: list[int]
) -> None:
    """After the last attempt that the strategy allows, the last results are emitted."""
    numbers = iter(range(1, 10))
    retry = AsyncRetryStrategy.exponential_backoff(
        most, 1, 2, 2.0, lambda results: results[0] < 4, None
    )
    h = harness(Applied(lambda value: [next(numbers)]), retry=retry)
    h.process(0)
    h.finish()
    assert h.values() == expected
    h.close()


def test_error_in_a_retry_predicate_fails_the_job_and_names_the_record() -> None:
    retry = AsyncRetryStrategy.fixed_delay(2, 1, lambda results: unlike_five(results[1]) > 9, None)
    h = harness(Applied(lambda value: [value, 5]), retry=retry)
    h.process("a")
    error = failure_of(h, h.finish)
    assert error.record == "'a'"
    assert "in unlike_five" in error.story


def test_timeout_covers_all_attempts_of_a_record_together() -> None:
    retry = AsyncRetryStrategy.fixed_delay(10**9, 1, None, is_lost)
    h = harness(Failing(10**9), timeout=50, retry=retry)
    h.process([1])
    with pytest.raises(TimeoutError):
        h.finish()
    h.close()


# --- state ----------------------------------------------------------------------------------------


def test_pending_calls_are_invoked_again_after_a_restore() -> None:
    calls = Calls()
    h = harness(calls, UNORDERED)
    h.process("a", "b", "c", at=[1, 2, 3])
    h.watermark(3)
    h.process("d")
    calls.complete("b")
    assert h.wait_for(1) == [Record("b", 2)]
    calls.complete("d")  # complete, and not out
    state = h.snapshot()
    h.close()
    again = harness(Applied(lambda value: [value]), restore=state)
    again.process("e", at=5)
    again.finish()
    assert again.records() == [("a", 1), ("c", 3), ("d", None), ("e", 5)]
    again.close()


def test_emitted_results_are_not_computed_again_after_a_restore() -> None:
    h = harness(Applied(lambda value: [value]))
    h.process(1, 2)
    h.finish()
    state = h.snapshot()
    h.close()
    again = harness(Applied(lambda value: [value]), restore=state)
    again.finish()
    assert again.output() == []
    again.close()


def test_snapshot_has_the_pending_record_as_it_was_before_the_function() -> None:
    begun = threading.Event()

    class Changes(Endless):
        async def async_invoke(self, value: Any) -> Any:
            value["changed"] = True
            begun.set()
            return await super().async_invoke(value)

    h = harness(Changes())
    h.process({"a": 1})
    assert begun.wait(300)
    state = h.snapshot()
    h.close()
    again = harness(Applied(lambda value: [value]), restore=state)
    again.finish()
    assert again.values() == [{"a": 1}]
    again.close()


@BOTH
def test_restore_of_more_pending_records_than_the_capacity_keeps_the_capacity(mode: Any) -> None:
    """This happens if the job is restored with fewer subtasks."""
    many = harness(Endless(), capacity=50)
    many.process(*range(50))
    state: OperatorState = many.snapshot()
    many.close()
    counting = Counting()
    few = harness(counting, mode, capacity=3, restore=state)
    few.process(50)
    few.finish()
    assert sorted(few.values()) == [*range(51)]
    assert counting.most == 3
    few.close()


# --- life -----------------------------------------------------------------------------------------


def test_closing_an_async_operator_cancels_endless_coroutines_and_ends_its_thread() -> None:
    endless = Endless()
    with none_left():
        h = harness(endless)
        h.process(1, 2, 3)
        wait_until(lambda: endless.running == 3, 300, "all to run")
        h.close()
        assert endless.cancelled == 3


def test_coroutine_that_ignores_its_cancellation_is_abandoned_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Endless):
        async def async_invoke(self, value: Any) -> Any:
            self.running += 1
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue

    monkeypatch.setattr(event_loop_thread, "PATIENCE", 0.01)
    stubborn = Stubborn()
    with none_left(), caplog.at_level(logging.WARNING):
        h = harness(stubborn)
        h.process(1)
        wait_until(lambda: stubborn.running == 1, 300, "it to run")
        h.close()
    assert "does not end after it was cancelled" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_all_methods_of_an_async_function_run_in_its_loop_thread(is_async: bool) -> None:
    seen: list[tuple[str, int, bool]] = []

    def see(what: str) -> None:
        seen.append((what, threading.get_ident(), asyncio.get_running_loop().is_running()))

    class Plain(AsyncFunction[Any, Any]):
        def open(self, runtime_context: Any) -> None:
            see(f"open {runtime_context.get_index_of_this_subtask()}")

        async def async_invoke(self, value: Any) -> Any:
            see("invoke")
            await asyncio.Event().wait()

        def timeout(self, value: Any) -> Any:
            see("timeout")
            return []

        def close(self) -> None:
            see("close")

    class Awaiting(Plain):
        async def open(self, runtime_context: Any) -> None:  # type: ignore[override]
            await asyncio.sleep(0)
            super().open(runtime_context)

        async def close(self) -> None:  # type: ignore[override]
            await asyncio.sleep(0)
            super().close()

    h = harness(Awaiting() if is_async else Plain(), timeout=1, subtask_index=1, parallelism=2)
    h.process(1)
    h.finish()
    h.close()
    assert [what for what, _, _ in seen] == ["open 1", "invoke", "timeout", "close"]
    assert len({thread for _, thread, _ in seen} - {threading.get_ident()}) == 1
    assert all(is_running for _, _, is_running in seen)


@pytest.mark.parametrize("method", ["open", "close"])
def test_error_in_open_or_close_of_an_async_function_is_raised(method: str) -> None:
    def fail(*_: Any) -> None:
        unlike_five(5)

    function = Calls()
    setattr(function, method, fail)
    operator = AsyncWaitOperator(
        AsyncFunctionDescriptor(function, 0, 1, NO_RETRY_STRATEGY, ORDERED)
    )

    def live() -> None:
        try:
            OperatorHarness(operator)
        finally:
            operator.close()

    with none_left(), pytest.raises(ValueError, match="five is not liked"):
        live()


# --- keyed state ----------------------------------------------------------------------------------


class Keyed(Calls):
    """Counts the records of a key before and after it waits for the test."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    async def async_invoke(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        await super().async_invoke(value[1])
        return [(*value, self.count.value())]


def keyed_harness(function: AsyncFunction[Any, Any], **settings: Any) -> OperatorHarness:
    descriptor = AsyncFunctionDescriptor(function, 60_000, 100, NO_RETRY_STRATEGY, UNORDERED)
    operator = KeyedAsyncWaitOperator(descriptor, Keys(lambda text: text[0]))
    return OperatorHarness(operator, keyed=True, **settings)


def test_records_of_a_key_with_state_are_processed_one_after_the_other() -> None:
    calls = Keyed()
    h = keyed_harness(calls)
    h.process("a1", "a2", "b1", "b2")
    wait_until(lambda: sorted(calls.begun) == ["a1", "b1"], 60, "the first of each key")
    calls.complete("b2", "b1")
    assert h.wait_for(2) == [Record(("b", "b1", 1)), Record(("b", "b2", 2))]
    assert "a2" not in calls.begun
    calls.complete("a2", "a1")
    assert h.wait_for(2) == [Record(("a", "a1", 1)), Record(("a", "a2", 2))]
    h.close()


def test_checkpoint_waits_for_coroutines_that_have_keyed_state() -> None:
    calls = Keyed()
    h = keyed_harness(calls)
    h.process("a1", "b1")
    wait_until(lambda: len(calls.begun) == 2, 60, "both records")
    calls.complete("a1", "b1")
    h.operator.prepare_snapshot_pre_barrier(Barrier(1, 0))
    state = h.snapshot()
    assert sorted(h.values()) == [("a", "a1", 1), ("b", "b1", 1)]
    h.close()
    calls = Keyed()
    calls.complete("a2")
    h = keyed_harness(calls, restore=state)
    h.process("a2")
    assert h.wait_for(1) == [Record(("a", "a2", 2))]
    h.close()


def test_keyed_state_cannot_be_used_in_a_task_that_the_coroutine_starts() -> None:
    """The task would run while another record has its turn."""

    class Starts(Keyed):
        async def async_invoke(self, value: Any) -> Any:
            async def read() -> Any:
                return self.count.value()

            return [await asyncio.create_task(read())]

    h = keyed_harness(Starts())
    h.process("a1")
    with pytest.raises(StateError, match="key"):
        h.wait_for(1)
    h.close()


def test_keyed_function_without_state_keeps_unanswered_records_in_checkpoints() -> None:
    calls = Calls()
    h = keyed_harness(calls)
    h.process("a1", "a2")
    wait_until(lambda: len(calls.begun) == 2, 60, "both records of the key")
    h.operator.prepare_snapshot_pre_barrier(Barrier(1, 0))
    state = h.snapshot()
    h.close()
    again = Calls()
    h = keyed_harness(again, restore=state)
    wait_until(lambda: len(again.begun) == 2, 60, "both records again")
    h.close()


def test_retries_and_time_outs_see_the_state_of_their_key() -> None:
    class Late(Keyed):
        async def async_invoke(self, value: Any) -> Any:
            attempt = (self.count.value() or 0) + 1
            self.count.update(attempt)
            if attempt < 3:
                raise ValueError("again")
            await asyncio.Event().wait()

        def timeout(self, value: Any) -> Any:
            return [(*value, self.count.value())]

    retry = AsyncRetryStrategy.fixed_delay(5, 1, None, lambda error: True)
    descriptor = AsyncFunctionDescriptor(Late(), 500, 100, retry, ORDERED)
    operator = KeyedAsyncWaitOperator(descriptor, Keys(lambda text: text[0]))
    h = OperatorHarness(operator, keyed=True)
    h.process("a1", "b1")
    assert h.wait_for(2) == [Record(("a", "a1", 3)), Record(("b", "b1", 3))]
    h.close()
