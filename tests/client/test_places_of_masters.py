"""Masters of a cluster: their nodes, and clusters that have ended."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flinkray.actors.gateways.messages import ClusterArguments, StoredJob
from flinkray.client.cluster import _forget_elections, master_specs
from flinkray.client.ray_runtime import ClusterRecord, places_of_masters
from flinkray.core.config import ReadableConfig
from flinkray.ha import EmbeddedHaServices, LeaderElectionError, MemoryDirectory
from flinkray.rpc import Placement, Renewal
from flinkray.testing.task_jobs import ends, task_job


@pytest.mark.parametrize(
    ("alive", "number", "places"),
    [
        (["a", "head", "b"], 1, ["head"]),
        (["a", "head", "b"], 3, ["head", "a", "b"]),
        (["a", "head", "b"], 4, ["head", "a", "b", "a"]),
        (["head"], 2, ["head", "head"]),
    ],
)
def test_standby_masters_run_on_other_nodes_than_the_head_where_possible(
    alive: list[str], number: int, places: list[str]
) -> None:
    assert places_of_masters("head", alive, number, False) == places


def test_masters_may_run_on_any_node_when_the_head_is_unknown() -> None:
    assert places_of_masters(None, [], 2, False) == [None, None]


def test_masters_avoid_the_head_node_if_there_is_another_node() -> None:
    assert places_of_masters("head", ["a", "b", "head"], 3, True) == ["a", "b", "a"]
    assert places_of_masters("head", ["head"], 2, True) == ["head", "head"]


@pytest.mark.parametrize(
    ("options", "renewal"),
    [
        ({}, Renewal(512 * 2**20)),
        ({"cluster.max-master-growth": "64m"}, Renewal(64 * 2**20)),
        ({"cluster.max-master-growth": "0b"}, None),
    ],
)
def test_each_master_restarts_without_limit_and_is_replaced_at_the_configured_growth(
    options: dict[str, str], renewal: Renewal | None
) -> None:
    arguments = ClusterArguments("c", options, "/storage")
    specs = list(master_specs(ReadableConfig(options), arguments, ["a", None]))
    assert [(it.name, it.kind, it.placement) for it in specs] == [
        ("ResourceManager", "ResourceManager", Placement(node_id="a")),
        ("Dispatcher", "Dispatcher", Placement(node_id="a")),
        ("ResourceManager-2", "ResourceManager", Placement()),
        ("Dispatcher-2", "Dispatcher", Placement()),
    ]
    for spec in specs:
        assert spec.arguments == arguments
        assert spec.detached
        assert spec.max_restarts == -1
        assert spec.renewal == renewal


@pytest.fixture
def services() -> Iterator[EmbeddedHaServices]:
    with ThreadPoolExecutor(1) as executor:
        yield EmbeddedHaServices(MemoryDirectory(), executor)


async def test_election_data_of_a_cluster_are_deleted_when_all_jobs_have_ended(
    services: EmbeddedHaServices,
) -> None:
    assert await _forget_elections(services) is None
    with pytest.raises(LeaderElectionError, match="are closed"):
        services.get_job_graph_store(StoredJob)


async def test_election_data_of_a_cluster_are_not_deleted_while_a_job_has_not_ended(
    services: EmbeddedHaServices,
) -> None:
    graph = task_job(ends)
    store = services.get_job_graph_store(StoredJob)
    await store.put_job_graph(StoredJob(graph, 0.0))
    assert f"have not ended: {graph.job_id}" in str(await _forget_elections(services))
    assert await store.get_job_ids() == (graph.job_id,)


def test_cluster_record_keeps_unknown_options_but_omits_them_for_leader_elections() -> None:
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
