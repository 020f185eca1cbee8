"""Joins records of two streams whose timestamps are close (Flink's IntervalJoinOperator)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.core.values import own
from flinkray.state.descriptors import MapStateDescriptor
from flinkray.streaming.errors import StreamError, no_timestamps
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.process import KeyedTimersOperator
from flinkray.streaming.operators.two_inputs import TwoInputs
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.keying import Keys, functions_of

_LEFT: MapStateDescriptor[int, Any] = MapStateDescriptor("left-buffer")
_RIGHT: MapStateDescriptor[int, Any] = MapStateDescriptor("right-buffer")


class JoinContext:
    """Context of a join function: has the timestamps of both records of the present pair."""

    def __init__(self) -> None:
        self.left = self.right = 0

    def get_left_timestamp(self) -> int:
        return self.left

    def get_right_timestamp(self) -> int:
        return self.right

    def get_timestamp(self) -> int:
        return max(self.left, self.right)


class IntervalJoinOperator(TwoInputs, KeyedTimersOperator):
    """Pairs records with equal keys whose timestamps are close. A record is stored until no partner
    of it can arrive any more. *lower*, *upper*: inclusive bounds, in milliseconds, of the right
    timestamp minus the left timestamp."""

    def __init__(
        self,
        function: Any,
        lower: int,
        upper: int,
        keys1: Keys,
        keys2: Keys,
        late_left: OutputTag[Any] | None = None,
        late_right: OutputTag[Any] | None = None,
    ) -> None:
        if lower > upper:
            raise StreamError(f"the lower bound {lower} ms is above the upper bound {upper} ms")
        super().__init__(function, keys1)
        self._lower, self._upper = lower, upper
        self._keys2 = keys2
        self._late = (late_left, late_right)

    @property
    def selectors(self) -> Sequence[Any]:
        return functions_of(self.keys, self._keys2)

    def open(self) -> None:
        super().open()
        assert self.keyed_state is not None
        # The records of a key by timestamp.
        self.left = self.keyed_state.map_table(_LEFT)
        self.right = self.keyed_state.map_table(_RIGHT)
        self._join_context = JoinContext()

    def process_first(self, block: Block) -> None:
        self._join(block, self.keys, True)

    def process_second(self, block: Block) -> None:
        self._join(block, self._keys2, False)

    def _join(self, block: Block, of: Keys, is_left: bool) -> None:
        if block.timestamps is None:
            raise no_timestamps("an interval join needs")
        mine, others = (self.left, self.right) if is_left else (self.right, self.left)
        low, high = (self._lower, self._upper) if is_left else (-self._upper, -self._lower)
        watermark = self.timers.current_watermark
        join, context, key_context = (
            self.function.process_element,
            self._join_context,
            self.key_context,
        )
        late: list[int] = []
        keys = of.of_block(block)
        self.results.begin(block.origin)
        for place, (value, key, time) in enumerate(
            zip(self.read(block), keys, block.timestamps, strict=True)
        ):
            if time < watermark:
                late.append(place)
                continue
            key_context.key = key
            kept = mine.get_to_change(key, time)
            if kept is None:
                mine.put(key, time, [value])
            else:
                kept.append(value)
            for other_time, partners in others.items(key):
                if not time + low <= other_time <= time + high:
                    continue
                context.left, context.right = (time, other_time) if is_left else (other_time, time)
                for partner in partners:
                    copied, theirs = own(value), own(partner)  # the kept records must not change
                    pair = (copied, theirs) if is_left else (theirs, copied)
                    self.results.add(join(*pair, context), max(time, other_time))
            # The latest timestamp that a partner can have.
            until = time + high if high > 0 else time
            self.timers.register_event_time_timer("left" if is_left else "right", until)
        late_tag = self._late[0 if is_left else 1]
        if late and late_tag is not None:
            self.output.emit_side(late_tag, block.take(late))
        self.results.flush()

    def on_event_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None:
        buffers, high = (
            (self.left, self._upper) if namespace == "left" else (self.right, -self._lower)
        )
        buffers.remove_entry(key, timestamp - high if high > 0 else timestamp)
