"""The operating system's process in which tasks run, as its TaskExecutor finds it again."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from flinkray.actors.gateways.task_process import PROCESS_MARK, TaskProcessHost
from flinkray.actors.shared.task_process_notes import write_note

_PR_SET_CHILD_SUBREAPER = 36
"""Of Linux: see prctl(2)."""


def mark_process() -> TaskProcessHost:
    """Have this process's TaskExecutor find what user code starts here and leaves behind.

    Children are in the process's group, or have the mark in their environment if they leave it;
    and those whose parents have ended become children of this process while it lives.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stat = Path("/proc/self/stat").read_text()
    started = int(stat.rpartition(")")[2].split()[19])
    host = TaskProcessHost(os.getpid(), started, os.stat("/proc/self/ns/pid").st_ino)
    os.environ[PROCESS_MARK] = host.mark
    write_note(host)
    return host
