"""Where Ray is asked to start a process."""

from __future__ import annotations

from flinkray.core.ids import WorkerGroupId
from flinkray.rpc import EndpointSpec, Placement
from flinkray.rpc.ray.actors import actor_options

ON_NODE = "ray.io/node-id"


def options_of(placement: Placement, avoided_node: str | None = None) -> dict[str, object]:
    spec = EndpointSpec("Echo", "worker", "tests.rpc.endpoints:create_echo", placement=placement)
    options = actor_options(spec, "rpc", avoided_node)
    return {key: options.get(key) for key in ("label_selector", "fallback_strategy")}


def test_preferred_node_is_selected_with_any_other_node_as_fallback() -> None:
    assert options_of(Placement(node_id="a1"), avoided_node="a1") == {
        "label_selector": {ON_NODE: "a1"},
        "fallback_strategy": [{"label_selector": {ON_NODE: "!a1"}}],
    }


def test_node_to_avoid_is_selected_only_as_fallback() -> None:
    assert options_of(Placement(), avoided_node="b2") == {
        "label_selector": {ON_NODE: "!b2"},
        "fallback_strategy": [{"label_selector": {ON_NODE: "b2"}}],
    }


def test_process_in_a_worker_group_or_without_a_preference_has_no_node_selector() -> None:
    nowhere = {"label_selector": None, "fallback_strategy": None}
    assert options_of(Placement()) == nowhere
    assert options_of(Placement(worker_group=WorkerGroupId("00" * 18)), "b2") == nowhere
