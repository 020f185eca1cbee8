"""A job is there again after each fault, in time, and gone when it was cancelled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.testing.simulation import Simulation, simulate
from tests.availability import JOB_IS_NOT_RUNNING
from tests.simulation.available_job import FAULTS, AvailableJob
from tests.simulation.streaming_program import Program


@simulate(seeds=4, nodes=2)
async def test_a_job_runs_again_in_time_after_each_fault(simulation: Simulation) -> None:
    """E2E-07, E2E-08: two of the faults, which two the seed says."""
    bursts = simulation.random.sample(list(FAULTS), 2)
    await AvailableJob(simulation, bursts=tuple(bursts)).run()


class NotRestarted(AvailableJob):
    """It fails with its first task."""

    def program(self) -> Program:
        program = super().program()
        none = {"restart-strategy.type": "none"}
        return replace(program, configuration={**program.configuration, **none})


def test_job_that_is_not_restarted_after_a_fault_fails_the_availability_check() -> None:
    simulation = Simulation(1, nodes=2)
    job = NotRestarted(simulation, bursts=("kill all TaskExecutors",))
    with pytest.raises(AssertionError, match=JOB_IS_NOT_RUNNING):
        simulation.run(job.run())
