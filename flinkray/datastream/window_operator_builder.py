"""Builder of the operator of a windowed stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.streaming.columnar.local_aggregate import LocalWindowAggregateOperator
from flinkray.streaming.columnar.panes import ColumnAggregate, PaneTimes
from flinkray.streaming.columnar.window_aggregate import WindowAggregateOperator
from flinkray.streaming.columnar.window_operators import WindowBatchesOperator, WindowJoinOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.signatures import refuse_coroutines
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.windowing.aligned import make_window_operator
from flinkray.streaming.windowing.assigners import (
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from flinkray.streaming.windowing.contents import (
    Apply,
    ListContents,
    PassOn,
    Process,
    TimestampedContents,
    WindowContents,
    WindowEvaluation,
)
from flinkray.streaming.windowing.evictors import Evictor
from flinkray.streaming.windowing.operator import WindowOperator, WindowSpec
from flinkray.streaming.windowing.triggers import EventTimeTrigger, Trigger


class WindowOperatorBuilder:
    """Builds window operators from a program's settings, like Flink's class of this name. An
    operator on columns supports fewer settings; its build method raises an error for the others.
    *input_types*: the declared type of the records of each input. None, or no entry: columns get
    the types of the values."""

    def __init__(self, assigner: WindowAssigner, *input_types: TypeInformation | None) -> None:
        if not isinstance(assigner, WindowAssigner):
            raise TypeError(f"a WindowAssigner is needed, got {assigner!r}")
        self._assigner = assigner
        self._input_types = input_types
        self._trigger: Trigger | None = None
        self._evictor: Evictor | None = None
        self._lateness = 0
        self._late_tag: OutputTag[Any] | None = None

    def title(self, what: str) -> str:
        """Return the name of an operator: the name of the assigner's class, then *what*."""
        return f"{type(self._assigner).__name__}, {what}"

    # --- what is said of the windows --------------------------------------------------------------

    def trigger(self, trigger: Trigger) -> None:
        """Set the trigger, in place of the assigner's own."""
        if not isinstance(trigger, Trigger):
            raise TypeError(f"a Trigger is needed, got {trigger!r}")
        self._trigger = trigger

    def evictor(self, evictor: Evictor) -> None:
        """Set the evictor, which removes records when a window is evaluated."""
        self._evictor = evictor

    def allowed_lateness(self, time_ms: int | Time | Duration) -> None:
        """Set how long windows are kept after their end (*time_ms*: milliseconds if a number)."""
        lateness = milliseconds(time_ms)
        if lateness < 0:
            raise ValueError(f"lateness must not be negative, got {lateness} ms")
        self._lateness = lateness

    def side_output_late_data(self, output_tag: OutputTag[Any]) -> None:
        """Set the side output for records that are too late for all their windows."""
        self._late_tag = output_tag

    # --- operators of records ---------------------------------------------------------------------

    def build(self, contents: WindowContents, function: Any, keys: Keys) -> WindowOperator:
        """Build the operator that keeps *contents* of windows and passes them to *function*.
        *function* None: the contents are the results. Raises TypeError: *function* is no window
        function. StreamError: *contents* do not work with the evictor, or the trigger with the
        assigner."""
        evaluation = _evaluation(function)
        if self._evictor is not None:
            if not isinstance(contents, ListContents):
                raise StreamError("evictors go with apply and process, which see all records")
            contents = TimestampedContents()
        spec = WindowSpec(
            self._assigner,
            self._trigger or self._assigner.get_default_trigger(),
            contents,
            evaluation,
            self._evictor,
            self._lateness,
            self._late_tag,
        )
        return make_window_operator(spec, keys)

    # --- operators of columns ---------------------------------------------------------------------

    def build_batches(self, function: Any, keys: Keys) -> WindowBatchesOperator:
        windows = self._plain_tumbling(
            "functions of batches are for tumbling windows of event time, without triggers, "
            "evictors, lateness and late side output; use process() for others"
        )
        return WindowBatchesOperator(
            function, windows.size, windows.offset, keys, *self._input_types
        )

    def build_join(self, first: Keys, second: Keys, right_suffix: str) -> WindowJoinOperator:
        """Build the operator that pairs the rows of two streams."""
        windows = self._plain_tumbling(
            "a join of columns is for tumbling windows of event time, without triggers, "
            "evictors and lateness; use apply() for others"
        )
        return WindowJoinOperator(
            windows.size,
            windows.offset,
            first,
            second,
            right_suffix,
            self._input_types or (None, None),
        )

    def build_aggregates(
        self, aggregates: Mapping[str, str | tuple[str, str]], keys: Keys
    ) -> tuple[WindowAggregateOperator, LocalWindowAggregateOperator]:
        """Build the two operators that aggregate columns, and return the later one first: the later
        operator computes the results by key, and the earlier one combines the records of each task
        before they are sent to it."""
        assigner = self._assigner
        known = TumblingEventTimeWindows | SlidingEventTimeWindows
        if not isinstance(assigner, known) or not assigner.is_aligned:
            raise StreamError(
                "aggregates of columns are for tumbling and sliding windows of event time, not "
                f"{type(assigner).__name__}"
            )
        own_trigger = self._trigger is None or type(self._trigger) is EventTimeTrigger
        if not own_trigger or self._evictor or self._lateness or self._late_tag:
            raise StreamError(
                "aggregates of columns have no triggers, evictors, lateness or late side output; "
                "use aggregate() for those"
            )
        columns = [
            ColumnAggregate(name, how)
            if isinstance(how, str)
            else ColumnAggregate(name, how[1], how[0])
            for name, how in aggregates.items()
        ]
        if not columns:
            raise StreamError("give at least one aggregate, such as n='count'")
        times = PaneTimes(assigner.size, assigner.slide, assigner.offset)
        return (
            WindowAggregateOperator(times, columns, keys, *self._input_types),
            LocalWindowAggregateOperator(times, columns, keys),
        )

    def _plain_tumbling(self, refusal: str) -> TumblingEventTimeWindows:
        """Return the assigner if it has tumbling windows that depend only on size and offset, and
        no trigger, evictor, lateness or side output for late data is set. Otherwise raise
        StreamError with the text *refusal*."""
        assigner = self._assigner
        refined = self._trigger or self._evictor or self._lateness or self._late_tag
        if not isinstance(assigner, TumblingEventTimeWindows) or not assigner.is_aligned or refined:
            raise StreamError(refusal)
        return assigner


def _evaluation(function: Any) -> WindowEvaluation:
    if function is None:
        return PassOn()
    refuse_coroutines(function)
    if isinstance(function, WindowFunction | AllWindowFunction):
        return Apply(function, isinstance(function, WindowFunction))
    if isinstance(function, ProcessWindowFunction | ProcessAllWindowFunction):
        return Process(function, isinstance(function, ProcessWindowFunction))
    raise TypeError(f"a window function is needed, got {function!r}")
