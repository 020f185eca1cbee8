"""The operator for functions of whole batches of a keyed stream, with state in arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from flinkray.state.key_numbers import Slots
from flinkray.state.key_values import can_change
from flinkray.streaming.columnar.conversion import block_to_columns
from flinkray.streaming.columnar.map_batches import batches_of, with_timestamps, without_timestamps
from flinkray.streaming.functions.batch_functions import BatchContext, KeyedBatchFunction
from flinkray.streaming.operators.operator import FunctionOperator
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Block, Columns, Origin
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.typeinfo import TypeInformation

_NO_SLOTS: Slots = np.empty(0, np.int32)


class KeyedBatchOperator(FunctionOperator):
    """Calls a :class:`KeyedBatchFunction` with each batch and the slots of its keys."""

    gives_slots = True

    def __init__(
        self, function: KeyedBatchFunction, keys: Keys, input_type: TypeInformation | None = None
    ) -> None:
        super().__init__(function)
        self._keys = keys
        self._input_type = input_type

    @property
    def selectors(self) -> Sequence[Any]:
        return self._keys.functions

    def open(self) -> None:
        assert self.keyed_state is not None
        self._table = self.keyed_state.columns()
        self._context = _Context(self._table.keys, self.context.own)
        super().open()

    def process_block(self, block: Block) -> None:
        if len(block):
            slots = self._table.slots_of(self._keys.of_block(block))
            self._process(block_to_columns(block, self._input_type), slots)

    def process_columns(self, columns: Columns) -> None:
        if not len(columns):
            return
        keys = self._keys.of_columns(columns)
        if keys is None:
            slots = self._table.slots_of(self._keys.of_block(columns.to_block()))
        else:
            slots = self._table.slots_of_column(keys)
        self._process(columns, slots)

    def _process(self, columns: Columns, slots: Slots) -> None:
        self._context.slots = slots
        results = self.function.process_batch(with_timestamps(columns), self._context)
        self._put_out(results, columns.origin)

    def _put_out(self, results: Any, origin: Origin | None) -> None:
        for batch in batches_of(results):
            if batch.num_rows:
                self.output.emit_columns(without_timestamps(batch, origin))

    def process_watermark(self, timestamp: int) -> None:
        self._context.watermark = timestamp
        self._context.slots = _NO_SLOTS
        self._put_out(self.function.on_watermark(timestamp, self._context), None)
        self.output.emit_watermark(timestamp)


class _OwnedKeys(Sequence[Any]):
    """A sequence of keys by slot that returns copies, since keys of mutable types can change."""

    def __init__(self, keys: Sequence[Any], own: Callable[[Any], Any]) -> None:
        self._keys = keys
        self._own = own

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...

    def __getitem__(self, place: int | slice) -> Any:
        found = self._keys[place]
        return list(map(self._own, found)) if isinstance(place, slice) else self._own(found)

    def __len__(self) -> int:
        return len(self._keys)


class _Context(BatchContext):
    def __init__(self, keys: Sequence[Any], own: Callable[[Any], Any]) -> None:
        self._keys = keys
        self._owned = _OwnedKeys(keys, own)
        self._looked_at = 0
        """Number of keys, from the first one, that are known to be immutable."""
        self.watermark = MIN_TIMESTAMP
        self.slots = _NO_SLOTS

    @property
    def keys(self) -> Sequence[Any]:
        if can_change(self._keys[self._looked_at :]):
            return self._owned
        self._looked_at = len(self._keys)
        return self._keys

    def current_watermark(self) -> int:
        return self.watermark
