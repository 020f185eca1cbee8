"""What is known of a cluster that runs, and stays of the elections of one that is ended."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flinkray.actors.gateways.messages import StoredJob
from flinkray.client.cluster import _forget_elections
from flinkray.client.ray_runtime import ClusterRecord
from flinkray.ha import EmbeddedHaServices, LeaderElectionError, MemoryDirectory
from flinkray.testing.task_jobs import ends, task_job


@pytest.fixture
def services() -> Iterator[EmbeddedHaServices]:
    with ThreadPoolExecutor(1) as executor:
        yield EmbeddedHaServices(MemoryDirectory(), executor)


async def test_elections_of_a_cluster_are_forgotten_when_all_jobs_have_ended(
    services: EmbeddedHaServices,
) -> None:
    assert await _forget_elections(services) is None
    with pytest.raises(LeaderElectionError, match="are closed"):
        services.get_job_graph_store(StoredJob)


async def test_elections_of_a_cluster_are_kept_while_a_job_has_not_ended(
    services: EmbeddedHaServices,
) -> None:
    graph = task_job(ends)
    store = services.get_job_graph_store(StoredJob)
    await store.put_job_graph(StoredJob(graph, 0.0))
    assert f"have not ended: {graph.job_id}" in str(await _forget_elections(services))
    assert await store.get_job_ids() == (graph.job_id,)


def test_cluster_record_keeps_unknown_options_and_a_leader_election_ignores_them() -> None:
    values = {
        "cluster.id": "c",
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": "zk:2181",
        "high-availability.of-another-version": "1",
        "taskmanager.of-another-version": "1",
    }
    record = ClusterRecord.decode(ClusterRecord(values, "s3://bucket/c").encode())
    assert record == ClusterRecord(values, "s3://bucket/c")
    known = [key for key in values if not key.endswith("version")]
    assert record.of_elections.to_dict() == {key: values[key] for key in known}
