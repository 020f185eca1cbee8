"""A job of Spark and Python stages on a cluster that has room for one of them only."""

from __future__ import annotations

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import PYTHON, SPARK, Invokable
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.scripted_spark_driver import script
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import Simulation, simulate
from flinkray.user_code import dump_function
from tests.simulation.whole_cluster import mixed_job, step
from tests.simulation.world import World

CONFIGURATION = {
    "taskmanager.cpu.cores": "2",
    "taskmanager.memory": "2g",
    "taskmanager.numberOfTaskSlots": "2",
}
"""Slots and workers that are idle are kept for 50 s and 30 s, as is the default."""


@simulate(seeds=5, nodes=1)
async def test_spark_stages_on_a_full_cluster_alternate_without_waiting_for_idle_timeouts(
    simulation: Simulation,
) -> None:
    cluster = SimulatedCluster(simulation, ResourceProfile(2, 2**31), configuration=CONFIGURATION)
    World(simulation, cluster)
    await cluster.start()
    first = Invokable(SPARK, script(["register", "row a", "row b", "finish"]))
    python = Invokable(PYTHON, dump_function(step(0.0)))
    last = Invokable(SPARK, script(["register", "read", "finish"]))
    job = mixed_job("in turns", [(2, first), (2, python), (2, last)])
    begin = simulation.now
    await cluster.submit(job)
    result = await cluster.result(job.job_id)
    assert (result.status, result.num_rows) == (JobStatus.FINISHED, 2)
    assert simulation.now - begin < 40, "it has waited for idle slots or workers to go"
