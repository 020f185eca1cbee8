"""Identifiers: each kind is a type of its own, so that a JobID is no AllocationID."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import total_ordering
from typing import ClassVar, TypeVar

from typing_extensions import Self

from flinkray.core.message import message, register
from flinkray.core.schema import stored

_Id = TypeVar("_Id", bound="AbstractID")

RandomBytes = Callable[[int], bytes]
"""Source of randomness: the number of bytes wanted -> that many bytes."""

_source: RandomBytes = os.urandom


def random_bytes(size: int) -> bytes:
    """From the system, or from what :func:`random_bytes_from` has put in its place."""
    return _source(size)


@contextmanager
def random_bytes_from(source: RandomBytes) -> Iterator[None]:
    """Inside, all new ids of this program come from *source*: simulated runs pass a seeded one."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


@total_ordering
class AbstractID:
    """16 bytes, written as 32 lower-case hexadecimal digits (as Flink's AbstractID).

    Immutable, hashable, ordered by value within one type; ids of different types are never equal.
    """

    SIZE: ClassVar[int] = 16
    __slots__ = ("_hash", "_value")

    def __init__(self, value: bytes) -> None:
        if len(value) != self.SIZE:
            raise ValueError(
                f"{type(self).__name__} takes {self.SIZE} bytes, got {len(value)}: {value!r}"
            )
        self._value = bytes(value)
        self._hash = hash((type(self).__name__, self._value))

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)

    @classmethod
    def generate(cls: type[_Id]) -> _Id:
        """A new random id, see :func:`random_bytes_from`."""
        return cls(random_bytes(cls.SIZE))

    @classmethod
    def from_hex(cls: type[_Id], text: str) -> _Id:
        """Parse 32 hexadecimal digits.

        Raises:
            ValueError: *text* is not such an id; the message names the type and the text.
        """
        try:
            value = bytes.fromhex(text)
        except ValueError:
            value = b""
        if len(value) != cls.SIZE or len(text) != 2 * cls.SIZE:
            raise ValueError(
                f"not a {cls.__name__}: {text!r} (expected {2 * cls.SIZE} hexadecimal digits)"
            )
        return cls(value)

    @property
    def value(self) -> bytes:
        return self._value

    def hex(self) -> str:
        return self._value.hex()

    def short(self) -> str:
        """The first 8 digits, for names of processes and for log lines."""
        return self.hex()[:8]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._value == other._value

    def __lt__(self: _Id, other: _Id) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self._value < other._value

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[AbstractID], tuple[bytes]]:
        return type(self), (self._value,)

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"


@stored("JobID")
class JobID(AbstractID):
    """A job."""

    __slots__ = ()


@stored("JobVertexID")
class JobVertexID(AbstractID):
    """A vertex of a job graph."""

    __slots__ = ()


class ExecutionGraphID(AbstractID):
    """One execution graph of a job: each JobMaster makes its own, elastic jobs one per change of
    their parallelism."""

    __slots__ = ()


@stored("IntermediateDataSetID")
class IntermediateDataSetID(AbstractID):
    """The result of a job vertex."""

    __slots__ = ()


@stored("TriggerID")
class TriggerID(AbstractID):
    """One request for a savepoint or a checkpoint: however often it is asked for, it is taken
    once."""

    __slots__ = ()


class AllocationID(AbstractID):
    """One allocation of a slot to a job; given by the ResourceManager."""

    __slots__ = ()


class KvStateID(AbstractID):
    """A queryable state of one attempt of one subtask."""

    __slots__ = ()


class InstanceID(AbstractID):
    """One registration of a TaskExecutor at the ResourceManager."""

    __slots__ = ()


class SlotRequestId(AbstractID):
    """One request for a slot at a SlotPool."""

    __slots__ = ()


