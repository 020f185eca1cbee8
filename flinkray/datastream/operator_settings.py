"""Methods by which a program changes the settings of its operators, and the ends of streams (sink,
queryable state), which have nothing else."""

from __future__ import annotations

from typing import TypeVar

from flinkray.core.arguments import whole_number
from flinkray.datastream.slot_sharing_group import SlotSharingGroup
from flinkray.state.descriptors import StateDescriptor
from flinkray.streaming.operators.operator import ChainingStrategy
from flinkray.streaming.program.transformations import OperatorTransformation, Transformation

_Self = TypeVar("_Self", bound="OperatorSettings")
_Stream = TypeVar("_Stream", bound="StreamSettings")


class OperatorSettings:
    """Methods that change the settings of the operator that a stream method has added."""

    _transformation: OperatorTransformation

    def name(self: _Self, name: str) -> _Self:
        """Set the operator's name, for plans, metrics and errors."""
        self._transformation.name = name
        return self

    def uid(self: _Self, uid: str) -> _Self:
        """Set the id of the operator, unique in a job. A checkpoint stores the operator's state
        under this id, so that a changed program finds the state again."""
        self._transformation.uid = uid
        return self

    def set_uid_hash(self: _Self, uid_hash: str) -> _Self:
        """Set the operator's id as 32 hexadecimal digits, as logs and snapshots show it."""
        if len(uid_hash) != 32 or any(digit not in "0123456789abcdef" for digit in uid_hash):
            raise ValueError(f"a uid hash has 32 lower-case hexadecimal digits, got {uid_hash!r}")
        self._transformation.uid_hash = uid_hash
        return self

    def set_parallelism(self: _Self, parallelism: int) -> _Self:
        """Set the number of subtasks.

        Raises:
            ValueError: less than 1, or other than 1 for an operator that cannot be parallel.
        """
        parallelism = whole_number(parallelism, "parallelism")
        if parallelism < 1:
            raise ValueError(f"parallelism must be at least 1, got {parallelism}")
        if self._transformation.non_parallel and parallelism != 1:
            raise ValueError(f"{self._transformation.name} can only have parallelism 1")
        self._transformation.parallelism = parallelism
        return self

    def set_description(self: _Self, description: str) -> _Self:
        """Set a text that describes the operator in the execution plan."""
        self._transformation.description = description
        return self

    def disable_chaining(self: _Self) -> _Self:
        """Run the operator in a task of its own."""
        self._transformation.chaining = ChainingStrategy.NEVER
        return self

    def slot_sharing_group(self: _Self, slot_sharing_group: str | SlotSharingGroup) -> _Self:
        """Set the slot-sharing group: the operator, and operators after it without a group of their
        own, share slots only with operators of the same group. The slots have the resources of the
        SlotSharingGroup, if it has any. Raises ConfigurationError: no slot can have them."""
        if isinstance(slot_sharing_group, SlotSharingGroup):
            self._transformation.slot_sharing_group = slot_sharing_group.get_name()
            self._transformation.slot_profile = slot_sharing_group.slot_profile()
        else:
            self._transformation.slot_sharing_group = slot_sharing_group
            self._transformation.slot_profile = None
        return self


class StreamSettings(OperatorSettings):
    """The settings of :class:`OperatorSettings`, and the max parallelism, buffer timeout and
    chaining of an operator that has an output. The methods raise TypeError for a stream that does
    not come from an operator, such as the result of ``union``."""

    _stream: Transformation

    @property
    def _transformation(self) -> OperatorTransformation:  # type: ignore[override]
        """The operator whose settings the methods change. Raises TypeError: there is no such
        operator."""
        stream = self._stream
        if isinstance(stream, OperatorTransformation):
            return stream
        raise TypeError(
            f"{stream.name} is no operator: names, ids, parallelism and the like are set on "
            "operators, before or after it"
        )

    def set_max_parallelism(self: _Stream, max_parallelism: int) -> _Stream:
        """Set the number of key groups into which the operator's keyed state is divided. The
        operator can never have more subtasks."""
        max_parallelism = whole_number(max_parallelism, "max parallelism")
        if not 1 <= max_parallelism <= 1 << 15:
            raise ValueError(f"max parallelism must be 1 to 32768, got {max_parallelism}")
        self._transformation.max_parallelism = max_parallelism
        return self

    def force_non_parallel(self: _Stream) -> _Stream:
        """Fix the operator's parallelism to 1; a later attempt to set another one raises
        ValueError."""
        self._transformation.parallelism = self._transformation.max_parallelism = 1
        self._transformation.non_parallel = True
        return self

    def set_buffer_timeout(self: _Stream, timeout_millis: int) -> _Stream:
        """Set how many milliseconds small batches may wait for more records before they are sent.
        -1: until they are full."""
        timeout_millis = whole_number(timeout_millis, "a buffer time-out in milliseconds")
        if timeout_millis < -1:
            raise ValueError(f"a buffer time-out must be at least -1, got {timeout_millis}")
        self._transformation.buffer_timeout = timeout_millis
        return self

    def start_new_chain(self: _Stream) -> _Stream:
        """Run the operator in another task than the operator before it."""
        self._transformation.chaining = ChainingStrategy.HEAD
        return self


class DataStreamSink(OperatorSettings):
    """The sink at the end of a stream, whose settings a program may change.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> sink = env.from_collection([1]).print().name("out").uid("out-1").set_parallelism(1)
    >>> _ = env.execute("demo")
    1
    """

    def __init__(self, transformation: OperatorTransformation) -> None:
        self._transformation = transformation


class QueryableStateStream(OperatorSettings):
    """The result of ``as_queryable_state``: holds the state's name and descriptor for queries."""

    def __init__(
        self, name: str, descriptor: StateDescriptor, transformation: OperatorTransformation
    ) -> None:
        self._name = name
        self._descriptor = descriptor
        self._transformation = transformation

    def get_queryable_state_name(self) -> str:
        """Return the name under which clients query the state."""
        return self._name

    def get_state_descriptor(self) -> StateDescriptor:
        """Return the state's descriptor, with which clients query the state."""
        return self._descriptor
