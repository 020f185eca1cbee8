"""The keys of a batch: by a function, or by a field, which for Arrow data is a column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Block, Columns


class Keys:
    """How a stream is keyed.

    Args:
        selector: a function of a value, a KeySelector, or the name of a field.
    """

    def __init__(self, selector: Any) -> None:
        self.field: str | None = None
        if isinstance(selector, str):
            self.field = selector
            name = selector
            self._of: Callable[[Any], Any] = lambda value: value[name]
        else:
            of = getattr(selector, "get_key", selector)
            if not callable(of):
                raise StreamError(
                    "key_by takes a function, a KeySelector or the name of a field, "
                    f"got {selector!r}"
                )
            self._of = of
        self.selector = selector

    def __reduce__(self) -> tuple[Any, ...]:
        return Keys, (self.selector,)

    def of_value(self, value: Any) -> Any:
        return self._of(value)

    def of_block(self, block: Block) -> Sequence[Any]:
        """The key of each value; taken from the block where whoever routed it knew them."""
        keys = block.keys
        if keys is None:
            of = self._of
            records = iter(block.values)
            keys = [of(value) for value in records]
        return keys

    def of_columns(self, columns: Columns) -> pa.Array | None:
        """The key column, or None where keys come from a function or there is no such column."""
        if self.field is None or self.field not in columns.batch.schema.names:
            return None
        return columns.batch.column(self.field)
