"""Ending what a task process has started, and the process itself where it does not end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from flinkray.actors.gateways.task_process import PROCESS_MARK, TaskProcessHost

_PROC = Path("/proc")

_GRACE = 1.0
"""Seconds that the process has to end by itself: it was told to."""

_PATIENCE = 2.0
"""Seconds after which what was killed is given up: it is stuck in the kernel."""

_POLL = 0.005

_ROUNDS = 3
"""Looks for what others of them have forked meanwhile."""

_STARTED = 16
"""Where the start time is behind the process group: see proc_pid_stat(5)."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Of the table of processes."""

    parent: int
    group: int
    started: int
    """In ticks since the machine was started."""
    is_zombie: bool


def end_with_descendants(host: TaskProcessHost) -> int:
    """Return when they are gone; how many there were besides the process.  Blocks.

    They are its descendants, those in its process group, and those that have its mark in their
    environment.  Takes some milliseconds per hundred processes of the machine.

    Raises:
        ValueError: the host does not name one process, or the caller itself would be ended; then
            nothing is.
    """
    if host.pid <= 1 or not host.mark:
        raise ValueError(f"{host} does not name a process: nothing is ended")
    found = _of(host)
    count = len(found.keys() - {host.pid})
    _wait({pid: process for pid, process in found.items() if pid == host.pid}, _GRACE)
    for _ in range(_ROUNDS):
        for process in found.values():
            _kill(process)
        _wait(found, _PATIENCE)
        found = _of(host)
        if not found:
            break
        count += len(found)
    return count


def _of(host: TaskProcessHost) -> dict[int, psutil.Process]:
    table = _table()
    mark = f"{PROCESS_MARK}={host.mark}".encode()
    belonging = {pid for pid in table if _has(pid, mark)}
    present = table.get(host.pid)
    if present is None or present.started == host.started:  # else its id is another's by now
        belonging |= {p for p, e in table.items() if p == host.pid or e.group == host.pid}
    while more := {p for p, e in table.items() if e.parent in belonging} - belonging:
        belonging |= more
    spared = {1, *_with_ancestors(os.getpid(), table)}
    if belonging & spared:
        raise ValueError(f"{host} is this process, or one that it descends from: nothing is ended")
    found = {}
    for pid in sorted(belonging):
        if pid in table and not table[pid].is_zombie:
            try:
                found[pid] = psutil.Process(pid)
            except psutil.NoSuchProcess:
                continue
    return found


def _with_ancestors(pid: int, table: dict[int, _Entry]) -> Iterator[int]:
    while pid in table:
        yield pid
        pid = table[pid].parent


def _table() -> dict[int, _Entry]:
    table = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(errors="replace")
            except OSError:  # it has ended
                continue
            state, parent, group, *more = text.rpartition(")")[2].split()
            started = int(more[_STARTED])
            table[int(folder.name)] = _Entry(int(parent), int(group), started, state in "ZX")
    return table


def _has(pid: int, mark: bytes) -> bool:
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()  # unless its id is another's by now
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return


def _wait(processes: dict[int, psutil.Process], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while any(map(_is_there, processes.values())) and time.monotonic() < give_up:
        time.sleep(_POLL)


def _is_there(process: psutil.Process) -> bool:
    try:
        status: str = process.status()
    except psutil.NoSuchProcess:
        return False
    return status != psutil.STATUS_ZOMBIE
