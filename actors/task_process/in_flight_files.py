"""Writes the in-flight data of a task (records and events that a barrier has overtaken) for a
checkpoint, and reads it when the task is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flinkray.actors.task_process.task_snapshots import SnapshotWriter, StateNotReadError
from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.handles import ChannelStateHandle, TaskState
from flinkray.checkpoint.state_files import open_state
from flinkray.streaming.network import decode_elements, encode_elements
from flinkray.streaming.records.elements import Element
from flinkray.streaming.records.in_flight import InFlight, given_again

ChannelPlace = tuple[int, int]
"""(input number, channel number in it), or (result number, subpartition number)."""


@dataclass
class InFlightData:
    """Records and events that a barrier has overtaken, in order, for each channel."""

    inputs: dict[ChannelPlace, list[InFlight]] = field(default_factory=dict)
    results: dict[ChannelPlace, list[InFlight]] = field(default_factory=dict)


def write_in_flight(writer: SnapshotWriter, operator_id: str, in_flight: InFlightData) -> None:
    """Write in-flight data, each channel by itself, and add it to the state of an operator that
    *writer* has written before.

    Raises:
        CheckpointStorageError: the data cannot be written.
        StreamError: the data contains records that cannot be pickled.
    """
    writer.operators[operator_id] = replace(
        writer.operators[operator_id],
        input_channels=_write_channels(writer, in_flight.inputs),
        result_subpartitions=_write_channels(writer, in_flight.results),
    )


def _write_channels(
    writer: SnapshotWriter, elements: Mapping[ChannelPlace, Sequence[InFlight]]
) -> tuple[ChannelStateHandle, ...]:
    return tuple(
        ChannelStateHandle(*place, writer.write_bytes(encode_elements(elements[place])))
        for place in sorted(elements)
    )


def read_in_flight(
    state: TaskState, check: Callable[[], None]
) -> tuple[dict[ChannelPlace, list[Element]], dict[ChannelPlace, list[Element]]]:
    """Return the in-flight data of the task's input channels and result subpartitions.

    Raises:
        StateNotReadError: a file is missing, cannot be read, or is corrupt.
        StateMigrationError: the data contains records of classes that cannot be read any more.
    """
    states = state.operators.values()
    try:
        return (
            _read_channels([it for s in states for it in s.input_channels], check),
            _read_channels([it for s in states for it in s.result_subpartitions], check),
        )
    except CheckpointStorageError as error:
        raise StateNotReadError(f"data that was in flight cannot be read: {error}") from error


def _read_channels(
    handles: Iterable[ChannelStateHandle], check: Callable[[], None]
) -> dict[ChannelPlace, list[Element]]:
    found = {}
    for handle in handles:
        check()
        with open_state(handle.location) as it:
            data = it.read(0, it.size)
            found[handle.gate, handle.channel] = given_again(decode_elements(data, it.name))
    return found
