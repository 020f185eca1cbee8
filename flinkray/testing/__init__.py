"""For tests of what runs on flinkray, users' and our own.  Importing it does not import Ray."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.testing_gateway import Call, TestingGateway, UnexpectedCallError
from flinkray.testing.virtual_time import on_virtual_time, run_on_virtual_time
from flinkray.testing.waiting import eventually, wait_until

if TYPE_CHECKING:
    from flinkray.testing.cluster_under_test import scripted_job
    from flinkray.testing.mini_cluster import MiniCluster
    from flinkray.testing.operator_harness import OperatorHarness
    from flinkray.testing.simulated_cluster import SimulatedCluster
    from flinkray.testing.simulation import Faults, Simulation, simulate
    from flinkray.testing.stream_results import DataStreamTestSinkFunction

__all__ = [
    "Call",
    "DataStreamTestSinkFunction",
    "Faults",
    "ManualClock",
    "MiniCluster",
    "OperatorHarness",
    "SimulatedCluster",
    "Simulation",
    "TestingGateway",
    "UnexpectedCallError",
    "eventually",
    "on_virtual_time",
    "run_on_virtual_time",
    "scripted_job",
    "simulate",
    "wait_until",
]

_MODULES = {
    "DataStreamTestSinkFunction": "flinkray.testing.stream_results",
    "Faults": "flinkray.testing.simulation",
    "MiniCluster": "flinkray.testing.mini_cluster",
    "OperatorHarness": "flinkray.testing.operator_harness",
    "Simulation": "flinkray.testing.simulation",
    "SimulatedCluster": "flinkray.testing.simulated_cluster",
    "scripted_job": "flinkray.testing.cluster_under_test",
    "simulate": "flinkray.testing.simulation",
}


def __getattr__(name: str) -> object:
    """Whole clusters and the simulation are loaded when they are used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'flinkray.testing' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
