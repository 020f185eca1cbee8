"""The default target of the programs of this process: a cluster, or the process itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ExecutionTarget:
    """Says where and with which settings ``flinkray run`` runs the jobs of a program."""

    cluster: Any = None
    """Client of the cluster; None: the program runs in this process."""
    parallelism: int | None = None
    """Parallelism of operators without their own, if the program sets none."""
    progress: Any = None
    """Shows the progress of jobs; None: the log does."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    """Options of jobs, where the program sets no other values."""
    environments: list[Any] = field(default_factory=list)
    """The environments that the program has made."""


_present = ExecutionTarget()


def execution_target() -> ExecutionTarget:
    """Return where programs of this process run now, as set by :func:`running_at`."""
    return _present


@contextmanager
def running_at(target: ExecutionTarget) -> Iterator[None]:
    """Context manager: programs of this process run at *target* while it is active."""
    global _present
    before, _present = _present, target
    try:
        yield
    finally:
        _present = before
