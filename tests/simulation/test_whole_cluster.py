"""The whole cluster under every kind of fault."""

from __future__ import annotations

from itertools import pairwise

import pytest

from flinkray.scheduler.graph.job_graph import JobType, ResultPartitionType
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.simulation import Simulation, simulate
from tests.simulation.whole_cluster import (
    FAULTS,
    LARGE,
    LARGE_FAULTS,
    WholeCluster,
    step,
    widest_at_first,
)


@simulate(seeds=20, nodes=3, faults=FAULTS)
async def test_every_job_ends_whatever_goes_wrong(simulation: Simulation) -> None:
    await WholeCluster(simulation).run()


@simulate(seeds=5, nodes=6, faults=LARGE_FAULTS)
async def test_every_job_of_fifty_task_executors_ends_whatever_goes_wrong(
    simulation: Simulation,
) -> None:
    await WholeCluster(simulation, LARGE).run()


@simulate(seeds=3, nodes=6)
async def test_jobs_of_a_large_cluster_all_have_their_task_executors_at_one_time(
    simulation: Simulation,
) -> None:
    run = WholeCluster(simulation, LARGE)
    await run.run()
    needed = [max(v.parallelism for v in job.graph.vertices) for job in run.jobs]
    assert sum(needed) in range(48, 52)
    at_first = [widest_at_first(job.graph) for job in run.jobs if job.cancel_at is None]
    assert run.world.most_task_executors >= sum(at_first)


BLOCKING, PIPELINED = ResultPartitionType.BLOCKING, ResultPartitionType.PIPELINED_BOUNDED


@pytest.mark.parametrize(
    ("widths", "results", "at_first"),
    [
        pytest.param((1, 2, 17), (BLOCKING, BLOCKING), 1, id="seed 556"),
        pytest.param((3, 4, 16), (PIPELINED, BLOCKING), 4, id="seed 557"),
        pytest.param((3, 16), (PIPELINED,), 16, id="pipelined"),
        pytest.param((17, 1), (BLOCKING,), 17, id="narrowing"),
    ],
)
def test_vertices_behind_a_blocking_result_may_get_their_task_executors_later(
    widths: tuple[int, ...], results: tuple[ResultPartitionType, ...], at_first: int
) -> None:
    """The vertices after a blocking result need no TaskExecutors while other jobs have theirs
    (seeds 556 and 557)."""
    builder = PythonJobBuilder("batch", job_type=JobType.BATCH)
    vertices = [builder.add(step(0.0), name=f"vertex {w}", parallelism=w) for w in widths]
    for (producer, consumer), kind in zip(pairwise(vertices), results, strict=True):
        builder.connect(producer, consumer, result_type=kind)
    assert widest_at_first(builder.build()) == at_first
