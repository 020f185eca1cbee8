"""Collects the results of user code and puts them out to the next operator.

Results are put out in portions, so that a record or timer with very many results does not keep all
of them in memory. Results that user code could still change are copied when they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

from flinkray.core.values import IMMUTABLE
from flinkray.kernels.rows import process_each
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.operator import OperatorContext, Output
from flinkray.streaming.records.elements import Block, Origin
from flinkray.streaming.time.turn import Portion


class Collector:
    """Collects the results of one operator's subtask and puts them out."""

    def __init__(self, context: OperatorContext, output: Output) -> None:
        self._output = output
        self._turn = context.turn
        self._portion = Portion(context.clock, context.turn)
        self._own = context.own
        self._values: list[Any] = []
        self._times: list[int] = []
        self._limit = 1
        self._origin: Origin | None = None

    def of_each(
        self,
        process: Callable[[Any, Any], Iterable[Any] | None],
        records: Iterator[Any],
        block: Block,
        context: Any = None,
        keys: Sequence[Any] | None = None,
        key_context: Any = None,
    ) -> None:
        """Put out all results of ``process(value, context)``, each with its record's timestamp.
        *records*: an iterator over the block's values. For each record,
        ``context.record_timestamp`` and, with *keys*, ``key_context.key`` are set."""
        values, stamps = process_each(
            process,
            records,
            context,
            keys,
            key_context,
            block.timestamps,
            self._put_out,
            self._own,
            _refuse_single,
            IMMUTABLE,
            self.begin(block.origin),
        )
        if values:
            self._emit(values, stamps)

    def add(self, results: Iterable[Any] | None, timestamp: int | None) -> None:
        """Add the results of a timer or window. None counts as no results. Call :meth:`flush`
        between results with a timestamp and results without: they need different batches."""
        if results is None:
            return
        own, values, limit = self._own, self._values, self._limit
        if type(results) is not tuple and type(results) is not list:
            _refuse_single(results)
        for result in results:
            values.append(own(result))
            if timestamp is not None:
                self._times.append(timestamp)
            if len(values) >= limit:
                limit = self._limit = self._put_out(*self._take())
                values = self._values

    def of_timers(
        self,
        process: Callable[[Any, Any], Iterable[Any] | None],
        timers: Sequence[tuple[Any, Any]],
        key_context: Any,
        timestamp: int,
    ) -> None:
        """Add the results of ``process(timer, None)`` for each timer (key, namespace), with this
        timestamp, as :meth:`add` does. ``key_context.key`` is set for each timer."""
        values, times = process_each(
            process,
            iter(timers),
            None,
            map(itemgetter(0), timers),
            key_context,
            repeat(timestamp),
            self._put_out_behind,
            self._own,
            _refuse_single,
            IMMUTABLE,
            max(1, self._limit - len(self._values)),
        )
        self._values += values
        self._times += times or ()

    def begin(self, origin: Origin | None = None) -> int:
        """Prepare for the results of a batch (from *origin*) or of timers. Returns the size of the
        first portion: how many records or timers to process before others have their turn."""
        self._origin = origin
        self._limit = self._portion.begin()
        return self._limit

    def flush(self) -> None:
        if self._values:
            self._emit(*self._take())

    def _take(self) -> tuple[list[Any], list[int] | None]:
        values, times = self._values, self._times
        self._values, self._times = [], []
        return values, times or None

    def _put_out_behind(self, values: list[Any], times: list[int] | None) -> int:
        self._values += values
        self._times += times or ()
        self._limit = self._put_out(*self._take())
        return self._limit

    def _put_out(self, values: list[Any], times: list[int] | None) -> int:
        self._emit(values, times)
        limit = self._portion.end(len(values))
        self._turn.pause()
        return limit

    def _emit(self, values: list[Any], times: list[int] | None) -> None:
        """Put out values. ``(tag, value)`` pairs among the values go to side outputs."""
        if OutputTag.in_use:
            values, times = self._without_tagged(values, times)
        if values:
            self._output.emit(Block(values, times, None, self._origin))

    def _without_tagged(
        self, values: list[Any], times: list[int] | None
    ) -> tuple[list[Any], list[int] | None]:
        tagged = [
            place
            for place, value in enumerate(values)
            if type(value) is tuple and len(value) == 2 and isinstance(value[0], OutputTag)
        ]
        if not tagged:
            return values, times
        by_tag: dict[OutputTag[Any], list[int]] = {}
        for place in tagged:
            by_tag.setdefault(values[place][0], []).append(place)
        for tag, places in by_tag.items():
            stamps = None if times is None else [times[place] for place in places]
            block = Block([values[place][1] for place in places], stamps, None, self._origin)
            self._output.emit_side(tag, block)
        gone = set(tagged)
        kept = [place for place in range(len(values)) if place not in gone]
        stamps = None if times is None else [times[place] for place in kept]
        return [values[place] for place in kept], stamps


def _refuse_single(results: Any) -> None:
    if results is None or hasattr(results, "__iter__") or hasattr(results, "__getitem__"):
        return
    raise StreamError(
        f"the function returned {text_of(results)}, which is no list or iterator of results: yield "
        "each result, or return a list of them"
    ) from None
