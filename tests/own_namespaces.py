"""A process with processes, mounts, a network and /tmp of its own on this machine.

Linux namespaces keep them apart: what runs inside sees no process, port or temporary file of the
machine outside, and all of it is killed when its first process ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

_UNSHARE = ("unshare", "-p", "-f", "--kill-child", "--mount-proc", "-m", "-n", "-u")
_TOOLS = ("unshare", "ip", "bash")

_BEGIN = """
set -eu
place=$1
mount -t tmpfs tmpfs "$place/tmp"
for kept in "$@"; do
    case $kept in /tmp/*)
        mkdir -p "$place/tmp/${kept#/tmp/}"
        mount --bind "$kept" "$place/tmp/${kept#/tmp/}"
    esac
done
mount --rbind "$place/tmp" /tmp
ip link set lo up
"""


def missing(*tools: str) -> str | None:
    """Why this machine can have none in which *tools* are used; None if it can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    absent = [tool for tool in (*_TOOLS, *tools) if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True)
    return None if tried.returncode == 0 else "namespaces are not permitted here"


class OwnNamespaces:
    """From ``begin`` to ``end``.

    Args:
        place: a folder for what they need, with an empty folder ``tmp`` in it.
        kept: other folders that are seen inside although they may lie under /tmp.
        script: what the first process does, as bash; *place* is ``$place`` in it.
        environment: its variables; None: those of this process.
    """

    def __init__(
        self,
        place: Path,
        kept: Iterable[Path],
        script: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = ["bash", "-c", _BEGIN + script, "inside", str(place), *map(str, kept)]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> subprocess.Popen[bytes]:
        """Give what ends with the first process inside, and has its input and its output."""
        self._process = subprocess.Popen(
            [*_UNSHARE, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
        )
        return self._process

    def end(self) -> None:
        """End everything inside."""
        assert self._process is not None
        self._process.kill()  # with --kill-child: the first process inside, and so all of them
        self._process.communicate()
