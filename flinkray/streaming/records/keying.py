"""Keys of a batch: from a function, or from a field, which is a column for Arrow data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NoReturn

import pyarrow as pa

from flinkray.state.key_group_assignment import KEY_KINDS, KeyHash, KeyKind, stable_hash
from flinkray.state.key_values import are_plain, as_key, can_change, own_key
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import Function
from flinkray.streaming.functions.signatures import refuse_coroutines, refuse_signatures
from flinkray.streaming.operator_errors import Reading
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation, Types

_ENDED = "the key selector has raised StopIteration"


class Keys:
    """Computes the key of each record.
    *selector*: a function, a KeySelector, or the name of a field. *key_type*: keys of Flink's basic
    types are converted to it and have Flink's key groups."""

    def __init__(self, selector: Any, key_type: TypeInformation | None = None) -> None:
        self.field: str | None = None
        if isinstance(selector, str):
            self.field = selector
            of: Callable[[Any], Any] = itemgetter(selector)
        else:
            of = getattr(selector, "get_key", selector)
            if not callable(of):
                raise StreamError(
                    "key_by takes a function, a KeySelector or the name of a field, "
                    f"got {selector!r}"
                )
            refuse_coroutines(selector, "get_key")
            refuse_signatures(selector, "get_key")
        self._of = of
        self._of_all: Callable[[Iterator[Any]], list[Any]]
        self._of_all = getattr(selector, "_keys_of_all", lambda values: list(map(of, values)))
        self.selector = selector
        self.key_type = key_type
        self._kind = _kind_of(key_type)
        self._one_by_one = False
        """Whether a mutable key was seen, so that each key is copied before the next selection."""
        self.reading: Reading | None = None
        """The records being read, for error messages."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Keys, (self.selector, self.key_type)

    @property
    def functions(self) -> Sequence[Any]:
        """The user's function to open before keys are selected, and to close at the end, if any."""
        return (self.selector,) if isinstance(self.selector, Function) else ()

    @property
    def hash_of(self) -> KeyHash:
        """The hash function from which the key group of a key is computed."""
        return stable_hash if self._kind is None else self._kind.hash_of

    @property
    def select(self) -> Callable[[Any], Any]:
        """The selector as a function. Its result is not checked or converted."""
        return self._of

    def of_value(self, value: Any) -> Any:
        """Return the key of a value. Raises UnsupportedKeyError if the key cannot be a key of
        state, or does not fit the declared type."""
        key = self._of(value)
        return own_key(key) if self._kind is None else self._kind.value_of(key)

    def of_block(self, block: Block) -> Sequence[Any]:
        """Return the key of each value.
        If the partitioner before this operator has computed the keys, they come with the block and
        are not computed again. Raises UnsupportedKeyError: a value cannot be a key."""
        return self.computed(block) if block.keys is None else block.keys

    def computed(self, block: Block) -> Sequence[Any]:
        """Return the key of each value, computed with the selector. Raises UnsupportedKeyError: a
        value cannot be a key, or does not fit the declared type."""
        if self._one_by_one:
            of = self._of
            try:
                return [own_key(of(value)) for value in self._read(block)]
            except StopIteration as error:
                raise StreamError(_ENDED) from error
        keys = self.selected(block)
        if self._kind is None:
            if are_plain(keys):
                return keys
            if can_change(keys):
                self._one_by_one = True
                return self.computed(block)
        keep = as_key if self._kind is None else self._kind.value_of
        records = self._read(block)
        return [keep(key) for key, _ in zip(keys, records, strict=True)]

    def selected(self, block: Block) -> list[Any]:
        """Return the selector's result for each value, without checking that it can be a key."""
        try:
            keys = self._of_all(self._read(block))
        except StopIteration as error:
            raise StreamError(_ENDED) from error
        if len(keys) < len(block.values):  # StopIteration of the selector has ended ``map``
            self._report_end(block.values[len(keys)])
        return keys

    def _report_end(self, value: Any) -> NoReturn:
        try:
            self._of(value)
        except StopIteration as error:
            raise StreamError(_ENDED) from error
        raise StreamError(_ENDED)

    def _read(self, block: Block) -> Iterator[Any]:
        records = iter(block.values)
        self.reading = block, records
        return records

    def of_columns(self, columns: Columns) -> pa.Array | None:
        """Return the column of keys. None: keys come from a function, or the column does not exist.
        Raises StreamError: columns of this type cannot be keys. UnsupportedKeyError: a value does
        not fit the declared type."""
        if self.field is None or self.field not in columns.batch.schema.names:
            return None
        column = columns.batch.column(self.field)
        kind = column.type
        if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
            raise StreamError(
                f"column {self.field!r} holds {kind}, which cannot be a key: use one of its parts, "
                "or a function as the key"
            )
        if self._kind is None or (kind == self._kind.arrow and column.null_count == 0):
            return column
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        encoded = column.dictionary_encode(null_encoding="encode")
        distinct = [self._kind.value_of(key) for key in encoded.dictionary.to_pylist()]
        return pa.array(distinct, self._kind.arrow).take(encoded.indices)


def functions_of(*all_keys: Keys | None) -> Sequence[Any]:
    """Return the user functions of several key selections, each once, to be opened and closed."""
    functions = (function for keys in all_keys if keys is not None for function in keys.functions)
    return tuple({id(function): function for function in functions}.values())


def require_same_keys(first: Keys, second: Keys) -> None:
    """Check that equal keys of two streams go to the same subtasks.
    Raises StreamError: the declared types of the keys have different key groups."""
    if first.hash_of is not second.hash_of:
        one, other = (
            "undeclared" if keys.key_type is None else str(keys.key_type)
            for keys in (first, second)
        )
        raise StreamError(
            f"the types of the keys of the two streams differ ({one} and {other}), and so would "
            "the subtasks of equal keys: give both key_by the same key_type"
        )


def _kind_of(key_type: TypeInformation | None) -> KeyKind | None:
    for name, kind in KEY_KINDS.items():
        if key_type == getattr(Types, name)():
            return kind
    return None
