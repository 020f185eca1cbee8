"""Makes harnesses for process functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.streaming.functions.functions import (
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.signatures import expect_kind
from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.operators.process import KeyedProcessOperator, ProcessOperator
from flinkray.streaming.operators.two_inputs import CoProcessOperator, KeyedCoProcessOperator
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness


class ProcessFunctionTestHarnesses:
    """Makes a harness for a process function, as Flink's class of this name does.

    *side_outputs* of all methods: the tags of the side outputs that are recorded. *restore* of
    methods for keyed streams: a :meth:`OperatorHarness.snapshot` of an earlier harness, to begin
    with.

    >>> from flinkray.datastream import KeyedProcessFunction
    >>> class Reminder(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         timers = ctx.timer_service()
    ...         timers.register_processing_time_timer(timers.current_processing_time() + 100)
    ...
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), timestamp
    >>> harness = ProcessFunctionTestHarnesses.for_keyed_process_function(Reminder(), lambda v: v)
    >>> harness.process("a", "b")
    >>> harness.processing_time(100)
    >>> harness.values()
    [('a', 100), ('b', 100)]
    """

    @staticmethod
    def for_process_function(
        function: ProcessFunction[Any, Any], side_outputs: Sequence[OutputTag[Any]] = ()
    ) -> OperatorHarness:
        """Create a harness for a function on a stream without keys.

        Raises:
            TypeError: *function* is of another class.
        """
        expect_kind(function, ProcessFunction, "a ProcessFunction is needed")
        return OperatorHarness(ProcessOperator(function), side_outputs=_ids(side_outputs))

    @staticmethod
    def for_keyed_process_function(
        function: KeyedProcessFunction[Any, Any, Any],
        key_selector: Any,
        side_outputs: Sequence[OutputTag[Any]] = (),
        restore: OperatorState | None = None,
    ) -> OperatorHarness:
        """Create a harness for a function on a keyed stream.

        Args:
            key_selector: a key selector, as for ``key_by``.

        Raises:
            TypeError: *function* is of another class.
        """
        expect_kind(function, KeyedProcessFunction, "a KeyedProcessFunction is needed")
        operator = KeyedProcessOperator(function, Keys(key_selector))
        return OperatorHarness(operator, True, _ids(side_outputs), restore)

    @staticmethod
    def for_co_process_function(
        function: CoProcessFunction[Any, Any, Any], side_outputs: Sequence[OutputTag[Any]] = ()
    ) -> OperatorHarness:
        """Create a harness for a function on two streams.

        ``process(…, on=1)`` feeds the second input.

        Raises:
            TypeError: *function* is of another class.
        """
        expect_kind(function, CoProcessFunction, "a CoProcessFunction is needed")
        return OperatorHarness(CoProcessOperator(function), side_outputs=_ids(side_outputs))

    @staticmethod
    def for_keyed_co_process_function(
        function: KeyedCoProcessFunction[Any, Any, Any, Any],
        key_selector1: Any,
        key_selector2: Any,
        side_outputs: Sequence[OutputTag[Any]] = (),
        restore: OperatorState | None = None,
    ) -> OperatorHarness:
        """Create a harness for a function on two keyed streams.

        ``process(…, on=1)`` feeds the second input.

        Raises:
            TypeError: *function* is of another class.
        """
        expect_kind(function, KeyedCoProcessFunction, "a KeyedCoProcessFunction is needed")
        operator = KeyedCoProcessOperator(function, Keys(key_selector1), Keys(key_selector2))
        return OperatorHarness(operator, True, _ids(side_outputs), restore)


def _ids(tags: Sequence[OutputTag[Any]]) -> list[str]:
    return [tag.tag_id for tag in tags]
