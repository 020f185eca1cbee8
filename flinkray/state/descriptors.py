"""State descriptors, with which a function requests state from its runtime context."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol

import numpy as np
from typing_extensions import TypeVar

from flinkray.state.errors import StateError
from flinkray.state.ttl import StateTtlConfig

T = TypeVar("T", default=Any)
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
IN = TypeVar("IN", default=Any)
OUT = TypeVar("OUT", default=Any)
_T_co = TypeVar("_T_co", covariant=True)
_IN_contra = TypeVar("_IN_contra", contravariant=True)
_OUT_co = TypeVar("_OUT_co", covariant=True)


class TypeOfValues(Protocol[_T_co]):
    """Interface for type checkers: a TypeInformation of values of type T. Declared here because
    this package does not import the package of the types."""

    def converter(self) -> Callable[[Any], _T_co] | None: ...


class _Reduces(Protocol[T]):
    """Interface for type checkers: a ReduceFunction, which this package does not import."""

    def reduce(self, value1: T, value2: T, /) -> T: ...


class _Aggregates(Protocol[_IN_contra, _OUT_co]):
    """Interface for type checkers: an AggregateFunction, which this package does not import."""

    def create_accumulator(self) -> Any: ...
    def add(self, value: _IN_contra, accumulator: Any, /) -> Any: ...
    def get_result(self, accumulator: Any, /) -> _OUT_co: ...


class StateDescriptor:
    """Describes a state by its name, kind and types.
    Descriptors with the same name in one operator mean one state and must be of the same kind."""

    kind: ClassVar[str]

    def __init__(self, name: str, type_info: Any = None) -> None:
        if not isinstance(name, str) or not name:
            raise StateError(f"a state needs a name, got {name!r}")
        # Interned, because tables are looked up by name.
        self.name = sys.intern(name)
        self.type_info = type_info
        self._ttl_config: StateTtlConfig | None = None
        self._queryable_name: str | None = None

    def get_name(self) -> str:
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Make values of this state expire as *ttl_config* says."""
        self._ttl_config = ttl_config

    @property
    def ttl_config(self) -> StateTtlConfig | None:
        config = self._ttl_config
        return config if config is not None and config.is_enabled() else None

    def set_queryable(self, queryable_state_name: str) -> None:
        """Make keyed state queryable; the name is unique in the job (docs/queryable-state.md).
        Raises StateError if the state is queryable already, or the name is not a non-empty str."""
        if not isinstance(queryable_state_name, str) or not queryable_state_name:
            raise StateError(
                f"state {self.name!r} is queried under a name, got {queryable_state_name!r}"
            )
        if self._queryable_name is not None:
            raise StateError(
                f"state {self.name!r} is queryable as {self._queryable_name!r} already"
            )
        self._queryable_name = queryable_state_name

    def is_queryable(self) -> bool:
        """Return whether the state is queryable."""
        return self._queryable_name is not None

    def get_queryable_state_name(self) -> str | None:
        """Return the name under which the state is queried; None if it is not queryable."""
        return self._queryable_name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a state with one value per key. *default_value* is read if nothing is stored."""

    kind = "value"

    def __init__(
        self,
        name: str,
        value_type_info: TypeOfValues[T] | type[T] | None = None,
        default_value: T | None = None,
    ) -> None:
        super().__init__(name, value_type_info)
        self.default_value = default_value


class ListStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a state with one list per key, or operator state with one list per subtask."""

    kind = "list"

    def __init__(self, name: str, elem_type_info: TypeOfValues[T] | type[T] | None = None) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """Describes a state with one map per key, or a broadcast state."""

    kind = "map"

    def __init__(
        self,
        name: str,
        key_type_info: TypeOfValues[K] | type[K] | None = None,
        value_type_info: TypeOfValues[V] | type[V] | None = None,
    ) -> None:
        super().__init__(name, (key_type_info, value_type_info))


class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a state with one value per key, to which all added values are reduced.
    *reduce_function* is a function or a ReduceFunction."""

    kind = "reducing"

    def __init__(
        self,
        name: str,
        reduce_function: Callable[[T, T], T] | _Reduces[T],
        type_info: TypeOfValues[T] | type[T] | None = None,
    ) -> None:
        super().__init__(name, type_info)
        reduce = getattr(reduce_function, "reduce", reduce_function)
        if not callable(reduce):
            raise StateError(
                f"state {name!r}: a ReduceFunction or a function of two values is needed, "
                f"got {reduce_function!r}"
            )
        self.reduce_function: Any = reduce_function

    def get_reduce_function(self) -> Any:
        """Return the reduce function as it was given."""
        return self.reduce_function

    @property
    def reduce(self) -> Callable[[Any, Any], Any]:
        function = self.reduce_function
        return getattr(function, "reduce", function)  # type: ignore[no-any-return]


class AggregatingStateDescriptor(StateDescriptor, Generic[IN, OUT]):
    """Describes a state with one accumulator per key, to which an AggregateFunction adds values."""

    kind = "aggregating"

    def __init__(
        self, name: str, agg_function: _Aggregates[IN, OUT], state_type_info: Any = None
    ) -> None:
        super().__init__(name, state_type_info)
        missing = [
            method
            for method in ("create_accumulator", "add", "get_result")
            if not callable(getattr(agg_function, method, None))
        ]
        if missing:
            raise StateError(
                f"state {name!r}: {agg_function!r} is no AggregateFunction: it has no "
                f"{', '.join(missing)}"
            )
        self.agg_function: Any = agg_function

    def get_agg_function(self) -> Any:
        """Return the aggregate function as it was given."""
        return self.agg_function


class ArrayStateDescriptor:
    """Describes a state with one number per key, kept in an array.

    Args:
        dtype: NumPy type of the numbers.
        default_value: number of a key that is new.
    """

    def __init__(self, name: str, dtype: Any, default_value: Any = 0) -> None:
        if not isinstance(name, str) or not name:
            raise StateError(f"a state needs a name, got {name!r}")
        self.name = name
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "biuf":
            raise StateError(f"array state {name!r} holds numbers or booleans, not {self.dtype}")
        self.default_value = self.dtype.type(default_value).item()

    def __repr__(self) -> str:
        return f"ArrayStateDescriptor({self.name!r}, {self.dtype})"
