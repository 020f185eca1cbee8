"""Broadcast process functions. Every subtask gets the whole second input, for broadcast state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flinkray.state.descriptors import MapStateDescriptor
from flinkray.state.errors import StateError
from flinkray.state.operator_state import HeapBroadcastState, OperatorStateBackend
from flinkray.state.table import NO_KEY
from flinkray.streaming.functions.functions import TimerService
from flinkray.streaming.operators.process import (
    KeyedRecordContext,
    KeyedTimersOperator,
    RecordContext,
    TimelessOperator,
)
from flinkray.streaming.operators.two_inputs import TwoInputs
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.keying import Keys


class BroadcastStates:
    """Gives a function broadcast states, but only those declared in ``broadcast(...)``."""

    def __init__(
        self, descriptors: tuple[MapStateDescriptor[Any, Any], ...], backend: OperatorStateBackend
    ) -> None:
        self._states = {
            descriptor.name: backend.broadcast_state(descriptor) for descriptor in descriptors
        }

    def get(self, descriptor: MapStateDescriptor[Any, Any]) -> HeapBroadcastState:
        state = self._states.get(descriptor.name)
        if state is None:
            raise StateError(
                f"broadcast state {descriptor.name!r} was not declared: pass its descriptor to "
                f"broadcast(...); declared are {sorted(self._states)}"
            )
        return state


class _TimeOf:
    """Base class of broadcast contexts: its methods return processing time and watermark."""

    _service: TimerService

    def current_processing_time(self) -> int:
        return self._service.current_processing_time()

    def current_watermark(self) -> int:
        return self._service.current_watermark()


class WritableContext(_TimeOf, RecordContext):
    """The context for elements of the broadcast side. Broadcast state can be changed."""

    def __init__(self, service: TimerService, states: BroadcastStates) -> None:
        super().__init__(service)
        self._states = states

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any:
        return self._states.get(state_descriptor)


class ReadingContext(WritableContext):
    """The context for elements of the other input, without keys. Broadcast state is read-only."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any:
        return self._states.get(state_descriptor).read_only()


class KeyedReadingContext(_TimeOf, KeyedRecordContext):
    """The context for elements and timers of a keyed input. Broadcast state is read-only."""

    def __init__(
        self,
        key_context: Any,
        service: TimerService,
        own: Callable[[Any], Any],
        states: BroadcastStates,
    ) -> None:
        super().__init__(key_context, service, own)
        self._states = states

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any:
        return self._states.get(state_descriptor).read_only()


class BroadcastProcessOperator(TwoInputs, TimelessOperator):
    """Runs a broadcast process function on a stream without keys."""

    def __init__(
        self, function: Any, descriptors: tuple[MapStateDescriptor[Any, Any], ...]
    ) -> None:
        super().__init__(function)
        self._descriptors = descriptors

    def open(self) -> None:
        super().open()
        states = BroadcastStates(self._descriptors, self.operator_state)
        self._reading = ReadingContext(self.time, states)
        self._writable = WritableContext(self.time, states)

    def process_first(self, block: Block) -> None:
        process = self.function.process_element
        self.results.of_each(process, self.read(block), block, self._reading)

    def process_second(self, block: Block) -> None:
        process = self.function.process_broadcast_element
        self.results.of_each(process, self.read(block), block, self._writable)


class KeyedBroadcastProcessOperator(TwoInputs, KeyedTimersOperator):
    """Runs a broadcast process function on a keyed stream."""

    def __init__(
        self,
        function: Any,
        keys: Keys,
        descriptors: tuple[MapStateDescriptor[Any, Any], ...],
    ) -> None:
        super().__init__(function, keys)
        self._descriptors = descriptors

    def make_context(self) -> Any:
        states = BroadcastStates(self._descriptors, self.operator_state)
        self._writable = WritableContext(self.timer_service, states)
        return KeyedReadingContext(self.key_context, self.timer_service, self.context.own, states)

    def process_first(self, block: Block) -> None:
        self.process_keyed(self.function.process_element, self.keys.of_block(block), block)

    def process_second(self, block: Block) -> None:
        self.key_context.key = NO_KEY
        process = self.function.process_broadcast_element
        self.results.of_each(process, self.read(block), block, self._writable)
