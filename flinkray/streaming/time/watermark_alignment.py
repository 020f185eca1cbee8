"""Watermark alignment: sources that are far ahead of others in event time wait for them.

Every source subtask with an aligned strategy is a *member* of a group.  It tells whoever runs the
job its watermark once in an interval; from there comes the least watermark of the group, and the
member stops reading while its own is ahead of that by more than the drift.  What it would read
meanwhile would only fill the state of windows and joins that wait for others (Flink's FLIP-182).

:class:`AlignmentGroups` is the job's side, :class:`TaskAlignment` the task's.  Between them go a
report ``(group, member, watermark)`` and an answer ``(group, least)``: function calls in a
:class:`~flinkray.streaming.local.local_job.LocalJob`, messages where tasks have processes of their
own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flinkray.streaming.records.elements import MAX_TIMESTAMP


@dataclass(frozen=True)
class Alignment:
    """Sources of a group wait for each other when they are further apart than the drift; times are
    milliseconds."""

    group: str
    max_drift: int
    update_interval: int

    def __post_init__(self) -> None:
        if self.max_drift < 0:
            raise ValueError(f"a drift must not be negative, got {self.max_drift} ms")
        if self.update_interval <= 0:
            raise ValueError(f"an update interval must be positive, got {self.update_interval} ms")


Report = Callable[[str, str, int], None]
"""Called with group, member and watermark; the greatest there is: the member holds nobody back."""


class AlignmentGroups:
    """The watermarks of all members of a job."""

    def __init__(self) -> None:
        self._watermarks: dict[str, dict[str, int]] = {}

    def report(self, group: str, member: str, watermark: int) -> int:
        """Take down a member's watermark; the least of its group."""
        members = self._watermarks.setdefault(group, {})
        members[member] = watermark
        return min(members.values())

    def forget(self, task: str) -> None:
        """The task failed; its members hold nobody back until they report again."""
        for members in self._watermarks.values():
            for member in [member for member in members if member.startswith(f"{task}#")]:
                del members[member]


class AlignedMember:
    """One aligned stream of a source subtask."""

    def __init__(self, alignment: Alignment, name: str, report: Report) -> None:
        self.alignment = alignment
        self._name = name
        self._report = report
        self._watermark: int | None = None
        self._allowed = MAX_TIMESTAMP
        self.idle = False

    @property
    def ahead(self) -> bool:
        """It has to wait."""
        return not self.idle and self._watermark is not None and self._watermark > self._allowed

    def on_watermark(self, timestamp: int) -> None:
        """The stream got so far."""
        self._watermark = timestamp

    def report(self) -> None:
        """Tell the group; a member that never had a watermark is none of the group's yet."""
        if self.idle:
            self._tell(MAX_TIMESTAMP)
        elif self._watermark is not None:
            self._tell(self._watermark)

    def leave(self) -> None:
        """The input has ended."""
        self._tell(MAX_TIMESTAMP)

    def _tell(self, watermark: int) -> None:
        self._report(self.alignment.group, self._name, watermark)

    def on_least(self, watermark: int) -> None:
        """The least watermark of the group."""
        self._allowed = min(watermark, MAX_TIMESTAMP - self.alignment.max_drift)
        self._allowed += self.alignment.max_drift


class TaskAlignment:
    """The aligned streams of one task; all of them read from the source at its head.

    Args:
        task: distinguishes the members of different tasks.
        report: carries reports to the job's :class:`AlignmentGroups`.  The answer comes back
            through :meth:`announce`, from the task's thread.
    """

    def __init__(self, task: str, report: Report) -> None:
        self._task = task
        self._report = report
        self._members: list[AlignedMember] = []

    def join(self, alignment: Alignment) -> AlignedMember:
        """One more aligned stream."""
        name = f"{self._task}#{len(self._members)}"
        member = AlignedMember(alignment, name, self._report)
        self._members.append(member)
        return member

    @property
    def paused(self) -> bool:
        """The source must not be read now."""
        return any(member.ahead for member in self._members)

    def announce(self, group: str, least: int) -> None:
        """The least watermark of a group, this task's part in it or not."""
        for member in self._members:
            if member.alignment.group == group:
                member.on_least(least)
