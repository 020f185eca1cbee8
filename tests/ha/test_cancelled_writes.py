"""A write that is given up in its middle does not overtake the next one."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.core.ids import JobID
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.ha import StandaloneHaServices, open_directory
from flinkray.testing.simulation import Simulation, simulate


@stored("tests.test_cancelled_writes.Graph")
@message
class Graph:
    """What is stored."""

    job_id: JobID
    version: int


@simulate(seeds=30)
async def test_write_after_a_cancelled_write_is_the_one_that_is_stored(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    storage = open_directory("simulated://shared/cluster")
    store = StandaloneHaServices(storage, service.executor).get_job_graph_store(Graph)
    job_id = JobID.generate()
    simulation.disk("shared").slowness = 10.0
    await store.put_job_graph(Graph(job_id, 0))
    given_up = asyncio.ensure_future(store.put_job_graph(Graph(job_id, 1)))
    await asyncio.sleep(simulation.random.uniform(0, 5))
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await store.put_job_graph(Graph(job_id, 2))
    await asyncio.sleep(100)
    assert await store.recover_job_graph(job_id) == Graph(job_id, 2)
