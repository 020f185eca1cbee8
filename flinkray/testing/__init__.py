"""Helps to test programs on flinkray, and flinkray itself.

Importing this package does not import Ray: whole clusters and the simulation are loaded when they
are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.lazy_door import lazy_door
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.testing_gateway import Call, TestingGateway, UnexpectedCallError
from flinkray.testing.waiting import eventually, wait_until

if TYPE_CHECKING:
    from flinkray.testing.cluster_under_test import scripted_job
    from flinkray.testing.mini_cluster import MiniCluster
    from flinkray.testing.operator_harness import OperatorHarness
    from flinkray.testing.process_function_test_harnesses import ProcessFunctionTestHarnesses
    from flinkray.testing.simulated_cluster import SimulatedCluster
    from flinkray.testing.simulation import Faults, Simulation, simulate
    from flinkray.testing.stream_results import DataStreamTestSinkFunction
    from flinkray.testing.virtual_time import on_virtual_time, run_on_virtual_time
else:  # not for type checkers, which would take each misspelt name for an object
    __getattr__ = lazy_door(__name__)

__all__ = [
    "Call",
    "DataStreamTestSinkFunction",
    "Faults",
    "ManualClock",
    "MiniCluster",
    "OperatorHarness",
    "ProcessFunctionTestHarnesses",
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
