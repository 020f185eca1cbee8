"""Describes a checkpoint for people: operators, their states, types and sizes.

Only the metadata and the headers of state files are read, not the state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from flinkray.checkpoint.handles import OperatorStateHandle
from flinkray.checkpoint.layout import metadata_path
from flinkray.checkpoint.metadata import CheckpointedOperator
from flinkray.checkpoint.metadata_file import read_metadata
from flinkray.checkpoint.state_files import open_state
from flinkray.checkpoint.state_format import read_keyed_state_header, read_operator_state_header
from flinkray.core.message import message
from flinkray.state.snapshots import SerializerSnapshot


@message
class StateContents:
    """What ``flinkray checkpoint show`` prints about one state, all subtasks together."""

    name: str
    kind: str
    """Kind of the state, as shown to people. Keyed state: ``value``, ``list`` and so on; a columnar
    table: ``numbers`` or ``rows``. Operator state: ``list``, ``union`` or ``broadcast``."""
    is_keyed: bool
    type: str | None
    """Type that the state's descriptor declares. None: the type follows from the values."""
    elements: int | None
    """Number of elements of an operator state. None for keyed state."""
    pickled: tuple[str, ...]
    """Types in the state that were pickled, and so cannot be migrated."""


@message
class OperatorContents:
    """What ``flinkray checkpoint show`` prints about one operator: its states, timers and sizes."""

    operator_id: str
    name: str
    uid: str | None
    parallelism: int
    max_parallelism: int
    finished: tuple[int, ...]
    """Indices of the subtasks that had reached the end of their data."""
    key_groups: tuple[tuple[int, int], ...]
    """(first, last) key group of each subtask with keyed state."""
    states: tuple[StateContents, ...]
    timers: tuple[str, ...]
    """Names of the timer queues."""
    size: int
    """Size of the operator's state in bytes; files shared with other checkpoints count in full."""
    coordinator_size: int | None
    """Size in bytes of the coordinator's state (for a source: the enumerator's). None: no state."""
    in_flight_size: int
    """Bytes of data in flight to and from the operator that an unaligned checkpoint contains."""


@message
class CheckpointContents:
    """What ``flinkray checkpoint show`` prints about a checkpoint or savepoint."""

    location: str
    job_id: str
    checkpoint_id: int
    kind: str
    timestamp: int
    """Time at which the checkpoint was triggered, in milliseconds since 1970."""
    flinkray_version: str
    operators: tuple[OperatorContents, ...]
    size: int
    """Size of the state in bytes."""


def describe_checkpoint(location: str) -> CheckpointContents:
    """Return a description of a checkpoint. *location*: its directory or its metadata file. Raises
    CheckpointStorageError, which names the file, if no checkpoint exists or it cannot be read."""
    metadata = read_metadata(location)
    operators = tuple(map(_operator, metadata.operators))
    return CheckpointContents(
        metadata_path(location),
        metadata.job_id.hex(),
        metadata.checkpoint_id,
        metadata.kind.value,
        metadata.timestamp,
        metadata.flinkray_version,
        operators,
        sum(operator.size + (operator.coordinator_size or 0) for operator in operators),
    )


def _operator(operator: CheckpointedOperator) -> OperatorContents:
    subtasks = [subtask.state for subtask in operator.subtasks]
    keyed = [handle for state in subtasks for handle in state.keyed_state]
    states: dict[tuple[bool, str], StateContents] = {}
    timers: dict[str, None] = {}
    for handle in keyed:
        for part in handle.parts:
            with open_state(part.location) as state:
                header = read_keyed_state_header(state)
            timers.update(dict.fromkeys(header.timers))
            for table in header.tables:
                _add(states, _contents(table.name, table.kind, True, None, table.serializer))
            for columns in header.columns:
                contents = StateContents(
                    columns.name, columns.kind, True, None, None, columns.pickled
                )
                _add(states, contents)
    for of_subtask in subtasks:
        for it in _operator_states(of_subtask.operator_state):
            _add(states, it)
    channels = [h for s in subtasks for h in (*s.input_channels, *s.result_subpartitions)]
    return OperatorContents(
        operator.operator_id,
        operator.name,
        operator.uid,
        operator.parallelism,
        operator.max_parallelism,
        tuple(s.subtask_index for s in operator.subtasks if s.is_finished),
        tuple(sorted((h.first_key_group, h.last_key_group) for h in keyed)),
        tuple(states[key] for key in sorted(states)),
        tuple(timers),
        sum(location.size for state in subtasks for location in state.locations()),
        None if operator.coordinator is None else operator.coordinator.size,
        sum(handle.location.size for handle in channels),
    )


def _operator_states(handles: Iterable[OperatorStateHandle]) -> Iterator[StateContents]:
    for handle in handles:
        with open_state(handle.location) as state:
            header = read_operator_state_header(state)
        serializers = {it.name: it.serializer for it in header.states}
        for named in handle.states:
            yield _contents(
                named.name, named.mode.value, False, len(named.offsets), serializers[named.name]
            )


def _contents(
    name: str, kind: str, is_keyed: bool, elements: int | None, serializer: SerializerSnapshot
) -> StateContents:
    declared = None if serializer.declared is None else json.loads(serializer.declared)["type"]
    text = None if declared is None else _type_text(declared)
    return StateContents(name, kind, is_keyed, text, elements, serializer.pickled)


def _type_text(described: object) -> str:
    """Return a readable text for a declared type.
    *described*: the type in the form in which :class:`SerializerSnapshot` stores it."""
    match described:
        case {"of": [*parts]}:
            return f"({', '.join('any' if p is None else _type_text(p) for p in parts)})"
        case {"row": [*fields]}:
            named = (f"{name}: {'any' if t is None else _type_text(t)}" for name, t in fields)
            return f"Row({', '.join(named)})"
    return str(described)


def _add(states: dict[tuple[bool, str], StateContents], found: StateContents) -> None:
    """Add *found* to *states*.
    If *states* already has this state, from another subtask or part, combine both."""
    key = not found.is_keyed, found.name
    known = states.get(key)
    if known is not None:
        elements = None
        if found.elements is not None:
            elements = found.elements + (known.elements or 0)
        pickled = tuple(dict.fromkeys((*known.pickled, *found.pickled)))
        found = StateContents(found.name, found.kind, found.is_keyed, found.type, elements, pickled)
    states[key] = found
