"""Makes sure that a Ray node can start Java.

A Ray node looks for ``java`` on the PATH once, when it is started. If it found none, its raylet and
all its processes die as soon as a JVM joins or must be started (Ray 2.60). So a process that starts
Ray must put a Java on the PATH, and a Spark task checks its node before any JVM is started.
``python -m flinkray.spark.ray_java`` prints the folder to put on the PATH before ``ray start``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from flinkray.core.errors import UnsupportedEnvironmentError
from flinkray.spark.environment import find_java

_JAVA_OF_RAYLET = "--java_worker_command="


@contextmanager
def java_on_path() -> Iterator[None]:
    """Context manager: if the PATH of this process has no Java, put one there while Ray is started.
    If none is found, Ray starts without it, and Spark tasks are refused."""
    path = os.environ.get("PATH")
    if shutil.which("java") is None:
        try:
            folder = str(find_java().home / "bin")
        except UnsupportedEnvironmentError:
            folder = ""
        os.environ["PATH"] = os.pathsep.join(filter(None, (folder, path or os.defpath)))
    try:
        yield
    finally:
        if path is None:
            os.environ.pop("PATH", None)
        else:
            os.environ["PATH"] = path


def check_ray_starts_java(parent: Sequence[str] | None = None) -> None:
    """Check, in a process that Ray has started, that its node can start Java. *parent*: command
    line of the node's raylet, the parent process; None: look it up. Raises
    UnsupportedEnvironmentError: Ray found no Java when it was started on this node."""
    command = _parent_command() if parent is None else parent
    if any(argument.strip() == _JAVA_OF_RAYLET for argument in command):
        raise UnsupportedEnvironmentError(
            "Ray was started on this node without a Java on its PATH, and would die when Spark "
            "starts one: end Ray there, and start it again after "
            'export PATH="$(python -m flinkray.spark.ray_java):$PATH"'
        )


def _parent_command() -> list[str]:
    try:
        parent = psutil.Process().parent()
        return [] if parent is None else list(parent.cmdline())
    except psutil.Error:  # the raylet has just ended: Ray ends this process too
        return []


if __name__ == "__main__":
    sys.stdout.write(f"{find_java().home / 'bin'}\n")
