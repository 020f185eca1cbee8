"""Records that look rows up in a table, which is a stream that ends: each is answered when all of
the table has been read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Protocol

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
    """Two rows of a table have the same key, and it is not said which of them a record is to be
    given.  They will be there the next time, too: the job is not restarted."""


class LookUpRoom(Protocol):
    """Of one subtask, for records that wait."""

    most: int
    """With so many, it is full."""

    def full(self) -> None:
        """No more should come.

        Raises:
            OSError: nobody can be told.
        """

    def free(self) -> None:
        """The table has ended, and none will wait any more.

        Raises:
            OSError: nobody can be told.
        """


class EndlessRoom(LookUpRoom):
    """Of programs whose sources cannot be made to wait."""

    most = 2**63

    def full(self) -> None:
        """Nobody minds."""

    def free(self) -> None:
        """Nobody waits."""


class LookUpOperator(WithTimers, KeyedFunctionOperator):
    """The first input has records, the second one the rows of the table.

    Both are keyed state: the row of a key, and the records that wait for the end of the table, in
    the order in which they came.  A key that has some has a timer, and what time it is for timers
    is said by the table alone: it ends when the table does.  Time for those behind the operator is
    that of the records; it stands still while records wait.

    Whether the table has ended is no state.  What was read to its end before a checkpoint ends
    again after a restore, without a row, on as many channels as there are then.

    Args:
        function: of a record and the row of its key, or None; or an object with such a method
            ``look_up``.  It may use keyed state.
        keys, keys_of_table: of both inputs.
        table: its name, for errors.
    """

    room: LookUpRoom = EndlessRoom()
    """Whoever runs the task may have sources wait while it is full."""

    def __init__(self, function: Any, keys: Keys, keys_of_table: Keys, table: str) -> None:
        super().__init__(function, keys)
        self._keys_of_table = keys_of_table
        self._table = table

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self._is_read = False
        self._watermark: int | None = None
        self._is_idle = False
        self._are_stamped = False
        """The results that were added last."""

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
        """Records that had to wait."""
        self._is_full = False
        if self.timers.number_of_event_time_timers():  # restored: how many wait is not known
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
        """The table has ended, and nothing waits any more."""
        self._is_read = True
        self.room.free()
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
        if self._came >= self.room.most:
            self._fill()

    def _fill(self) -> None:
        if not self._is_full:
            self._is_full = True
            self.room.full()

    def _answer(self, value: Any, _: Any) -> tuple[Any]:
        row = self._by_key.get(self.key_context.key)
        return (self._look_up(value, None if row is None else self._own(row)),)

    def take_watermark(self, timestamp: int) -> None:
        """Of the records."""
        if self._is_read:
            self.output.emit_watermark(timestamp)
        else:
            self._watermark = timestamp

    def take_status(self, idle: bool) -> None:
        """Of the records.  While some may wait, those behind must not go on without them."""
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
    """Its time matters to nobody, but that it ends."""

    def process_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self._operator.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Whoever waits for it goes on waiting."""


def _is_unknown(key: Any) -> bool:
    """As SQL has it: what is not known equals nothing."""
    return key is None or (isinstance(key, tuple) and any(part is None for part in key))
