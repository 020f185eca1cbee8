"""Checkpoints of a local job, complete and pending ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.records.elements import Barrier, Element
from flinkray.streaming.sources.enumerator_state import EnumeratorState
from flinkray.streaming.task.task import StreamTask

ChannelID = tuple[int, int, int]
"""(number of the edge, producing subtask, consuming subtask)"""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a whole job at a point in time."""

    checkpoint_id: int
    operators: Mapping[tuple[str, int], OperatorState]
    """(operator id, subtask) -> state."""
    coordinators: Mapping[str, EnumeratorState | None]
    """Operator id -> state of the enumerator of its source."""
    in_flight: Mapping[ChannelID, Sequence[Element]] = field(default_factory=dict)
    """Elements that the barriers of an unaligned checkpoint have overtaken."""


class PendingLocalCheckpoint:
    """A checkpoint that not all tasks have acknowledged yet.

    A task that has ended takes no part: its results come before the barriers of the tasks that read
    them. If all inputs of a task have ended, no barrier comes to it: the task is triggered like a
    source.
    """

    def __init__(
        self,
        checkpoint_id: int,
        on_complete: Callable[[Checkpoint], None],
        on_declined: Callable[[str], None],
        unaligned: bool = False,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self._unaligned = unaligned
        self._on_complete = on_complete
        self._on_declined = on_declined
        self._acknowledged: dict[tuple[str, int], OperatorState] = {}
        self._awaited: set[StreamTask] = set()
        self._triggered: set[StreamTask] = set()
        self._in_flight: dict[ChannelID, list[Element]] = {}

    def begin(
        self,
        timestamp: int,
        tasks: Sequence[StreamTask],
        enumerators: Mapping[str, EnumeratorState | None],
    ) -> None:
        """Begin the checkpoint at the sources. The job must not have ended."""
        self._barrier = Barrier(self.checkpoint_id, timestamp, unaligned=self._unaligned)
        self._enumerators = enumerators
        self._awaited = {task for task in tasks if not task.finished}
        self._trigger([task for task in tasks if task in self._awaited])

    def _trigger(self, tasks: Sequence[StreamTask]) -> None:
        for task in tasks:
            if task not in self._triggered and task.gate.is_ending():
                self._triggered.add(task)
                task.mailbox.put(partial(task.trigger_checkpoint, self._barrier))

    def awaits_any(self, tasks: Sequence[StreamTask]) -> bool:
        return not self._awaited.isdisjoint(tasks)

    def acknowledge(
        self, task: StreamTask, subtask: int, states: Mapping[str, OperatorState]
    ) -> None:
        """Store the state of a task that has reached the barrier."""
        for operator_id, state in states.items():
            self._acknowledged[operator_id, subtask] = state
        self._awaited.discard(task)

    def was_in_flight(self, channel: ChannelID, elements: Sequence[Element]) -> None:
        """Store elements in flight in a channel, behind those that were stored before."""
        self._in_flight.setdefault(channel, []).extend(elements)

    def has_ended(self, task: StreamTask, others: Sequence[StreamTask]) -> None:
        """Note that the task has ended, possibly before it reached the barrier."""
        self._awaited.discard(task)
        self._trigger([other for other in others if other in self._awaited])

    @property
    def is_complete(self) -> bool:
        return not self._awaited

    def complete(self) -> None:
        self._on_complete(
            Checkpoint(self.checkpoint_id, self._acknowledged, self._enumerators, self._in_flight)
        )

    def decline(self, reason: str) -> None:
        self._on_declined(f"checkpoint {self.checkpoint_id} was declined: {reason}")