class LeaderSessionID(AbstractID):
    """One period of leadership of one component."""

    __slots__ = ()

    @classmethod
    def standalone(cls) -> LeaderSessionID:
        """The id used where no election takes place (Flink's DEFAULT_LEADER_ID, all zero)."""
        return cls(bytes(cls.SIZE))


class FencingToken(AbstractID):
    """Base of the tokens that guard leader-scoped calls; each comes from a leader session."""

    __slots__ = ()

    @classmethod
    def of(cls: type[_Id], session: LeaderSessionID) -> _Id:
        return cls(session.value)

    def leader_session(self) -> LeaderSessionID:
        return LeaderSessionID(self.value)


class DispatcherId(FencingToken):
    """Fencing token of a Dispatcher."""

    __slots__ = ()


class ResourceManagerId(FencingToken):
    """Fencing token of a ResourceManager."""

    __slots__ = ()


class JobMasterId(FencingToken):
    """Fencing token of a JobMaster, and of the SlotPool beside it."""

    __slots__ = ()


@register
class ResourceID(str):
    """The name of a process that takes part in the cluster (a TaskExecutor, a master)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"ResourceID({self!s})"


@stored("WorkerGroupId")
@message
class WorkerGroupId:
    """A worker group: one Ray placement group.  ``value`` is the placement group's id in hex."""

    value: str

    def __str__(self) -> str:
        return self.value


@message
class SlotID:
    """A slot of a TaskExecutor; index -1 asks for a dynamic slot."""

    resource_id: ResourceID
    slot_index: int

    def __str__(self) -> str:
        return f"{self.resource_id}_{self.slot_index}"


@message
class ExecutionVertexID:
    """A subtask of a job vertex."""

    job_vertex_id: JobVertexID
    subtask_index: int

    def __str__(self) -> str:
        return f"{self.job_vertex_id.short()}_{self.subtask_index}"


class CompositeID:
    """Base of ids that are made of others and travel by the thousand: as one value of few bytes."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """The wire form."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The reverse; raises ValueError or struct.error for anything else."""
        raise NotImplementedError


_TWO_IDS_TWO_NUMBERS = struct.Struct("<16s16sII")


@message
class ExecutionAttemptID(CompositeID):
    """One attempt to execute a subtask; attempt numbers start at 0.

    Two JobMasters of a job number its attempts alike; the graph tells them apart.
    """

    graph_id: ExecutionGraphID
    vertex: ExecutionVertexID
    attempt_number: int

    def to_bytes(self) -> bytes:
        vertex = self.vertex
        return _TWO_IDS_TWO_NUMBERS.pack(
            self.graph_id.value,
            vertex.job_vertex_id.value,
            vertex.subtask_index,
            self.attempt_number,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        graph, vertex, subtask_index, attempt_number = _TWO_IDS_TWO_NUMBERS.unpack(data)
        subtask = ExecutionVertexID(JobVertexID(vertex), subtask_index)
        return cls(ExecutionGraphID(graph), subtask, attempt_number)

    def __str__(self) -> str:
        return f"{self.graph_id.short()}_{self.vertex}_{self.attempt_number}"


@message
class ResultPartitionID(CompositeID):
    """A partition as produced by one attempt of its producer."""

    graph_id: ExecutionGraphID
    data_set_id: IntermediateDataSetID
    partition: int
    attempt_number: int

    def to_bytes(self) -> bytes:
        return _TWO_IDS_TWO_NUMBERS.pack(
            self.graph_id.value, self.data_set_id.value, self.partition, self.attempt_number
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        graph, data_set, partition, attempt_number = _TWO_IDS_TWO_NUMBERS.unpack(data)
        graph_id = ExecutionGraphID(graph)
        return cls(graph_id, IntermediateDataSetID(data_set), partition, attempt_number)

    def __str__(self) -> str:
        return (
            f"{self.data_set_id.short()}#{self.partition} of attempt {self.attempt_number} "
            f"in {self.graph_id.short()}"
        )
