"""Where the masters of a cluster go, and when they make way for fresh ones."""

from __future__ import annotations

import pytest

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.client.cluster import master_specs
from flinkray.client.ray_runtime import places_of_masters
from flinkray.core.config import ReadableConfig
from flinkray.rpc import Placement, Renewal


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
def test_each_master_gets_the_configured_restarts_and_renewal(
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
