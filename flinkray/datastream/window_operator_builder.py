"""The operator of a windowed stream, from what a program says of its windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.streaming.columnar.local_window_aggregate import LocalWindowAggregateOperator
from flinkray.streaming.columnar.panes import ColumnAggregate, PaneTimes
from flinkray.streaming.columnar.window_aggregate import WindowAggregateOperator
from flinkray.streaming.columnar.window_operators import WindowBatchesOperator, WindowJoinOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.coroutines import refuse_coroutines
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.window_functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from flinkray.streaming.records.keying import Keys
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
    """What is said of windows, and the operators that do it, as Flink's class of this name.

    Operators of columns do less than :meth:`build`'s.  What they cannot do is refused, by name.
    """

    def __init__(self, assigner: WindowAssigner) -> None:
        if not isinstance(assigner, WindowAssigner):
            raise TypeError(f"a WindowAssigner is needed, got {assigner!r}")
        self._assigner = assigner
        self._trigger: Trigger | None = None
        self._evictor: Evictor | None = None
        self._lateness = 0
        self._late_tag: OutputTag[Any] | None = None

    def title(self, what: str) -> str:
        """The name of an operator that does that."""
        return f"{type(self._assigner).__name__}, {what}"

    # --- what is said of the windows --------------------------------------------------------------

    def trigger(self, trigger: Trigger) -> None:
        """In place of the assigner's own."""
        if not isinstance(trigger, Trigger):
            raise TypeError(f"a Trigger is needed, got {trigger!r}")
        self._trigger = trigger

    def evictor(self, evictor: Evictor) -> None:
        """Leaves records out when a window is evaluated."""
        self._evictor = evictor

    def allowed_lateness(self, time_ms: int | Time | Duration) -> None:
        """How long windows are kept after their end."""
        lateness = milliseconds(time_ms)
        if lateness < 0:
            raise ValueError(f"lateness must not be negative, got {lateness} ms")
        self._lateness = lateness

    def side_output_late_data(self, output_tag: OutputTag[Any]) -> None:
        """Where records go that come too late for all their windows."""
        self._late_tag = output_tag

    # --- operators of records ---------------------------------------------------------------------

    def build(self, contents: WindowContents, function: Any, keys: Keys) -> WindowOperator:
        """The operator that keeps *contents* of each window and gives them to a window function, or
        on if it is None.

        Raises:
            TypeError: *function* is none of windows.
            StreamError: an evictor does not go with the contents; or triggers with the assigner.
        """
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

    def build_batches(self, function: Callable[..., Any], keys: Keys) -> WindowBatchesOperator:
        """The operator that gives whole windows to a function of batches."""
        windows = self._plain_tumbling(
            "functions of batches are for tumbling windows of event time, without triggers, "
            "evictors, lateness and late side output; use process() for others"
        )
        return WindowBatchesOperator(function, windows.size, windows.offset, keys)

    def build_join(self, first: Keys, second: Keys, right_suffix: str) -> WindowJoinOperator:
        """The operator that pairs the rows of two streams."""
        windows = self._plain_tumbling(
            "a join of columns is for tumbling windows of event time, without triggers, "
            "evictors and lateness; use apply() for others"
        )
        return WindowJoinOperator(windows.size, windows.offset, first, second, right_suffix)

    def build_aggregates(
        self, aggregates: Mapping[str, str | tuple[str, str]], keys: Keys
    ) -> tuple[WindowAggregateOperator, LocalWindowAggregateOperator]:
        """The operator that aggregates columns, and the one that does so before the exchange."""
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
            WindowAggregateOperator(times, columns, keys),
            LocalWindowAggregateOperator(times, columns, keys),
        )

    def _plain_tumbling(self, refusal: str) -> TumblingEventTimeWindows:
        """The assigner, if its windows are known by size and offset alone and nothing else was
        said of them."""
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
