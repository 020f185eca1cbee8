"""Simulates whole clusters on virtual time, with faults that the seed decides."""

from flinkray.testing.simulation.blocking import SimulatedExecutor
from flinkray.testing.simulation.calls import CallObserver, ObservedCall, observed_calls
from flinkray.testing.simulation.conditions import Conditions
from flinkray.testing.simulation.decorator import simulate
from flinkray.testing.simulation.errors import (
    ForbiddenInSimulationError,
    LivelockError,
    NothingWillHappenError,
    SimulationError,
    UnhandledError,
)
from flinkray.testing.simulation.faults import Faults
from flinkray.testing.simulation.network import Partition, SimulatedNetwork
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.service import SimulatedRpcService
from flinkray.testing.simulation.simulation import Simulation

__all__ = [
    "CallObserver",
    "Conditions",
    "Faults",
    "ForbiddenInSimulationError",
    "LivelockError",
    "NothingWillHappenError",
    "ObservedCall",
    "Partition",
    "SimulatedExecutor",
    "SimulatedNetwork",
    "SimulatedProcess",
    "SimulatedRpcService",
    "Simulation",
    "SimulationError",
    "UnhandledError",
    "observed_calls",
    "simulate",
]
