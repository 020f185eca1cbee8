"""Notes which task processes have started on this machine, so that their leftovers can be found.

A note is a file in the folder for temporary files, named by the process's mark. The note holds a
digest of the environment with which the process was started. A fork that runs no other program has
the same environment. Ids of processes and process groups are reused, so that after a while the id
alone proves nothing.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flinkray.actors.gateways.task_process import TaskProcessHost
from flinkray.core.private_files import opener

_PREFIX = "flinkray-task-process-"


def write_note(host: TaskProcessHost) -> None:
    """Write the note of this process, *host*.
    The note stays until a cleaner has removed what is left.
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
    """Remove the note of a process, after everything that the process had left was removed."""
    _note(host).unlink(missing_ok=True)


def noted_processes() -> Iterator[tuple[TaskProcessHost, str]]:
    """Yield each noted process, with the digest of its environment from the note.
    Only processes of this user and of this process's pid namespace are included.
    """
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
