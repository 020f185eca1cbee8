"""Input splits: handed out as tasks ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flinkray.core.message import message


@message
class InputSplit:
    """A part of a vertex's input; ``data`` is the format's own, unpickled by its tasks only."""

    number: int
    data: bytes
    hosts: tuple[str, ...] = ()
    """Nodes on which reading it is cheap."""


class InputSplitAssigner:
    """Gives each split to one subtask, and again when that subtask is executed again (JM-12).

    A subtask is given splits of its own host first, in the order of the splits.
    """

    def __init__(self, splits: Sequence[InputSplit]) -> None:
        self._all = tuple(splits)
        self._free: dict[int, InputSplit] = {}
        self._by_host: dict[str, dict[int, InputSplit]] = {}
        self._given: dict[int, list[InputSplit]] = {}
        """Subtask -> what its present attempt was given."""
        self.reset()

    def next_split(self, subtask_index: int, number: int, host: str = "") -> InputSplit | None:
        """The *number*-th split, from 0, for a subtask on that node; None: there are no more.

        One that was given already is given again: its answer may have been lost.
        """
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
        """The subtask is going to be executed again, after a local failover."""
        self._add(self._given.pop(subtask_index, ()))

    def reset(self) -> None:
        """Everything is going to be executed again, after a global failover."""
        self._free.clear()
        self._by_host.clear()
        self._given.clear()
        self._add(self._all)

    def _add(self, splits: Iterable[InputSplit]) -> None:
        for split in splits:
            self._free[split.number] = split
            for host in split.hosts:
                self._by_host.setdefault(host, {})[split.number] = split
