"""Results that are part of checkpoints: whatever fails meanwhile, each is there once at the end."""

from __future__ import annotations

from typing import Any

from flinkray.datastream import KeyedProcessFunction
from flinkray.datastream.state import ListStateDescriptor
from flinkray.streaming.records.elements import MAX_TIMESTAMP


class Kept(KeyedProcessFunction[Any, Any, Any]):
    """Keeps all that comes, and puts it out at the end, as one value."""

    def open(self, runtime_context: Any) -> None:
        self.values = runtime_context.get_list_state(ListStateDescriptor("values"))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.values.add(value)
        ctx.timer_service().register_event_time_timer(MAX_TIMESTAMP)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield list(self.values.get())
