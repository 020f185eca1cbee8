"""Looks rows up in a table, which is a bounded stream. Records wait until the table is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from flinkray.core.errors import SuppressRestartsError
from flinkray.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.operators.keyed import KeyedFunctionOperator
from flinkray.streaming.operators.operator import OperatorContext, Output, Receiver
from flinkray.streaming.operators.process import WithTimers
from flinkray.streaming.operators.two_inputs import InputPort
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys, functions_of

_ROWS: ValueStateDescriptor[Any] = ValueStateDescriptor("_table")
_WAITING: ListStateDescriptor[Any] = ListStateDescriptor("_waiting")


class DuplicateKeyError(StreamError, SuppressRestartsError):
    """Two rows of a table have the same key, so the row for a record is ambiguous.
    The job is not restarted, because the table would have both rows after a restart, too."""


class LookUpOperator(WithTimers, KeyedFunctionOperator):
    """Looks up the table's row for each record. The second input has the rows of the table.

    Keyed state holds the row of each key, and the records that wait for the end of the table, in
    order. A key with waiting records has an event-time timer at the end of time, which only the
    table's last watermark fires. The watermarks put out are those of the records; they stand still
    while records wait.

    The state does not say whether the table has ended. After a restore, an input that was read to
    its end before the checkpoint ends again without a row, on each of its channels.

    *function*: a function of a record and the row of its key (None: no row), or an object with a
    method ``look_up`` of these arguments. It may use keyed state. *table*: name of the table, for
    errors.
    """

    def __init__(self, function: Any, keys: Keys, keys_of_table: Keys, table: str) -> None:
        super().__init__(function, keys)
        self._keys_of_table = keys_of_table
        self._table = table

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self._room = context.services.look_up_room(context.operator_id)
        self._is_read = False
        self._watermark: int | None = None
        self._is_idle = False
        self._are_stamped = False
        """Whether the results that were added last have timestamps."""

    @property
    def selectors(self) -> Sequence[Any]:
        return functions_of(self.keys, self._keys_of_table)

    def open(self) -> None:
        super().open()
        assert self.keyed_state is not None
        self._by_key = self.keyed_state.value_table(_ROWS)
        self._waiting = self.keyed_state.list_table(_WAITING)
        self._look_up = self.method("look_up")
        self._own = self.context.own
        self._came = 0
        """Number of records that came while the table was read, since the task began."""
        self._is_full = False
        if self.timers.number_of_event_time_timers():  # restored: number not known
            self._fill()

    def inputs(self) -> Sequence[Receiver]:
        return _Records(self, 0), _Table(self, 1)

    # --- the table ----------------------------------------------------------------------------

    def process_second(self, block: Block) -> None:
        rows = self._by_key
        keys = self._keys_of_table.of_block(block)
        for row, key in zip(self.read(block), keys, strict=True):
            if _is_unknown(key):
                continue
            if key in rows:
                raise DuplicateKeyError(
                    f"the table {self._table!r} has several rows of the key {text_of(key)}, and a "
                    "record is given one: drop the others, or make one row of them, with "
                    "groupBy(...) for instance"
                )
            rows.put(key, row)

    def fired_until(self, timestamp: int) -> None:
        """Put out the watermark and the idle status that were held back, and ask the sources to go
        on: the table was read to its end, and no record waits any more."""
        self._is_read = True
        self._room.free()
        if self._watermark is not None:
            self.output.emit_watermark(self._watermark)
        if self._is_idle:
            self.output.emit_status(True)

    def on_event_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None:
        waited = self._waiting.take(key)
        records = self.read(Block([value for _, value in waited]))
        for value, (time, _) in zip(records, waited, strict=True):
            is_stamped = time is not None
            if is_stamped is not self._are_stamped:
                self.results.flush()
                self._are_stamped = is_stamped
            self.results.add(self._answer(value, None), time)

    def on_processing_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None:
        raise AssertionError("a look-up has no timers of processing time")

    def describe_occasion(self) -> str:
        return f"the end of the table {self._table!r}"

    # --- records ------------------------------------------------------------------------------

    def process_first(self, block: Block) -> None:
        keys = self.keys.of_block(block)
        if self._is_read:
            self.results.of_each(
                self._answer, self.read(block), block, keys=keys, key_context=self.key_context
            )
            return
        waiting, context = self._waiting, self.key_context
        times: Iterable[Any] = repeat(None) if block.timestamps is None else block.timestamps
        for value, key, time in zip(self.read(block), keys, times, strict=False):
            if waiting.append(key, (time, value)):
                context.key = key
                self.timers.register_event_time_timer(None, MAX_TIMESTAMP)
        self._came += len(block)
        if self._came >= self._room.most:
            self._fill()

    def _fill(self) -> None:
        if not self._is_full:
            self._is_full = True
            self._room.full()

    def _answer(self, value: Any, _: Any) -> tuple[Any]:
        row = self._by_key.get(self.key_context.key)
        return (self._look_up(value, None if row is None else self._own(row)),)

    def take_watermark(self, timestamp: int) -> None:
        """Put out a watermark of the records or, before the table has ended, only store it."""
        if self._is_read:
            self.output.emit_watermark(timestamp)
        else:
            self._watermark = timestamp

    def take_status(self, idle: bool) -> None:
        """Handle the idle status of the records' input: put it out or, before the table has ended,
        only store it, since operators behind this one must not advance while records wait."""
        if self._is_read:
            self.output.emit_status(idle)
        else:
            self._is_idle = idle


class _Records(InputPort):
    def process_watermark(self, timestamp: int) -> None:
        self._operator.take_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self._operator.take_status(idle)


class _Table(InputPort):
    """The input port of a look-up's table. The last watermark ends the table; all others are
    ignored."""

    def process_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self._operator.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Ignore the idle status of the table's input: records wait for an idle table, too."""


def _is_unknown(key: Any) -> bool:
    """Return whether a key is null or has a null part. As in SQL, null equals nothing."""
    return key is None or (isinstance(key, tuple) and any(part is None for part in key))
