"""Where the programs of this process run, unless they say so themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ExecutionTarget:
    """As ``flinkray run`` says it for the program that it runs."""

    cluster: Any = None
    """A client of the cluster; None: this process."""
    parallelism: int | None = None
    """Of operators that have none of their own, where the program sets none."""
    progress: Any = None
    """Where that of its jobs is shown; None: in the log."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    """Of its jobs, where the program sets nothing else."""
    environments: list[Any] = field(default_factory=list)
    """Those that the program has made."""


_present = ExecutionTarget()


def execution_target() -> ExecutionTarget:
    """The present one."""
    return _present


@contextmanager
def running_at(target: ExecutionTarget) -> Iterator[None]:
    """While active, programs run there."""
    global _present
    before, _present = _present, target
    try:
        yield
    finally:
        _present = before
