"""New ids in a simulated run: the same in each run of a seed."""

from __future__ import annotations

from collections.abc import Callable

from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.scheduler import Scheduler
from flinkray.testing.simulation.seeds import stream


class IdSource:
    """Random bytes, a stream for each process: one that makes more ids changes no other's."""

    def __init__(self, seed: int, scheduler: Scheduler) -> None:
        self._seed = seed
        self._scheduler = scheduler
        self._sources: dict[SimulatedProcess | None, Callable[[int], bytes]] = {}

    def __call__(self, size: int) -> bytes:
        process = self._scheduler.current
        source = self._sources.get(process)
        if source is None:
            name = f"{process.name}.{process.number}" if process else ""
            source = self._sources[process] = stream(self._seed, "ids", name).randbytes
        return source(size)
