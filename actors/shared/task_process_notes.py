"""Which task processes have begun on this machine, for whoever looks for what they have left.

A note is a file in the folder for temporary files, named by the process's mark.  It tells with
which environment the process was started, which a fork shows that runs no other program.  Ids of
processes and of their groups are used again, so that the id alone says nothing after a while.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flinkray.actors.gateways.task_process import TaskProcessHost

_PREFIX = "flinkray-task-process-"


def write_note(host: TaskProcessHost) -> None:
    """Of this process; it stays until somebody has seen to its end."""
    note = _note(host)
    note.touch(mode=0o600)
    note.write_text(environment_of(os.getpid()))


def environment_of(pid: int) -> str:
    """A digest of what a process was started with; empty: it has ended, or is another user's."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest()


def remove_note(host: TaskProcessHost) -> None:
    """Nothing is left of the process."""
    _note(host).unlink(missing_ok=True)


def noted_processes() -> Iterator[tuple[TaskProcessHost, str]]:
    """Of this user, and of this process's namespace of process ids, with :func:`environment_of`."""
    for note in _folder().glob(f"{_PREFIX}*"):
        host = _host(note.name.removeprefix(_PREFIX))
        try:
            is_own = note.stat().st_uid == os.getuid()
            environment = note.read_text() if is_own else ""
        except FileNotFoundError:  # somebody else sees to it
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
