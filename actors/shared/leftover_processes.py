"""Ends and removes what task processes leave on their machine. Each task process leaves a note by
which its leftovers are found.

A note is a file in the folder for temporary files, named by the process's mark. The note holds a
digest of the environment with which the process was started. A fork that runs no other program has
the same environment. Ids of processes and process groups are reused, so that after a while the id
alone proves nothing.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flinkray.actors.gateways.task_process import PROCESS_MARK, TaskProcessHost
from flinkray.actors.shared.job_files import sweep_job_files
from flinkray.core.config import ReadableConfig
from flinkray.core.job_options import ROCKSDB_LOCALDIR
from flinkray.core.private_files import opener

_PROC = Path("/proc")

_GRACE = 1.0
"""Seconds that the task process has to end by itself after it was told to."""

_PATIENCE = 2.0
"""Seconds to wait for a killed process. A process that still lives then hangs in the kernel."""

_POLL = 0.005

_ROUNDS = 3
"""Number of rounds of killing and looking again, because processes may have forked."""

_STARTED = 16
"""Index of the start time after the process group in /proc/[pid]/stat: see proc_pid_stat(5)."""


@dataclass(frozen=True, slots=True)
class _Entry:
    parent: int
    group: int
    started: int
    """Start time in clock ticks since the machine was started."""
    is_zombie: bool


def end_with_descendants(host: TaskProcessHost, forked_with: str | None = None) -> int:
    """End the process and everything that it started. Return how many other processes were ended.

    Ended are its descendants, the processes in its group (with *forked_with*, only forks of a
    process with that environment), and the processes with its mark in their environment. Blocks.
    Raises ValueError, and ends nothing, if the host names no process or the caller would be ended.
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
    """End the processes that dead task processes of this machine have started.
    Returns the number of ended processes. Blocks.

    A TaskExecutor cleans up after its own task processes. This function ends the processes left by
    a TaskExecutor that died together with its task processes.
    """
    count = 0
    for host, environment in noted_processes():
        if _is_gone(host):
            with suppress(ValueError):  # the caller descends from that task process
                count += end_with_descendants(host, forked_with=environment)
    return count


def sweep_machine(cluster_id: str, configuration: ReadableConfig) -> int:
    """Remove what dead task processes have left on this machine.
    This includes the processes that they started, the files of the cluster's jobs, and state on the
    disk, except state in directories that a job has configured itself. Returns how many processes
    were ended. Blocks.
    """
    count = end_orphans()
    from flinkray.state.disk.rocksdb import sweep_state_folders  # NumPy takes its time to load

    sweep_job_files(cluster_id)
    configured = configuration.get(ROCKSDB_LOCALDIR)
    for directory in configured.split(",") if configured else [tempfile.gettempdir()]:
        sweep_state_folders(Path(directory.strip()))
    return count


def _is_gone(host: TaskProcessHost) -> bool:
    entry = _entry(_PROC / str(host.pid))
    return entry is None or entry.is_zombie or entry.started != host.started


def _of(host: TaskProcessHost, forked_with: str | None) -> dict[int, psutil.Process]:
    table = _table()
    belonging = {pid for pid in table if _mark_of(pid) == host.mark}
    present = table.get(host.pid)
    # another start time means that the pid belongs to another process by now
    if present is None or present.started == host.started:
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
    try:
        text = (folder / "stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent, group, *more = text.rpartition(")")[2].split()
    return _Entry(int(parent), int(group), int(more[_STARTED]), state in "ZX")


def _mark_of(pid: int) -> str | None:
    """Return the mark in the process's environment: the text that names the task process from which
    it descends. None if it has no mark, has ended, or belongs to another user."""
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
        process.kill()  # psutil does nothing if the pid belongs to another process by now
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


_PREFIX = "flinkray-task-process-"


def write_note(host: TaskProcessHost) -> None:
    """Write the note of this process, *host*, by which its leftovers are found.
    The note stays until a cleaner has removed the leftovers.
    """
    with open(_note(host), "w", opener=opener) as note:
        note.write(environment_of(os.getpid()))


def environment_of(pid: int) -> str:
    """Return a digest of a process's environment.
    The digest is empty if the process has ended or belongs to another user.
    """
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest()


def remove_note(host: TaskProcessHost) -> None:
    """Remove the note of a process whose leftovers are removed."""
    _note(host).unlink(missing_ok=True)


def noted_processes() -> Iterator[tuple[TaskProcessHost, str]]:
    """Yield (process, digest of its environment) for each note of a task process on this machine.
    Only processes of this user and of this process's pid namespace are included."""
    for note in _folder().glob(f"{_PREFIX}*"):
        host = _host(note.name.removeprefix(_PREFIX))
        try:
            is_own = note.stat().st_uid == os.getuid()
            environment = note.read_text() if is_own else ""
        except FileNotFoundError:  # another process has handled it
            continue
        if is_own and host is not None:
            yield host, environment


def _host(mark: str) -> TaskProcessHost | None:
    numbers = mark.split("-")
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return None
    namespace, pid, started = map(int, numbers)
    here = os.stat("/proc/self/ns/pid").st_ino
    return TaskProcessHost(pid, started, namespace) if namespace == here else None


def _note(host: TaskProcessHost) -> Path:
    return _folder() / f"{_PREFIX}{host.mark}"


def _folder() -> Path:
    return Path(tempfile.gettempdir())
