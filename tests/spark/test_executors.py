"""Spark's executors are joined with their Ray actors, through loss and return."""

from __future__ import annotations

import pytest

from flinkray.spark.progress import join_executors, lost_for_good
from flinkray.spark.ray_cluster import ActorInfo, bundle_index


def actor(
    number: int, bundle: int, pid: int = 100, is_alive: bool = True, is_dead: bool = False
) -> ActorInfo:
    return ActorInfo(
        name=f"raydp-executor-{number}",
        actor_id=f"actor{number}",
        node_id="node",
        pid=pid + number,
        placement_group="group",
        bundle_index=bundle,
        is_alive=is_alive,
        is_dead=is_dead,
    )


def by_name(*actors: ActorInfo) -> dict[str, ActorInfo]:
    return {actor.name: actor for actor in actors}


def test_executors_are_listed_in_the_order_of_their_bundles() -> None:
    found = join_executors(["0", "1"], {}, by_name(actor(0, 1), actor(1, 0)))

    assert [(e.executor_id, e.bundle_index, e.subtask_index, e.pid) for e in found] == [
        ("1", 0, 0, 101),
        ("0", 1, 1, 100),
    ]


def test_executor_restarted_several_times_is_matched_with_its_first_actor() -> None:
    found = join_executors(["0", "5"], {"3": "1", "5": "3"}, by_name(actor(0, 0), actor(1, 1, 200)))

    assert [(e.executor_id, e.actor_id, e.pid) for e in found] == [
        ("0", "actor0", 100),
        ("5", "actor1", 201),
    ]


def test_executor_whose_ray_actor_is_not_alive_is_not_listed() -> None:
    found = join_executors(["0", "1"], {}, by_name(actor(0, 0), actor(1, 1, is_alive=False)))

    assert [e.executor_id for e in found] == ["0"]


def test_bundle_has_lost_its_executor_when_all_its_actors_are_dead_for_good() -> None:
    alive, starting = actor(0, 0), actor(1, 1, is_alive=False)
    dead = actor(2, 1, is_alive=False, is_dead=True)

    assert lost_for_good([alive, starting]) is None
    assert lost_for_good([alive, starting, dead]) is None, "another one comes in its place"
    assert lost_for_good([alive, dead]) == dead
    assert lost_for_good([]) is None


@pytest.mark.parametrize(
    ("resources", "bundle"),
    [
        (["CPU_group_0ab3", "CPU_group_12_0ab3"], 12),
        (["memory_group_0_0ab3"], 0),
        (["CPU", "memory"], -1),
        (["CPU_group_0ab3"], -1),
        ([], -1),
    ],
)
def test_bundle_index_is_read_from_the_resource_names_of_an_actor(
    resources: list[str], bundle: int
) -> None:
    assert bundle_index(resources) == bundle
