"""State: what functions remember per key and per subtask.

Descriptors say what is wanted, handles are what functions hold, backends keep the entries and
sort them into key groups for snapshots.  Nothing here knows of streams.
"""

from __future__ import annotations

from flinkray.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state.errors import StateError
from flinkray.state.heap import HeapKeyedStateBackend, KeyedSnapshot
from flinkray.state.heap_handles import KeyContext
from flinkray.state.interfaces import (
    AggregatingState,
    AppendingState,
    BroadcastState,
    ListState,
    MapState,
    MergingState,
    ReadOnlyBroadcastState,
    ReducingState,
    State,
    ValueState,
)
from flinkray.state.operator_state import OperatorSnapshot, OperatorStateBackend
from flinkray.state.ttl import StateTtlConfig, StateVisibility, UpdateType

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AppendingState",
    "BroadcastState",
    "HeapKeyedStateBackend",
    "KeyContext",
    "KeyedSnapshot",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MergingState",
    "OperatorSnapshot",
    "OperatorStateBackend",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "State",
    "StateDescriptor",
    "StateError",
    "StateTtlConfig",
    "StateVisibility",
    "UpdateType",
    "ValueState",
    "ValueStateDescriptor",
]
