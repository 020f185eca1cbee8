"""Keyed state and operator state: what functions store for each key and for each subtask.

A function describes a state with a descriptor and uses the state through a handle. A backend keeps
the contents in tables, and divides them into key groups for snapshots. This package does not depend
on :mod:`flinkray.streaming`. Names are loaded at first use, so that clients can import this package
without NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.lazy_door import lazy_door

if TYPE_CHECKING:
    from flinkray.state.backend import KeyedStateBackend
    from flinkray.state.descriptors import (
        AggregatingStateDescriptor,
        ArrayStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueStateDescriptor,
    )
    from flinkray.state.errors import StateError, StateMigrationError
    from flinkray.state.heap import HeapKeyedStateBackend
    from flinkray.state.interfaces import (
        AggregatingState,
        AppendingState,
        ArrayState,
        BroadcastState,
        ListState,
        MapState,
        MergingState,
        ReadOnlyBroadcastState,
        ReducingState,
        State,
        ValueState,
    )
    from flinkray.state.operator_state import (
        OperatorCapture,
        OperatorSnapshot,
        OperatorStateBackend,
    )
    from flinkray.state.snapshots import KeyedSnapshot, StateCapture
    from flinkray.state.table import KeyContext, ListTable, MapTable, StateTable, ValueTable
    from flinkray.state.ttl import StateTtlConfig, StateVisibility, UpdateType
else:  # not for type checkers, which would take each misspelt name for an object
    __getattr__ = lazy_door(__name__)

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AppendingState",
    "ArrayState",
    "ArrayStateDescriptor",
    "BroadcastState",
    "HeapKeyedStateBackend",
    "KeyContext",
    "KeyedSnapshot",
    "KeyedStateBackend",
    "ListState",
    "ListStateDescriptor",
    "ListTable",
    "MapState",
    "MapStateDescriptor",
    "MapTable",
    "MergingState",
    "OperatorCapture",
    "OperatorSnapshot",
    "OperatorStateBackend",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "State",
    "StateCapture",
    "StateDescriptor",
    "StateError",
    "StateMigrationError",
    "StateTable",
    "StateTtlConfig",
    "StateVisibility",
    "UpdateType",
    "ValueState",
    "ValueStateDescriptor",
    "ValueTable",
]
