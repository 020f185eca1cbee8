"""The operator for functions that get all records of a key in a batch together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flinkray.streaming.errors import text_of
from flinkray.streaming.functions.functions import TimerService
from flinkray.streaming.operators.process import KeyedRecordContext, KeyedTimersOperator
from flinkray.streaming.records.elements import Block


class _GroupContext(KeyedRecordContext):
    __slots__ = ("timestamps",)

    def __init__(self, key_context: Any, service: TimerService, own: Callable[[Any], Any]) -> None:
        super().__init__(key_context, service, own)
        self.timestamps: list[int] | None = None


class KeyedGroupOperator(KeyedTimersOperator):
    """Calls a function once per key of a block. Results have the latest timestamp of the key."""

    _group: tuple[Any, int] | None = None
    """Key and number of records of the call that is running, for error messages."""

    def make_context(self) -> Any:
        return _GroupContext(self.key_context, self.timer_service, self.context.own)

    def process_block(self, block: Block) -> None:
        process, context, key_context = (
            self.function.process_group,
            self.record_context,
            self.key_context,
        )
        own = self.context.own
        keys = self.keys.of_block(block)
        groups = _by_key(keys, self.read(block))
        times = None if block.timestamps is None else _by_key(keys, block.timestamps)
        self.results.begin(block.origin)
        for key, values in groups.items():
            key_context.key = key
            context.timestamps = None if times is None else times[key]
            latest = context.record_timestamp = None if times is None else max(times[key])
            self._group = key, len(values)
            self.results.add(process(own(key), values, context), latest)
        self._group = None
        self.results.flush()

    def describe_occasion(self) -> str:
        if self._group is None:
            return super().describe_occasion()
        key, number = self._group
        return f"{number} records of key {text_of(key)}"


def _by_key(keys: Sequence[Any], things: Iterable[Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for key, thing in zip(keys, things, strict=True):
        groups[key].append(thing)
    return groups
