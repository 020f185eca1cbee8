"""End of a stream that is kept in a queryable state."""

from __future__ import annotations

from flinkray.datastream.operator_settings import OperatorSettings
from flinkray.state.descriptors import StateDescriptor
from flinkray.streaming.program.transformations import OperatorTransformation


class QueryableStateStream(OperatorSettings):
    """Result of ``as_queryable_state``: the name and the descriptor for queries."""

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
