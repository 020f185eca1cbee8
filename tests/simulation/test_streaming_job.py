"""A streaming job with checkpoints, whose sink commits to an external system."""

from __future__ import annotations

from flinkray.testing.simulation import Simulation, simulate
from tests.simulation.streaming_job import FAULTS, MASTERS_FAULTS, StreamingJob


@simulate(seeds=12, nodes=2, faults=FAULTS)
async def test_a_streaming_job_commits_each_record_once_whatever_goes_wrong(
    simulation: Simulation,
) -> None:
    await StreamingJob(simulation).run()


@simulate(seeds=12, nodes=2, faults=MASTERS_FAULTS)
async def test_no_task_is_restarted_whatever_goes_wrong_with_masters(
    simulation: Simulation,
) -> None:
    await StreamingJob(simulation, only_masters_die=True).run()


def test_a_streaming_job_is_the_same_again() -> None:
    traces = []
    for _ in range(2):
        simulation = Simulation(7, faults=FAULTS, nodes=2)
        simulation.run(StreamingJob(simulation).run())
        traces.append(simulation.trace_hash)
    assert traces[0] == traces[1]
