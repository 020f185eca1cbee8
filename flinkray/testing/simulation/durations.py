"""Draws the durations of simulated events."""

from __future__ import annotations

from random import Random

from flinkray.testing.simulation.machines import Machines
from flinkray.testing.simulation.network import SimulatedNetwork
from flinkray.testing.simulation.process import SimulatedProcess


class Durations:
    """Draws durations in virtual seconds from the bounds of the network's :class:`Conditions`."""

    def __init__(self, random: Random, network: SimulatedNetwork, machines: Machines) -> None:
        self.start_times: dict[str, tuple[float, float]] = {}
        """Bounds by kind of process; they replace :attr:`Conditions.start`."""
        self._random = random
        self._network = network
        self._machines = machines

    def draw(self, what: str) -> float:
        """Return a random number of virtual seconds between the bounds in the field *what* of
        Conditions."""
        low, high = getattr(self._network.conditions, what)
        return self._random.uniform(low, high)

    def start_time(self, process: SimulatedProcess) -> float:
        """Return the random virtual seconds from the start of a process until it creates its
        endpoint."""
        bounds = self.start_times.get(process.kind)
        return self.draw("start") if bounds is None else self._random.uniform(*bounds)

    def blocking_time(self) -> tuple[float, float]:
        """Return two random numbers: virtual seconds before and after the step of a blocking
        call."""
        before, after = self.draw("blocking"), self.draw("blocking")
        # it is not known which disk the call will use: a slow disk may delay any call
        slowness = max((disk.slowness for disk in self._machines.disks.values()), default=0.0)
        return before + self._random.uniform(0, slowness), after
