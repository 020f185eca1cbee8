"""JobMasters that hang before the Dispatcher exchanges heartbeats with them."""

from __future__ import annotations

import asyncio

from flinkray.rpc.wire.envelope import Envelope
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.simulation.link import End
from tests.actors.bad_moments import NODE, on_cluster, starts_of
from tests.actors.chaos_cluster import ChaosCluster

PULSE = {"heartbeat.interval": "1 s", "heartbeat.timeout": "5 s"}


@on_cluster(NODE, configuration=PULSE)
async def test_a_job_master_that_hangs_before_it_registers_is_replaced(
    cluster: ChaosCluster,
) -> None:
    """Seed 12 of the brief whole cluster: the job stayed INITIALIZING for ever."""

    def is_lost(end: End, envelope: Envelope) -> bool:
        is_first = envelope.method == "register_job_master" and not end.process.is_frozen
        if is_first and starts_of(cluster, "JobMaster") == 1:
            end.process.freeze()
            return True
        return False

    cluster.network.intercept, cluster.network.is_faulty = is_lost, True
    job_id = await cluster.submit(scripted_job(["register", "finish"]))

    result = await asyncio.wait_for(cluster.result(job_id), 60)

    assert result.status is JobStatus.FINISHED
    assert starts_of(cluster, "JobMaster") == 2
