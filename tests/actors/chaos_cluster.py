"""A simulated cluster in which everything takes its time, and of which it is known what must not
happen."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import TracebackType
from typing import Any

from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import SimulatedProcess, Simulation
from tests.simulation.stored_jobs import StoredJobs

LONGEST_STEP = 0.02
"""Seconds that a start, a blocking call or a clean-up takes at most."""
LONGEST_MESSAGE = 0.003
"""Seconds that a message takes at most."""
ORPHANS_LIVE = 0.05
"""Seconds for which a process outlives its owner at most."""


class ChaosCluster(SimulatedCluster):
    """The first thing that must not happen ends the run, unless it is expected."""

    def __init__(
        self,
        simulation: Simulation,
        *nodes: ResourceProfile,
        configuration: dict[str, str],
        expected_error: str | None = None,
    ) -> None:
        """Without *nodes* there is no room for any worker.

        *expected_error*: what is in an error that is logged once.
        """
        super().__init__(simulation, *nodes, configuration=configuration)
        if not nodes:
            self.workers.nodes.clear()
        self.starts: list[str] = []
        """Names of the processes that were started, in their order."""
        self.log_lines: list[str] = []
        self.expected_error = expected_error
        self.set_conditions(
            latency=(0.0, LONGEST_MESSAGE),
            start=(0.0, LONGEST_STEP),
            restart=(0.0, 5 * LONGEST_STEP),
            blocking=(0.0, LONGEST_STEP / 2),
            provider=(0.0, LONGEST_STEP),
            orphans_live=(0.0, 0.0),
        )
        self._log = _Log(self)
        simulation.listeners.append(self._process_changed)

    async def __aenter__(self) -> ChaosCluster:
        logging.getLogger("flinkray").addHandler(self._log)
        await self.start()
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        logging.getLogger("flinkray").removeHandler(self._log)

    def set_conditions(self, **changes: Any) -> None:
        """From now on."""
        network = self.simulation.network
        network.set_conditions(replace(network.conditions, **changes))

    def fail_storage(self, seconds: float) -> None:
        """From now on, for so long, nothing can be read or written."""
        disk, scheduler = self.simulation.disk(), self.simulation.scheduler
        disk.failing = 1.0
        ends = self.simulation.now + seconds
        self._storage_fails_until = max(ends, self._storage_fails_until)

        def works_again() -> None:
            if self._storage_fails_until <= scheduler.now:
                disk.failing = 0.0

        scheduler.at(ends, works_again)

    _storage_fails_until = 0.0

    def tell(self, text: str) -> None:
        """Add to the story."""
        self.simulation.tell("%s", text)

    def problem(self, text: str) -> None:
        """Something happened that must never: the run ends."""
        self.tell(f"!!! {text}")
        self.simulation.scheduler.fail(AssertionError(text))

    def has_result(self, job_id: str) -> bool:
        """Whether it is stored how that job has ended."""
        return self.stored_jobs.result(JobID.from_hex(job_id)) is not None

    @property
    def stored_jobs(self) -> StoredJobs:
        return StoredJobs(self.simulation.disk())

    def _process_changed(self, process: SimulatedProcess) -> None:
        if process.is_alive:
            self.tell(f"+ {process.name}")
            self.starts.append(process.name)
            self._look_at_new(process.name)

    def _look_at_new(self, name: str) -> None:
        kind, _, rest = name.partition("-")
        job = rest[: 2 * JobID.SIZE]
        if kind == "SparkDriver":
            # a past JobMaster's may be there for a moment yet if orphans do not die at once
            has_orphans = self.network.conditions.orphans_live[1] > 0
            drivers = self.processes(name.rpartition("-")[0] if has_orphans else f"{kind}-{job}")
            if len(drivers) > 1:
                self.problem(f"two Spark drivers of one job: {drivers}")
        if kind in ("JobMaster", "SparkDriver") and self.has_result(job):
            self.problem(f"{name} is started though the job has a result")


class _Log(logging.Handler):
    """All lines are kept; errors are problems."""

    def __init__(self, cluster: ChaosCluster) -> None:
        super().__init__(logging.INFO)
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        text, expected = record.getMessage(), self._cluster.expected_error
        self._cluster.log_lines.append(text)
        if record.levelno < logging.ERROR:
            return
        if expected is not None and expected in text:
            self._cluster.expected_error = None
        elif not ("jobmaster failed" in text and "SlotPool" in text and "died" in text):
            # which is so often in a row that the JobMaster gives up
            self._cluster.problem(text)
