"""Batch mode: the order in which an operator reads bounded inputs, sorted by key or one first.

Corresponds to Flink's sorting inputs with BatchExecutionKeyedStateBackend and its timer service.

Used for broadcast process functions (Flink's BatchCoBroadcastWithNonKeyedOperator), look-ups.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import IO, Any

from flinkray.core import cloud_pickle
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.operator import (
    OperatorStateCapture,
    Output,
    Receiver,
    StreamOperator,
)
from flinkray.streaming.operators.source import BLOCK_RECORDS
from flinkray.streaming.records.elements import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Block,
    Columns,
    Records,
)
from flinkray.streaming.records.key_sorter import DEFAULT_MEMORY, Entry, KeySorter
from flinkray.streaming.records.keying import Keys, functions_of
from flinkray.streaming.time.turn import Portion


class _TimelessOutput(Output):
    """Passes records on, and drops watermarks and idle status. For each key, the operator is given
    a last watermark; it must not reach the operators behind."""

    def __init__(self, output: Output) -> None:
        self.__dict__.update(output.__dict__)

    def emit_watermark(self, timestamp: int) -> None:
        return None

    def emit_status(self, idle: bool) -> None:
        return None


class _Reordering(StreamOperator):
    """Base of operators that collect inputs of another *operator* and pass them to it in another
    order. Records beyond *memory* bytes are kept in files."""

    held: KeySorter | KeptBatches

    def __init__(self, operator: StreamOperator, memory: int = DEFAULT_MEMORY) -> None:
        self.operator = operator
        self._memory = memory

    @property
    def selectors(self) -> Sequence[Any]:
        return self.operator.selectors

    def setup(self, context: Any, output: Any) -> None:
        super().setup(context, output)
        self.operator.setup(replace(context, is_head=False), output)
        self._portion = Portion(context.clock, context.turn)

    def close(self) -> None:
        try:
            self.operator.close()
        finally:
            self.held.close()

    def finish(self) -> None:
        self.operator.finish()

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        raise StreamError(
            "batch mode takes no checkpoints: what fails is read again from the start"
        )


class _Port:
    """An input of a reordering operator: hands the records and the end of the input to this
    operator. *takes_columns* False: columns become rows."""

    def __init__(
        self, take: Callable[[Any], None], end: Callable[[], None], takes_columns: bool = False
    ) -> None:
        self._take = take
        self._end = end
        self._takes_columns = takes_columns

    def process_block(self, block: Block) -> None:
        self._take(block)

    def process_columns(self, columns: Columns) -> None:
        self._take(columns if self._takes_columns else columns.to_block())

    def process_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self._end()

    def process_status(self, idle: bool) -> None:
        """Do nothing: in batch mode there are no watermarks that an idle input could hold back."""


class SortedInputsOperator(_Reordering):
    """Collects the inputs of another operator and gives them to it by key and in order of time.
    At the end of each key all its timers fire, and its state is removed. An input without *keys*
    (the broadcast side) is passed on at once, so all of it comes first."""

    def __init__(
        self, operator: StreamOperator, keys: Sequence[Keys | None], memory: int = DEFAULT_MEMORY
    ) -> None:
        super().__init__(operator, memory)
        self._keys = tuple(keys)

    @property
    def selectors(self) -> Sequence[Any]:
        return (*self.operator.selectors, *functions_of(*self._keys))

    def setup(self, context: Any, output: Any) -> None:
        super().setup(context, _TimelessOutput(output))
        self.output = output
        self._portion = Portion(context.clock, context.turn, BLOCK_RECORDS)

    def open(self) -> None:
        self.held = self.sorter = KeySorter(self._memory)
        self._open_inputs = len(self._keys)
        self._ports = self.operator.inputs()
        self.operator.open()

    def inputs(self) -> Sequence[Receiver]:
        return [_Port(partial(self.take_in, place), self.end) for place in range(len(self._keys))]

    def take_in(self, place: int, block: Block) -> None:
        """Collect records of one input, or pass them on if the input has no keys."""
        keys = self._keys[place]
        if keys is None:
            self._ports[place].process_block(block)
        else:
            self.sorter.add(place, block, keys.of_block(block))

    def end(self) -> None:
        """Note that one of the inputs has ended. After the last one, process all records."""
        self._open_inputs -= 1
        if self._open_inputs == 0:
            self._left = self._portion.begin()
            for key, entries in self.sorter.by_key():
                for place, block in _blocks(key, entries):
                    self._process(self._ports[place], block)
                self._end_key()
            self.output.emit_watermark(MAX_TIMESTAMP)

    def _process(self, port: Receiver, block: Block) -> None:
        """Pass a block to *port* in portions, between which the task pauses. A portion may go on
        with the records of the next key."""
        at = 0
        while at < len(block):
            end = min(len(block), at + self._left)
            port.process_block(block.part(at, end))
            self._left -= end - at
            at = end
            if not self._left:
                self._left = self._portion.end(self._portion.size)
                self.context.turn.pause()

    def _end_key(self) -> None:
        operator: Any = self.operator
        timers = getattr(operator, "timers", None)
        while timers is not None:
            operator.process_watermark(MAX_TIMESTAMP)
            if not timers.fire_all_processing_time_timers():
                timers.current_watermark = MIN_TIMESTAMP
                break
            self.context.turn.pause()
        assert operator.keyed_state is not None
        operator.keyed_state.clear()


def _blocks(key: Any, entries: Iterator[Entry]) -> Iterator[tuple[int, Block]]:
    """Yield the records of a key in blocks, each with the number of its input."""
    for (place, stamped), same in groupby(entries, key=itemgetter(2, 5)):
        while chunk := list(islice(same, BLOCK_RECORDS)):
            values = [entry[4] for entry in chunk]
            times = [entry[1] for entry in chunk] if stamped else None
            yield place, Block(values, times, [key] * len(chunk))


class BroadcastFirstOperator(_Reordering):
    """Holds the first input of another operator back until its second input has ended.
    *memory*: bytes of records that are kept in memory; further records go to a file."""

    def open(self) -> None:
        self.held = self.kept = KeptBatches(self._memory)
        self._is_waiting = True
        self._first_has_ended = False
        self._first, self._second = self.operator.inputs()
        self.operator.open()

    def inputs(self) -> Sequence[Receiver]:
        return (
            _Port(self.take_in, self.end_first, takes_columns=True),
            _Port(self.broadcast, self.end_broadcast),
        )

    def take_in(self, batch: Records) -> None:
        """Take records of the first input: store them until the second input has ended, and pass
        them on after that."""
        if self._is_waiting:
            self.kept.add(batch)
        elif isinstance(batch, Block):
            self._first.process_block(batch)
        else:
            self._first.process_columns(batch)

    def end_first(self) -> None:
        self._first_has_ended = True
        if not self._is_waiting:
            self._first.process_watermark(MAX_TIMESTAMP)

    def broadcast(self, block: Block) -> None:
        self._second.process_block(block)

    def end_broadcast(self) -> None:
        """Note that the second input has ended: pass on the records that were held back."""
        self._is_waiting = False
        self._second.process_watermark(MAX_TIMESTAMP)
        for batch in self.kept.take():
            for begin, end in self._portion.of(len(batch)):
                self.take_in(batch.part(begin, end))
                self.context.turn.pause()
        if self._first_has_ended:
            self._first.process_watermark(MAX_TIMESTAMP)


_OVERHEAD = 64
"""Bytes of a record in memory in addition to the bytes of its pickled form."""


class KeptBatches:
    """Stores batches and returns them in their order. *memory*: bytes kept in memory before a
    temporary file is used, estimated from one record of each block."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._batches: list[Records] = []
        self._size = 0
        self._file: IO[bytes] | None = None

    @property
    def has_file(self) -> bool:
        """Whether batches were written to a file because they exceeded the memory."""
        return self._file is not None

    def add(self, batch: Records) -> None:
        if not len(batch):
            return
        if isinstance(batch, Block):
            self._size += (len(cloud_pickle.dumps(batch.values[0])) + _OVERHEAD) * len(batch)
        else:
            self._size += batch.batch.nbytes
        self._batches.append(batch)
        if self._size >= self._memory:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="flinkray-kept-")  # noqa: SIM115 - read later
        for batch in self._batches:
            cloud_pickle.dump(batch, self._file)  # values may have classes without a module
        self._batches, self._size = [], 0

    def take(self) -> Iterator[Records]:
        """Yield all batches in their order, then delete the file. Call this once, at the end."""
        if self._file is not None:
            self._file.seek(0)
            while True:
                try:
                    batch = pickle.load(self._file)
                except EOFError:
                    break
                yield batch
        yield from self._batches
        self.close()

    def close(self) -> None:
        self._batches = []
        if self._file is not None:
            self._file.close()
            self._file = None
