"""Broadcast process functions: the second input goes to every subtask and fills broadcast state."""

from __future__ import annotations

from typing import Any

from flinkray.state.descriptors import MapStateDescriptor
from flinkray.state.errors import StateError
from flinkray.state.heap_handles import NO_KEY
from flinkray.state.operator_state import HeapBroadcastState, OperatorStateBackend
from flinkray.streaming.functions.functions import TimerService
from flinkray.streaming.operators.operator import FunctionOperator
from flinkray.streaming.operators.process import (
    KeyedRecordContext,
    KeyedTimersOperator,
    RecordContext,
    TimeOnlyService,
    process_keyed_records,
    process_records,
)
from flinkray.streaming.operators.two_inputs import TwoInputs
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.keying import Keys


class BroadcastStates:
    """The broadcast states that were declared with ``broadcast(...)``."""

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
    """Time as broadcast contexts show it."""

    _service: TimerService

    def current_processing_time(self) -> int:
        return self._service.current_processing_time()

    def current_watermark(self) -> int:
        return self._service.current_watermark()


class WritableContext(_TimeOf, RecordContext):
    """For the broadcast side."""

    def __init__(self, service: TimerService, states: BroadcastStates) -> None:
        super().__init__(service)
        self._states = states

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any:
        return self._states.get(state_descriptor)


class ReadingContext(WritableContext):
    """For the other side."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any:
        return self._states.get(state_descriptor).read_only()


class KeyedReadingContext(_TimeOf, KeyedRecordContext):
    """For the other side, keyed, and for timers."""

    def __init__(self, key_context: Any, service: TimerService, states: BroadcastStates) -> None:
        super().__init__(key_context, service)
        self._states = states

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any:
        return self._states.get(state_descriptor).read_only()


class BroadcastProcessOperator(TwoInputs, FunctionOperator):
    """A broadcast process function on a stream without keys."""

    def __init__(
        self, function: Any, descriptors: tuple[MapStateDescriptor[Any, Any], ...]
    ) -> None:
        super().__init__(function)
        self._descriptors = descriptors

    def open(self) -> None:
        super().open()
        states = BroadcastStates(self._descriptors, self.operator_state)
        self._service = TimeOnlyService(self.context.time_service)
        self._reading = ReadingContext(self._service, states)
        self._writable = WritableContext(self._service, states)

    def process_first(self, block: Block) -> None:
        records = iter(block.values)
        out, times = process_records(self.function.process_element, self._reading, block, records)
        self.output.emit_results(out, times, block.origin)

    def process_second(self, block: Block) -> None:
        records = iter(block.values)
        out, times = process_records(
            self.function.process_broadcast_element, self._writable, block, records
        )
        self.output.emit_results(out, times, block.origin)

    def process_watermark(self, timestamp: int) -> None:
        self._service.watermark = timestamp
        self.output.emit_watermark(timestamp)


class KeyedBroadcastProcessOperator(TwoInputs, KeyedTimersOperator):
    """A broadcast process function on a keyed stream."""

    def __init__(
        self,
        function: Any,
        keys: Keys,
        descriptors: tuple[MapStateDescriptor[Any, Any], ...],
    ) -> None:
        super().__init__(function, keys)
        self._descriptors = descriptors

    def make_context(self) -> Any:
        assert self.keyed_state is not None
        states = BroadcastStates(self._descriptors, self.operator_state)
        self._writable = WritableContext(self.timer_service, states)
        return KeyedReadingContext(self.keyed_state.context, self.timer_service, states)

    def process_first(self, block: Block) -> None:
        keys = self.keys.of_block(block)
        records = iter(block.values)
        out, times = process_keyed_records(
            self.function.process_element,
            self.record_context,
            self.key_context,
            keys,
            block,
            records,
        )
        self.output.emit_results(out, times, block.origin)

    def process_second(self, block: Block) -> None:
        self.key_context.key = NO_KEY
        records = iter(block.values)
        out, times = process_records(
            self.function.process_broadcast_element, self._writable, block, records
        )
        self.output.emit_results(out, times, block.origin)
