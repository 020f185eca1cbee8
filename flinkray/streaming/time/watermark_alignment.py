"""Watermark alignment: sources far ahead of others in event time wait for them (Flink's FLIP-182).

Every source subtask with an aligned strategy is a *member* of a group. Once in an interval it
reports its watermark, and gets the least watermark of the group. It stops reading while its own
watermark is ahead of the least by more than the drift.

:class:`AlignmentGroups` is the side of the job, :class:`TaskAlignment` the side of the task. A
report is ``(group, member, watermark)``, an answer ``(group, least)``. Both are function calls in
a local job, and messages on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flinkray.streaming.records.elements import MAX_TIMESTAMP


@dataclass(frozen=True)
class Alignment:
    """A group of sources, their greatest drift and the interval of their reports (milliseconds)."""

    group: str
    max_drift: int
    update_interval: int

    def __post_init__(self) -> None:
        if self.max_drift < 0:
            raise ValueError(f"a drift must not be negative, got {self.max_drift} ms")
        if self.update_interval <= 0:
            raise ValueError(f"an update interval must be positive, got {self.update_interval} ms")


Report = Callable[[str, str, int], None]
"""Called with group, member and watermark. With the greatest watermark, the member does not hold
back the other members."""


class AlignmentGroups:
    """Keeps the watermarks of the members of all alignment groups of a job."""

    def __init__(self) -> None:
        self._watermarks: dict[str, dict[str, int]] = {}

    def report(self, group: str, member: str, watermark: int) -> int:
        """Store a member's watermark, and return the least watermark of all members in its
        group."""
        members = self._watermarks.setdefault(group, {})
        members[member] = watermark
        return min(members.values())

    def forget(self, task: str) -> None:
        """Remove the members of a failed task, so that other members do not wait for them. They are
        added again by their next report."""
        for members in self._watermarks.values():
            for member in [member for member in members if member.startswith(f"{task}#")]:
                del members[member]


class AlignedMember:
    """One source subtask's stream in an alignment group, whose slower members it waits for."""

    def __init__(self, alignment: Alignment, name: str, report: Report) -> None:
        self.alignment = alignment
        self._name = name
        self._report = report
        self._watermark: int | None = None
        self._allowed = MAX_TIMESTAMP
        self.idle = False

    @property
    def ahead(self) -> bool:
        """Whether this member's watermark is ahead of the group's by more than the drift, so that
        its source must wait."""
        return not self.idle and self._watermark is not None and self._watermark > self._allowed

    def on_watermark(self, timestamp: int) -> None:
        """Set the watermark of the stream."""
        self._watermark = timestamp

    def report(self) -> None:
        """Report the watermark to the group. An idle member reports the greatest time, so that no
        one waits for it. Nothing is reported before the first watermark."""
        if self.idle:
            self._tell(MAX_TIMESTAMP)
        elif self._watermark is not None:
            self._tell(self._watermark)

    def leave(self) -> None:
        """Report the greatest time, so that no member waits for this one: its input has ended."""
        self._tell(MAX_TIMESTAMP)

    def _tell(self, watermark: int) -> None:
        self._report(self.alignment.group, self._name, watermark)

    def on_least(self, watermark: int) -> None:
        """Set the group's least watermark, which this member may be ahead of by the drift only."""
        self._allowed = min(watermark, MAX_TIMESTAMP - self.alignment.max_drift)
        self._allowed += self.alignment.max_drift


class TaskAlignment:
    """The aligned streams of one task, which all read from the source at its head.
    The name *task* makes members unique. *report* carries reports to :class:`AlignmentGroups`; the
    answer comes back through :meth:`announce`, in the task's thread."""

    def __init__(self, task: str, report: Report) -> None:
        self._task = task
        self._report = report
        self._members: list[AlignedMember] = []

    def join(self, alignment: Alignment) -> AlignedMember:
        """Add an aligned stream to this task, and return its member of the group."""
        name = f"{self._task}#{len(self._members)}"
        member = AlignedMember(alignment, name, self._report)
        self._members.append(member)
        return member

    @property
    def paused(self) -> bool:
        """Whether the source must not be read, because a stream of the task is too far ahead."""
        return any(member.ahead for member in self._members)

    def announce(self, group: str, least: int) -> None:
        """Tell the task's members of *group*, if any, the least watermark in the group."""
        for member in self._members:
            if member.alignment.group == group:
                member.on_least(least)
