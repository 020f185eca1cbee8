"""The end of a stream."""

from __future__ import annotations

from typing import TypeVar

from flinkray.datastream.slot_sharing_group import SlotSharingGroup
from flinkray.streaming.operator import ChainingStrategy
from flinkray.streaming.transformations import OperatorTransformation

_Self = TypeVar("_Self", bound="OperatorSettings")


class OperatorSettings:
    """What can be set on the operator that a call made."""

    _transformation: OperatorTransformation

    def name(self: _Self, name: str) -> _Self:
        """The operator's name, in plans, metrics and errors."""
        self._transformation.name = name
        return self

    def uid(self: _Self, uid: str) -> _Self:
        """An id under which the operator's state is kept, so that it is found again when the
        program has changed.  Unique in a job."""
        self._transformation.uid = uid
        return self

    def set_uid_hash(self: _Self, uid_hash: str) -> _Self:
        """The same as 32 hexadecimal digits, as logs and snapshots show it."""
        if len(uid_hash) != 32 or any(digit not in "0123456789abcdef" for digit in uid_hash):
            raise ValueError(f"a uid hash has 32 lower-case hexadecimal digits, got {uid_hash!r}")
        self._transformation.uid_hash = uid_hash
        return self

    def set_parallelism(self: _Self, parallelism: int) -> _Self:
        """The number of subtasks.

        Raises:
            ValueError: less than 1, or other than 1 where an operator cannot be parallel.
        """
        if parallelism < 1:
            raise ValueError(f"parallelism must be at least 1, got {parallelism}")
        if self._transformation.non_parallel and parallelism != 1:
            raise ValueError(f"{self._transformation.name} can only have parallelism 1")
        self._transformation.parallelism = parallelism
        return self

    def set_description(self: _Self, description: str) -> _Self:
        """A text for the execution plan."""
        self._transformation.description = description
        return self

    def disable_chaining(self: _Self) -> _Self:
        """Have a task of its own."""
        self._transformation.chaining = ChainingStrategy.NEVER
        return self

    def slot_sharing_group(self: _Self, slot_sharing_group: str | SlotSharingGroup) -> _Self:
        """The group whose slots the operator, and those after it, may run in."""
        if isinstance(slot_sharing_group, SlotSharingGroup):
            self._transformation.slot_sharing_group = slot_sharing_group.get_name()
        else:
            self._transformation.slot_sharing_group = slot_sharing_group
        return self


class DataStreamSink(OperatorSettings):
    """A sink in a program.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> sink = env.from_collection([1]).print().name("out").uid("out-1").set_parallelism(1)
    >>> _ = env.execute("demo")
    1
    """

    def __init__(self, transformation: OperatorTransformation) -> None:
        self._transformation = transformation
