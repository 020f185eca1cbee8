"""The whole cluster under every kind of fault."""

from __future__ import annotations

from flinkray.testing.simulation import Simulation, simulate
from tests.simulation.whole_cluster import FAULTS, LARGE, LARGE_FAULTS, WholeCluster


@simulate(seeds=20, nodes=3, faults=FAULTS)
async def test_every_job_ends_whatever_goes_wrong(simulation: Simulation) -> None:
    await WholeCluster(simulation).run()


@simulate(seeds=5, nodes=6, faults=LARGE_FAULTS)
async def test_every_job_of_fifty_task_executors_ends_whatever_goes_wrong(
    simulation: Simulation,
) -> None:
    await WholeCluster(simulation, LARGE).run()
