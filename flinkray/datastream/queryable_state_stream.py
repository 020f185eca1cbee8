"""The end of a stream that is kept in a queryable state."""

from __future__ import annotations

from flinkray.datastream.operator_settings import OperatorSettings
from flinkray.state.descriptors import StateDescriptor
from flinkray.streaming.program.transformations import OperatorTransformation


class QueryableStateStream(OperatorSettings):
    """What ``as_queryable_state`` gives: the name and the descriptor for queries."""

    def __init__(
        self, name: str, descriptor: StateDescriptor, transformation: OperatorTransformation
    ) -> None:
        self._name = name
        self._descriptor = descriptor
        self._transformation = transformation

    def get_queryable_state_name(self) -> str:
        """Under which it is queried."""
        return self._name

    def get_state_descriptor(self) -> StateDescriptor:
        """For queries."""
        return self._descriptor
