"""The state of a source's enumerator in checkpoints: bytes, and how to read them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.state.stored_forms import SerializerSnapshot

if TYPE_CHECKING:
    from flinkray.state.serializers import StateSerializer


@cache
def _serializer() -> StateSerializer:
    """Return the serializer of enumerator states.
    The serializer is loaded only when a state is written or read, because clients do not need
    it."""
    from flinkray.state.descriptors import ListStateDescriptor
    from flinkray.state.serializers import StateSerializer

    return StateSerializer(ListStateDescriptor("source-enumerator"))


@stored("streaming.EnumeratorState")
@message
class EnumeratorState:
    """The stored state of an enumerator: the serialized result of ``snapshot_state``."""

    serializer: SerializerSnapshot
    """How the state was written, and which parts only pickle covers."""
    data: bytes


def write_enumerator_state(state: Any) -> EnumeratorState:
    """Serialize the state of an enumerator. Raises StateError if it cannot be stored."""
    writer = _serializer().writer()
    data = writer.write_element(state)
    return EnumeratorState(writer.snapshot(), data)


def read_enumerator_state(stored_state: EnumeratorState) -> Any:
    """Deserialize the state of an enumerator.
    Raises StateMigrationError, with the reason, if it cannot be read any more."""
    _serializer().check(stored_state.serializer)
    ((state,),) = _serializer().read_elements([stored_state.data])
    return state
