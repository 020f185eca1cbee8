"""The state of a source's enumerator in checkpoints, as bytes that say how they are to be read."""

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
    """Loaded when a state is written or read: clients only know that there are such states."""
    from flinkray.state.descriptors import ListStateDescriptor
    from flinkray.state.serializers import StateSerializer

    return StateSerializer(ListStateDescriptor("source-enumerator"))


@stored("streaming.EnumeratorState")
@message
class EnumeratorState:
    """What ``snapshot_state`` gave."""

    serializer: SerializerSnapshot
    """How it was written, and what of it nothing but pickle covers."""
    data: bytes


def write_enumerator_state(state: Any) -> EnumeratorState:
    """Raises StateError: it cannot be stored."""
    writer = _serializer().writer()
    data = writer.write_element(state)
    return EnumeratorState(writer.snapshot(), data)


def read_enumerator_state(stored_state: EnumeratorState) -> Any:
    """Raises StateMigrationError: it cannot be read any more; the text says what has changed."""
    _serializer().check(stored_state.serializer)
    ((state,),) = _serializer().read_elements([stored_state.data])
    return state
