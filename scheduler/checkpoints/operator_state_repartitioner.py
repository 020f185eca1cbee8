"""Distributes operator state among the new subtasks of an operator.
The module computes with handles only and reads no state.  (Flink's
RoundRobinOperatorStateRepartitioner, with states in the order of their names, so that a restore can
be repeated.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from flinkray.checkpoint.handles import (
    NamedOperatorState,
    OperatorStateHandle,
    OperatorStateMode,
    StateLocation,
)

HandlesOfSubtasks = Sequence[tuple[OperatorStateHandle, ...]]
"""Handles by index of the subtask."""


def repartition(old: HandlesOfSubtasks, parallelism: int) -> list[tuple[OperatorStateHandle, ...]]:
    """Distribute the operator state of the old subtasks among *parallelism* new subtasks.
    Handles keep their order, so that all new subtasks have a union state in the same order.  With
    unchanged parallelism each subtask gets the state it had, except for union states."""
    is_rescaled = len(old) != parallelism
    chunks = _chunks_of_lists(old, parallelism) if is_rescaled else {}
    copies = _broadcast_copies(old, parallelism)
    given: list[list[OperatorStateHandle]] = [[] for _ in range(parallelism)]
    for subtask, handles in enumerate(old):
        for handle in handles:
            parts: dict[int, list[NamedOperatorState]] = defaultdict(list)
            for state in handle.states:
                shares: Iterator[tuple[int, tuple[int, ...]]]
                if state.mode is OperatorStateMode.UNION:
                    shares = ((new, state.offsets) for new in range(parallelism))
                elif state.mode is OperatorStateMode.BROADCAST:
                    wanted = copies[state.name, subtask, handle.location]
                    shares = ((new, state.offsets) for new in wanted)
                elif is_rescaled:
                    shares = chunks[state.name].next(state.offsets)
                else:
                    shares = ((new, state.offsets) for new in (subtask,))
                for new, offsets in shares:
                    parts[new].append(NamedOperatorState(state.name, state.mode, offsets))
            for new, states in parts.items():
                given[new].append(OperatorStateHandle(handle.location, tuple(states)))
    return [tuple(handles) for handles in given]


class _Chunks:
    """Cuts the elements of a list state into contiguous chunks of nearly equal size, one per
    subtask."""

    def __init__(self, elements: int, parallelism: int, start: int) -> None:
        """Cut *elements* elements into chunks for *parallelism* subtasks. *start* is the index of
        the subtask that gets the first chunk.
        """
        self._base, self._larger = divmod(elements, parallelism)
        self._parallelism = parallelism
        self._start = start
        self._chunk = 0
        self._room = self._size(0)
        """How many more elements fit into the current chunk."""

    @property
    def next_start(self) -> int:
        """Index of the subtask that gets the first chunk of the next list state. The subtasks from
        *start* to this one got one element more than the others, if the chunks differ.
        """
        return (self._start + self._larger) % self._parallelism

    def _size(self, chunk: int) -> int:
        return self._base + (chunk < self._larger)

    def next(self, offsets: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (subtask, offsets) for the next elements of the state; *offsets* are those of the
        elements.
        """
        taken = 0
        while taken < len(offsets):
            while not self._room:
                self._chunk += 1
                self._room = self._size(self._chunk)
            part = offsets[taken : taken + self._room]
            yield (self._start + self._chunk) % self._parallelism, part
            taken += len(part)
            self._room -= len(part)


def _chunks_of_lists(old: HandlesOfSubtasks, parallelism: int) -> dict[str, _Chunks]:
    elements: Counter[str] = Counter()
    for _, _, state in _states(old, OperatorStateMode.SPLIT_DISTRIBUTE):
        elements[state.name] += len(state.offsets)
    chunks: dict[str, _Chunks] = {}
    start = 0
    for name in sorted(elements):
        chunks[name] = _Chunks(elements[name], parallelism, start)
        start = chunks[name].next_start
    return chunks


def _broadcast_copies(
    old: HandlesOfSubtasks, parallelism: int
) -> dict[tuple[str, int, StateLocation], list[int]]:
    """Decide which new subtasks read the copy of a broadcast state that an old subtask has written.
    Each new subtask gets one copy: its own copy, if the parallelism is unchanged and it had one.
    Returns (state name, old subtask, location) -> new subtasks."""
    holders: dict[str, dict[int, StateLocation]] = defaultdict(dict)
    copies: dict[tuple[str, int, StateLocation], list[int]] = {}
    for subtask, handle, state in _states(old, OperatorStateMode.BROADCAST):
        holders[state.name].setdefault(subtask, handle.location)
        copies[state.name, subtask, handle.location] = []
    for name, of_subtask in holders.items():
        subtasks = list(of_subtask)
        for new in range(parallelism):
            is_kept = len(old) == parallelism and new in of_subtask
            holder = new if is_kept else subtasks[new % len(subtasks)]
            copies[name, holder, of_subtask[holder]].append(new)
    return copies


def _states(
    old: HandlesOfSubtasks, mode: OperatorStateMode
) -> Iterator[tuple[int, OperatorStateHandle, NamedOperatorState]]:
    for subtask, handles in enumerate(old):
        for handle in handles:
            for state in handle.states:
                if state.mode is mode:
                    yield subtask, handle, state
