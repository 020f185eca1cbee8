"""Writes a savepoint from data, so that a job can start with that state.

After Flink's ``SavepointWriter``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from time import time
from typing import Any

import pyarrow as pa

from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.handles import (
    KeyedStateHandle,
    KeyedStatePart,
    OperatorStateHandle,
    OperatorSubtaskState,
)
from flinkray.checkpoint.layout import (
    DEFAULT_INLINE_THRESHOLD,
    delete_directory,
    savepoint_directory,
    state_writer,
)
from flinkray.checkpoint.metadata import (
    CheckpointedOperator,
    CheckpointedSubtask,
    CheckpointMetadata,
    SnapshotKind,
)
from flinkray.checkpoint.metadata_file import write_metadata
from flinkray.checkpoint.state_files import StateWriter
from flinkray.checkpoint.state_format import write_keyed_state, write_operator_state
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID
from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.core.private_files import GROUP, OWNER, permitted
from flinkray.state import (
    HeapKeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
    ValueStateDescriptor,
)
from flinkray.state.descriptors import StateDescriptor
from flinkray.streaming.program.graph import operator_id_of
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.typeinfo import TypeInformation

DEFAULT_MAX_PARALLELISM = 128


class BootstrapError(FlinkRayError):
    """The savepoint cannot be written; the text says why."""


class _Operator:
    def __init__(self) -> None:
        self.keys: Keys | None = None
        self.keyed: HeapKeyedStateBackend | None = None
        """Keyed state of the operator. None: no keyed state was added."""
        self.operator = OperatorStateBackend()


class SavepointWriter:
    """Builds a new savepoint, whose state is in memory until :meth:`write`.

    Args:
        max_parallelism: number of key groups of the operators; the job that starts from the
            savepoint must have the same.

    All methods but :meth:`write` return the writer itself.
    """

    def __init__(self, max_parallelism: int = DEFAULT_MAX_PARALLELISM) -> None:
        if not 1 <= max_parallelism <= 2**15:
            raise BootstrapError(f"a max parallelism is from 1 to {2**15}, got {max_parallelism}")
        self._max_parallelism = max_parallelism
        self._operators: dict[str, _Operator] = {}

    def with_keyed_state(
        self,
        uid: str,
        descriptor: StateDescriptor,
        entries: pa.Table | Iterable[tuple[Any, Any]],
        key_type: TypeInformation | None = None,
    ) -> SavepointWriter:
        """Add keyed state (value, list or map state) to the operator with the given uid.

        Args:
            entries: pairs of a key and its contents (a value, a list or a dictionary), or a table
                of ``key`` and ``value``. Entries of another savepoint can be passed as
                :meth:`SavepointReader.keyed_entries` returns them. A table cannot hold tuples,
                rows, sets and objects.
            key_type: the type given to ``key_by`` in the job; None if none is given there.
        Raises:
            BootstrapError: a key has no value, the kind of state cannot be written, a table has
                structs, or another state of the operator has keys of another type.
            UnsupportedKeyError: a key is not of the declared type.
        """
        keys = Keys(lambda key: key, key_type)
        backend = self._keyed(uid, keys)
        put = _putting(descriptor, backend.state(descriptor))
        for key, value in _pairs(entries, descriptor):
            if value is None:
                raise BootstrapError(
                    f"state {descriptor.name!r} of {uid!r}: the key {key!r} has no value; leave it "
                    "out"
                )
            backend.context.key = keys.of_value(key)
            put(value)
        return self

    def with_list_state(
        self, uid: str, descriptor: ListStateDescriptor[Any], elements: Iterable[Any]
    ) -> SavepointWriter:
        """Add list state to an operator; its subtasks divide the elements among them."""
        self._operator(uid).operator.list_state(descriptor).add_all(elements)
        return self

    def with_union_list_state(
        self, uid: str, descriptor: ListStateDescriptor[Any], elements: Iterable[Any]
    ) -> SavepointWriter:
        """Add union list state to an operator; each subtask gets all elements."""
        self._operator(uid).operator.union_list_state(descriptor).add_all(elements)
        return self

    def with_broadcast_state(
        self, uid: str, descriptor: MapStateDescriptor[Any, Any], entries: Mapping[Any, Any]
    ) -> SavepointWriter:
        """Add broadcast state to an operator; each subtask gets all entries."""
        self._operator(uid).operator.broadcast_state(descriptor).put_all(dict(entries))
        return self

    def _operator(self, uid: str) -> _Operator:
        if uid not in self._operators:
            self._operators[uid] = _Operator()
        return self._operators[uid]

    def _keyed(self, uid: str, keys: Keys) -> HeapKeyedStateBackend:
        operator = self._operator(uid)
        if operator.keyed is None or operator.keys is None:
            operator.keys = keys
            operator.keyed = HeapKeyedStateBackend(
                self._max_parallelism,
                KeyGroupRange(0, self._max_parallelism - 1),
                now=lambda: int(time() * 1000),
                hash_of=keys.hash_of,
            )
        elif operator.keys.hash_of is not keys.hash_of:
            raise BootstrapError(
                f"the states of {uid!r} have keys of one type, and are given "
                f"{operator.keys.key_type or 'none'} and {keys.key_type or 'none'}: give all of "
                "them the key_type of key_by"
            )
        return operator.keyed

    def write(self, directory: str, permissions: str | None = None) -> str:
        """Write the savepoint into a new directory below *directory*.

        Returns the savepoint's location, for ``--from-savepoint``.

        Args:
            permissions: who may read the savepoint, as in ``storage.permissions``: ``owner`` or
                ``group``. None: as in the cluster that this process is connected to, else
                ``owner``.

        Raises:
            BootstrapError: the savepoint has no state, or *permissions* is invalid.
            CheckpointStorageError: the savepoint cannot be written; the text names the file. Files
                written so far are removed.
        """
        if not self._operators:
            raise BootstrapError("a savepoint without any state is of no use: put some into it")
        if permissions not in (None, OWNER, GROUP):
            raise BootstrapError(f"permissions are {OWNER} or {GROUP}, got {permissions!r}")
        job_id = JobID.generate()
        location = savepoint_directory(directory, job_id)
        is_complete = False
        try:
            with permitted(permissions):
                self._write(location, job_id)
            is_complete = True
        finally:
            if not is_complete:
                with suppress(CheckpointStorageError):
                    delete_directory(location)
        return location

    def _write(self, location: str, job_id: JobID) -> None:
        writer = state_writer(location, DEFAULT_INLINE_THRESHOLD, is_savepoint=True)
        operators = tuple(
            self._written(uid, operator, writer) for uid, operator in self._operators.items()
        )
        metadata = CheckpointMetadata(
            job_id,
            1,
            int(time() * 1000),
            SnapshotKind.SAVEPOINT,
            operators,
            flinkray_version=version("flinkray"),
        )
        write_metadata(location, metadata)

    def _written(self, uid: str, operator: _Operator, writer: StateWriter) -> CheckpointedOperator:
        keyed: tuple[KeyedStateHandle, ...] = ()
        if operator.keyed is not None and operator.keyed.names():
            with writer.shared() as output:
                location = write_keyed_state(operator.keyed.capture().stream(), output)
            part = KeyedStatePart(location, is_whole=True)
            keyed = (KeyedStateHandle(0, self._max_parallelism - 1, (part,)),)
        own: tuple[OperatorStateHandle, ...] = ()
        snapshot = operator.operator.snapshot()
        if snapshot is not None:
            with writer.exclusive() as output:
                own = (write_operator_state(snapshot, output),)
        subtask = CheckpointedSubtask(0, OperatorSubtaskState(own, keyed))
        return CheckpointedOperator(
            operator_id_of(uid), uid, uid, 1, self._max_parallelism, (subtask,)
        )


def _putting(descriptor: StateDescriptor, state: Any) -> Callable[[Any], None]:
    match descriptor:
        case ValueStateDescriptor() | ListStateDescriptor():
            return lambda value: state.update(value)
        case MapStateDescriptor():
            return lambda value: state.put_all(value)
    raise BootstrapError(
        f"state {descriptor.name!r}: only values, lists and maps can be written, and it is "
        f"{descriptor.kind} state"
    )


def _pairs(
    entries: pa.Table | Iterable[tuple[Any, Any]], descriptor: StateDescriptor
) -> Iterator[tuple[Any, Any]]:
    if not isinstance(entries, pa.Table):
        yield from entries
        return
    missing = {"key", "value"} - set(entries.column_names)
    if missing or entries.num_columns > 2:
        raise BootstrapError(
            f"state {descriptor.name!r}: a table must have the columns key and value, and it has "
            f"{', '.join(entries.column_names)}"
        )
    is_map = isinstance(descriptor, MapStateDescriptor)
    for field in entries.schema:
        is_content = is_map and field.name == "value"
        for data_type in _parts_of_map(field.type) if is_content else (field.type,):
            if _has_structs(data_type):
                raise BootstrapError(
                    f"state {descriptor.name!r}: the column {field.name} is of {field.type}, which "
                    "may be of tuples, rows, dictionaries or objects of a class; give pairs of key "
                    "and value instead, as SavepointReader.keyed_entries has them"
                )
    for batch in entries.to_batches():
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        for key, value in zip(keys, values, strict=True):
            if is_map and value is not None:
                value = {entry["key"]: entry["value"] for entry in value}
            yield key, value


def _parts_of_map(data_type: pa.DataType) -> Iterable[pa.DataType]:
    """Return the types of a map's keys and values, in an Arrow column of maps.

    If *data_type* is not a list of structs, return *data_type* alone.
    """
    if pa.types.is_list(data_type) and pa.types.is_struct(data_type.value_type):
        return [field.type for field in data_type.value_type]
    return [data_type]


def _has_structs(data_type: pa.DataType) -> bool:
    is_list = pa.types.is_nested(data_type) and hasattr(data_type, "value_type")
    return _has_structs(data_type.value_type) if is_list else pa.types.is_nested(data_type)
