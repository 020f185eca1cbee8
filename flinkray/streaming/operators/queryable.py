"""The operator behind ``as_queryable_state``: writes records into a state that can be queried."""

from __future__ import annotations

from typing import Any

from flinkray.state.descriptors import StateDescriptor, ValueStateDescriptor
from flinkray.streaming.operators.keyed import KeyedFunctionOperator
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.keying import Keys


class QueryableStateOperator(KeyedFunctionOperator):
    """Writes each record into the queryable state of its key, and puts nothing out.

    Value state holds the last record of a key. Reducing and aggregating state add the record.
    """

    def __init__(self, descriptor: StateDescriptor, keys: Keys) -> None:
        super().__init__(None, keys)
        self.descriptor = descriptor

    def open(self) -> None:
        assert self.keyed_state is not None
        self._state: Any = self.keyed_state.state(self.descriptor)

    def process_block(self, block: Block) -> None:
        is_value = isinstance(self.descriptor, ValueStateDescriptor)
        take = self._state.update if is_value else self._state.add
        context = self.key_context
        keys = self.keys.of_block(block)
        for value, key in zip(self.read(block), keys, strict=True):
            context.key = key
            take(value)
