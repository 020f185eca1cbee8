"""Assigns input splits to subtasks when the subtasks ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flinkray.core.message import message


@message
class InputSplit:
    """A part of a vertex's input.  Only the vertex's tasks unpickle ``data``."""

    number: int
    data: bytes
    hosts: tuple[str, ...] = ()
    """Nodes on which the split can be read cheaply."""


class InputSplitAssigner:
    """Assigns each split to one subtask; if the subtask is executed again, to any subtask again
    (JM-12). A subtask first gets the splits on its own host, in the order of the splits."""

    def __init__(self, splits: Sequence[InputSplit]) -> None:
        self._all = tuple(splits)
        self._free: dict[int, InputSplit] = {}
        self._by_host: dict[str, dict[int, InputSplit]] = {}
        self._given: dict[int, list[InputSplit]] = {}
        """Subtask -> splits assigned to its current attempt."""
        self.reset()

    def next_split(self, subtask_index: int, number: int, host: str = "") -> InputSplit | None:
        """Return the *number*-th split, from 0, for a subtask on the node *host*; None if none is
        left. A number that was assigned before gets the same split again."""
        given = self._given.setdefault(subtask_index, [])
        if number < len(given):
            return given[number]
        local = self._by_host.get(host)
        next_number = next(iter(local or self._free), None)
        if next_number is None:
            return None
        split = self._free.pop(next_number)
        for place in split.hosts:
            self._by_host[place].pop(next_number, None)
        given.append(split)
        return split

    def return_splits(self, subtask_index: int) -> None:
        """Take back the splits of a subtask that is executed again after a failure of its
        region."""
        self._add(self._given.pop(subtask_index, ()))

    def reset(self) -> None:
        """Take back all splits, because all subtasks are executed again after a global failure."""
        self._free.clear()
        self._by_host.clear()
        self._given.clear()
        self._add(self._all)

    def _add(self, splits: Iterable[InputSplit]) -> None:
        for split in splits:
            self._free[split.number] = split
            for host in split.hosts:
                self._by_host.setdefault(host, {})[split.number] = split
