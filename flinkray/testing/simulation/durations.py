"""How long things take that take a while by themselves."""

from __future__ import annotations

from random import Random

from flinkray.testing.simulation.machines import Machines
from flinkray.testing.simulation.network import SimulatedNetwork
from flinkray.testing.simulation.process import SimulatedProcess


class Durations:
    """Drawn between the bounds of the network's :class:`Conditions`; virtual seconds."""

    def __init__(self, random: Random, network: SimulatedNetwork, machines: Machines) -> None:
        self.start_times: dict[str, tuple[float, float]] = {}
        """By kind of process: bounds that count in place of :attr:`Conditions.start`."""
        self._random = random
        self._network = network
        self._machines = machines

    def draw(self, what: str) -> float:
        """One between the bounds that the conditions give for *what*."""
        low, high = getattr(self._network.conditions, what)
        return self._random.uniform(low, high)

    def start_time(self, process: SimulatedProcess) -> float:
        """Until a new process makes its endpoint."""
        bounds = self.start_times.get(process.kind)
        return self.draw("start") if bounds is None else self._random.uniform(*bounds)

    def blocking_time(self) -> tuple[float, float]:
        """Before and after the step of a blocking call."""
        before, after = self.draw("blocking"), self.draw("blocking")
        # which disk the call is about to use nobody knows: a slow one may delay any of them
        slowness = max((disk.slowness for disk in self._machines.disks.values()), default=0.0)
        return before + self._random.uniform(0, slowness), after
