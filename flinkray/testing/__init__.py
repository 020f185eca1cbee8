"""For tests of what runs on flinkray, users' and our own.  Importing it does not import Ray."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.testing_gateway import Call, TestingGateway, UnexpectedCallError
from flinkray.testing.virtual_time import on_virtual_time, run_on_virtual_time
from flinkray.testing.waiting import eventually, wait_until

if TYPE_CHECKING:
    from flinkray.testing.mini_cluster import MiniCluster, scripted_job

__all__ = [
    "Call",
    "ManualClock",
    "MiniCluster",
    "TestingGateway",
    "UnexpectedCallError",
    "eventually",
    "on_virtual_time",
    "run_on_virtual_time",
    "scripted_job",
    "wait_until",
]

_MODULES = {
    "MiniCluster": "flinkray.testing.mini_cluster",
    "scripted_job": "flinkray.testing.mini_cluster",
}


def __getattr__(name: str) -> object:
    """A whole cluster is loaded when it is used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'flinkray.testing' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
