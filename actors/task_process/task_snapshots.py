"""Writes the captured state of a task for a checkpoint, and reads it when the task is restored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.checkpoint.errors import (
    CheckpointNotFoundError,
    CheckpointStorageError,
    CorruptCheckpointError,
    UnknownCheckpointFormatError,
)
from flinkray.checkpoint.handles import (
    CarriedFile,
    KeyedStateHandle,
    KeyedStatePart,
    OperatorStateHandle,
    OperatorSubtaskState,
    StateLocation,
    TaskState,
)
from flinkray.checkpoint.state_files import StateWriter, delete_state, read_carried
from flinkray.checkpoint.state_format import (
    read_keyed_state,
    read_operator_state,
    write_keyed_state,
    write_keyed_state_if_any,
    write_operator_state,
)
from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.scheduler.checkpoints.messages import PickledState
from flinkray.state.operator_state import OperatorSnapshot, StateFile
from flinkray.state.snapshots import SnapshotBody, SnapshotContents, SnapshotStream
from flinkray.streaming.operators.operator import OperatorState, StreamOperator

log = logging.getLogger(__name__)

KeyedStateParts = tuple[KeyedStatePart, ...]
"""A whole snapshot of one operator's keyed state, and the changes after it, oldest first."""


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

    def write_bytes(self, data: bytes) -> StateLocation:
        """Write *data* apart from other state, and return its location.

        Raises:
            CheckpointStorageError: the data cannot be written.
        """
        with self._writer.exclusive() as output:
            output.write(data)
            location = output.finish()
        self._written.append(location)
        return location

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
                log.warning("state of a discarded snapshot cannot be deleted: %s", error)
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


Operators = Sequence[tuple[str, StreamOperator]]
"""(operator id, operator) of each operator, after its set-up."""


_LOST = (CheckpointNotFoundError, CorruptCheckpointError, UnknownCheckpointFormatError)


class StateNotReadError(TaskError):
    """Raised when a task's state cannot be read. The text names the operator and the file."""

    @property
    def is_lost(self) -> bool:
        """Whether the state is lost for good. False: the storage may only be away for a while."""
        return isinstance(self.__cause__, _LOST)

    @property
    def is_refused(self) -> bool:
        """Whether another attempt will fail too, until a person has changed something."""
        cause = self.__cause__
        return isinstance(cause, CheckpointStorageError) and not cause.retryable


def read_states(
    state: TaskState, operators: Operators, check: Callable[[], None]
) -> dict[str, list[OperatorState]]:
    """Read the restored state of a task, and return it by operator id.
    Keyed state is read only later, while its operator is restored.

    Args:
        check: called before each file or body is read. An error that it raises ends the reading.

    Raises:
        StateNotReadError: a file is missing, cannot be read, or is corrupt. For keyed state this
            may also be raised while an operator is restored from it.
    """
    states = {}
    for operator_id, operator in operators:
        of_operator = state.operators.get(operator_id)
        if of_operator is not None:
            with _told(operator.context.name):
                states[operator_id] = _read(of_operator, operator, check)
    return states


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except CheckpointStorageError as error:
        raise StateNotReadError(
            f"the state of operator {name!r} cannot be read: {error}"
        ) from error


def _read(
    state: OperatorSubtaskState, operator: StreamOperator, check: Callable[[], None]
) -> list[OperatorState]:
    states = []
    key_groups, name = _key_groups_of(operator), operator.context.name
    if key_groups is not None:
        for keyed in read_keyed_state(state.keyed_state, key_groups):
            check()
            states.append(OperatorState(keyed=_OfOperator(keyed, name, check)))
    for handle in state.operator_state:
        check()
        states += [OperatorState(operator=it) for it in read_operator_state([handle])]
    if state.files:
        files = (StateFile(it.name, partial(_pieces, it, name, check)) for it in state.files)
        states.append(OperatorState(files=tuple(files)))
    return states


def _pieces(file: CarriedFile, name: str, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield the pieces of a file, which is read only while the operator is restored from it.
    *name* is the operator for error texts. *check* is called before each piece and may raise.
    """
    with _told(name):
        for piece in read_carried(file):
            check()
            yield piece


class _OfOperator(SnapshotStream):
    """Keyed state whose files are read only while the operator is restored. Errors of reading name
    the operator.
    """

    def __init__(self, stored: SnapshotStream, name: str, check: Callable[[], None]) -> None:
        self.key_groups = stored.key_groups
        self._stored = stored
        self._name = name
        self._check = check

    def bodies(self) -> Iterator[SnapshotBody]:
        with _told(self._name):
            for body in self._stored.bodies():
                self._check()
                yield body

    def contents(self) -> SnapshotContents:
        return self._stored.contents()


def own_keyed_state(state: TaskState, operators: Operators) -> dict[str, KeyedStateParts]:
    """Return, by operator, the restored keyed state that covers exactly this subtask's key groups.
    The next snapshot may write only the changes to this state. Operators whose state comes from
    several handles are left out.
    """
    own = {}
    for operator_id, operator in operators:
        of_operator = state.operators.get(operator_id)
        handles = () if of_operator is None else of_operator.keyed_state
        if len(handles) == 1 and handles[0].key_groups == _key_groups_of(operator):
            own[operator_id] = handles[0].parts
    return own


def _key_groups_of(operator: StreamOperator) -> KeyGroupRange | None:
    return None if operator.keyed_state is None else operator.keyed_state.key_groups
