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


@simulate(seeds=3, nodes=6)
async def test_the_jobs_of_a_large_cluster_have_their_task_executors_at_the_same_time(
    simulation: Simulation,
) -> None:
    run = WholeCluster(simulation, LARGE)
    await run.run()
    needed = [max(v.parallelism for v in job.graph.vertices) for job in run.jobs]
    assert sum(needed) in range(48, 52)
    stay = [n for n, job in zip(needed, run.jobs, strict=True) if job.cancel_at is None]
    assert run.world.most_task_executors >= sum(stay)
