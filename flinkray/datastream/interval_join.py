"""Joins of two keyed streams by time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.datastream.connected_streams import two_input_stream
from flinkray.streaming.functions.functions import ProcessJoinFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.interval_join import IntervalJoinOperator
from flinkray.streaming.records.typeinfo import TypeInformation

if TYPE_CHECKING:
    from flinkray.datastream.data_stream import DataStream
    from flinkray.datastream.keyed_stream import KeyedStream


class IntervalJoin:
    """Pairs of records of a key, whose bounds :meth:`between` sets."""

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        self._left = left
        self._right = right

    def between(
        self, lower_bound: Time | Duration | int, upper_bound: Time | Duration | int
    ) -> IntervalJoined:
        """A right record joins if ``left.time + lower <= right.time <= left.time + upper``."""
        return IntervalJoined(
            self._left, self._right, milliseconds(lower_bound), milliseconds(upper_bound)
        )


class IntervalJoined:
    """The pairs."""

    def __init__(self, left: KeyedStream, right: KeyedStream, lower: int, upper: int) -> None:
        self._left = left
        self._right = right
        self._lower = lower
        self._upper = upper
        self._late_left: OutputTag[Any] | None = None
        self._late_right: OutputTag[Any] | None = None

    def lower_bound_exclusive(self) -> IntervalJoined:
        """``<`` at the lower bound."""
        self._lower += 1
        return self

    def upper_bound_exclusive(self) -> IntervalJoined:
        """``<`` at the upper bound."""
        self._upper -= 1
        return self

    def side_output_left_late_data(self, output_tag: OutputTag[Any]) -> IntervalJoined:
        """Where late records of the left stream go."""
        self._late_left = output_tag
        return self

    def side_output_right_late_data(self, output_tag: OutputTag[Any]) -> IntervalJoined:
        """Where late records of the right stream go."""
        self._late_right = output_tag
        return self

    def process(
        self,
        func: ProcessJoinFunction[Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Any number of results for each pair, at the later of the two times."""
        if not isinstance(func, ProcessJoinFunction):
            raise TypeError(f"a ProcessJoinFunction is needed, got {func!r}")
        operator = IntervalJoinOperator(
            func,
            self._lower,
            self._upper,
            self._left._keys,
            self._right._keys,
            self._late_left,
            self._late_right,
        )
        return two_input_stream(
            "Interval Join",
            operator,
            self._left,
            self._right,
            output_type,
            True,
            (self._left._keys, self._right._keys),
        )
