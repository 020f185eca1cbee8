"""Ending what task processes have started, and such a process itself where it does not end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flinkray.actors.gateways.task_process import PROCESS_MARK, TaskProcessHost
from flinkray.actors.shared.task_process_notes import environment_of, noted_processes, remove_note

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


def end_with_descendants(host: TaskProcessHost, forked_with: str | None = None) -> int:
    """Return when they are gone; how many there were besides the process.  Blocks.

    They are its descendants, those in its process group (if *forked_with* is given, of these only
    forks of a process with that environment), and those that have its mark in their environment.
    Takes some milliseconds per hundred processes of the machine.

    Raises:
        ValueError: the host does not name one process, or the caller itself would be ended; then
            nothing is.
    """
    if host.pid <= 1:
        raise ValueError(f"{host} does not name a process: nothing is ended")
    found = _of(host, forked_with)
    count = len(found.keys() - {host.pid})
    _wait({pid: process for pid, process in found.items() if pid == host.pid}, _GRACE)
    for _ in range(_ROUNDS):
        for process in found.values():
            _kill(process)
        _wait(found, _PATIENCE)
        found = _of(host, forked_with)
        if not found:
            break
        count += len(found)
    remove_note(host)
    return count


def end_orphans() -> int:
    """End what was started by task processes of this machine that are gone, and return how many
    there were.  Blocks.

    A TaskExecutor sees to what its own have started.  These are those of one that died with them.
    """
    count = 0
    for host, environment in noted_processes():
        if _is_gone(host):
            with suppress(ValueError):  # it has started who looks for it
                count += end_with_descendants(host, forked_with=environment)
    return count


def _is_gone(host: TaskProcessHost) -> bool:
    entry = _entry(_PROC / str(host.pid))
    return entry is None or entry.is_zombie or entry.started != host.started


def _of(host: TaskProcessHost, forked_with: str | None) -> dict[int, psutil.Process]:
    table = _table()
    belonging = {pid for pid in table if _mark_of(pid) == host.mark}
    present = table.get(host.pid)
    if present is None or present.started == host.started:  # else its id is another's by now
        group = {p for p, e in table.items() if p == host.pid or e.group == host.pid}
        if forked_with is not None:
            group = {pid for pid in group if environment_of(pid) == forked_with != ""}
        belonging |= group
    spared = {1, *_with_ancestors(os.getpid(), table)}
    if _with_descendants(belonging, table) & spared:
        raise ValueError(f"{host} is this process, or one that it descends from: nothing is ended")
    return _found(belonging, table)


def _with_descendants(processes: set[int], table: dict[int, _Entry]) -> set[int]:
    found = set(processes)
    while more := {p for p, e in table.items() if e.parent in found} - found:
        found |= more
    return found


def _found(processes: set[int], table: dict[int, _Entry]) -> dict[int, psutil.Process]:
    """Those that are there, with their descendants."""
    found = {}
    for pid in sorted(_with_descendants(processes, table)):
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
        entry = _entry(folder) if folder.name.isdigit() else None
        if entry is not None:
            table[int(folder.name)] = entry
    return table


def _entry(folder: Path) -> _Entry | None:
    """None: it has ended."""
    try:
        text = (folder / "stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent, group, *more = text.rpartition(")")[2].split()
    return _Entry(int(parent), int(group), int(more[_STARTED]), state in "ZX")


def _mark_of(pid: int) -> str | None:
    """None: it has none, has ended, or is another user's."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    start = f"{PROCESS_MARK}=".encode()
    found = (v for v in environment.split(b"\0") if v.startswith(start))
    mark = next(found, None)
    return None if mark is None else mark.removeprefix(start).decode(errors="replace")


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
