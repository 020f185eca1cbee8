"""Writes the captured state of a task for a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.handles import (
    CarriedFile,
    ChannelStateHandle,
    KeyedStateHandle,
    KeyedStatePart,
    OperatorStateHandle,
    OperatorSubtaskState,
    StateLocation,
)
from flinkray.checkpoint.keyed_state_format import write_keyed_state, write_keyed_state_if_any
from flinkray.checkpoint.operator_state_format import write_operator_state
from flinkray.checkpoint.state_files import StateWriter, delete_state
from flinkray.scheduler.checkpoints.messages import PickledState
from flinkray.state.operator_state import OperatorSnapshot
from flinkray.state.snapshots import SnapshotStream
from flinkray.streaming.network import encode_elements
from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.records.in_flight import InFlight
from flinkray.streaming.state_file import StateFile

log = logging.getLogger(__name__)

KeyedStateParts = tuple[KeyedStatePart, ...]
"""A whole snapshot of one operator's keyed state, and the changes after it, oldest first."""


ChannelPlace = tuple[int, int]
"""(input number, channel number in it), or (result number, subpartition number)."""


@dataclass
class InFlightData:
    """Records and events that a barrier has overtaken, by channel, in order."""

    inputs: dict[ChannelPlace, list[InFlight]] = field(default_factory=dict)
    results: dict[ChannelPlace, list[InFlight]] = field(default_factory=dict)


class SnapshotWriter:
    """Writes the state of one task for one checkpoint. Used by one thread at a time."""

    def __init__(self, writer: StateWriter) -> None:
        self._writer = writer
        self._written: list[StateLocation] = []
        self.operators: dict[str, OperatorSubtaskState] = {}
        """State that is written so far, by operator id."""
        self.pickled: list[PickledState] = []
        """The pickled parts of the written state."""

    def write(self, operator_id: str, state: OperatorState, base: KeyedStateParts) -> None:
        """Write the state of an operator.

        Args:
            base: keyed state in an earlier checkpoint, to which *state* contains the changes. Empty
                if *state* contains all keyed state.

        Raises:
            CheckpointStorageError: the state cannot be written.
        """
        self.operators[operator_id] = OperatorSubtaskState(
            () if state.operator is None else (self._operator_state(state.operator),),
            () if state.keyed is None else self._keyed_state(state.keyed, base),
            files=tuple(map(self._carried, state.files)),
        )
        self.pickled += _pickled(operator_id, state)

    def write_in_flight(self, operator_id: str, in_flight: InFlightData) -> None:
        """Write overtaken data, and add it to the state of an operator that was written before.

        Raises:
            CheckpointStorageError: the data cannot be written.
            StreamError: the data contains records that cannot be pickled.
        """
        self.operators[operator_id] = replace(
            self.operators[operator_id],
            input_channels=self._channels(in_flight.inputs),
            result_subpartitions=self._channels(in_flight.results),
        )

    def _channels(
        self, elements: Mapping[ChannelPlace, Sequence[InFlight]]
    ) -> tuple[ChannelStateHandle, ...]:
        handles = []
        for place in sorted(elements):
            data = encode_elements(elements[place])
            with self._writer.exclusive() as output:
                output.write(data)
                location = output.finish()
            self._written.append(location)
            handles.append(ChannelStateHandle(*place, location))
        return tuple(handles)

    def _carried(self, file: StateFile) -> CarriedFile:
        carried = self._writer.write_carried(file.name, file.pieces())
        self._written.append(carried.location)
        return carried

    def _operator_state(self, snapshot: OperatorSnapshot) -> OperatorStateHandle:
        with self._writer.exclusive() as output:
            handle = write_operator_state(snapshot, output)
        self._written.append(handle.location)
        return handle

    def _keyed_state(
        self, snapshot: SnapshotStream, base: KeyedStateParts
    ) -> tuple[KeyedStateHandle, ...]:
        with self._writer.shared() as output:
            write = write_keyed_state if base else write_keyed_state_if_any
            location = write(snapshot, output)
        if location is None:
            return ()
        self._written.append(location)
        parts = (*base, KeyedStatePart(location, is_whole=not base))
        return (KeyedStateHandle(*snapshot.key_groups, parts),)

    def discard(self) -> None:
        """Delete everything that was written.
        Files that cannot be deleted stay: nothing refers to them.
        """
        for location in self._written:
            try:
                delete_state(location)
            except CheckpointStorageError as error:
                log.warning("state that nobody needs stays: %s", error)
        self._written.clear()


def _pickled(operator_id: str, state: OperatorState) -> Iterator[PickledState]:
    types: list[tuple[str, tuple[str, ...]]] = []
    if state.operator is not None:
        types += ((name, it.serializer.pickled) for name, it in state.operator.states.items())
    if state.keyed is not None:
        keyed = state.keyed.contents()
        types += ((name, table.serializer.pickled) for name, table in keyed.tables.items())
        types += ((name, table.pickled) for name, table in keyed.columns.items())
    return (PickledState(operator_id, name, found) for name, found in types if found)
