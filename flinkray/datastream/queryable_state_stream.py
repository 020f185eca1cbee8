"""The result of ``as_queryable_state``, which ends a stream in a state that clients can query."""

from __future__ import annotations

from flinkray.datastream.operator_settings import OperatorSettings
from flinkray.state.descriptors import StateDescriptor
from flinkray.streaming.program.transformations import OperatorTransformation


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
        """Return the descriptor for queries."""
        return self._descriptor
