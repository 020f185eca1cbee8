"""The answer to "why am I pending?"."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.cluster_resources import ClusterResources, slots_that_fit
from flinkray.scheduler.resources.slot_manager import SlotManager
from flinkray.scheduler.shared.slots import ResourceShortage
from tests.scheduler.builders import (
    GIB,
    JOB,
    LARGE,
    OTHER_JOB,
    SMALL,
    allocation,
    group,
    location,
    report,
    requirements,
    slot_manager,
)

NODE = ResourceProfile(2.0, 8 * GIB)


def cluster(
    *nodes: ResourceProfile,
    available: ResourceProfile = SMALL,
    pending: dict[int, str] | None = None,
    autoscaling: bool = False,
) -> ClusterResources:
    total = ResourceProfile(0.0)
    for node in nodes:
        total = total + node
    return ClusterResources(total, available, nodes, pending or {}, autoscaling)


@pytest.fixture
def manager() -> SlotManager:
    return slot_manager(NODE, 2)


def shortage(
    manager: SlotManager, resources: ClusterResources, now: float = 5.0
) -> ResourceShortage:
    (found,) = manager.shortages(JOB, now, resources)
    return found


def test_job_without_missing_slots_has_no_shortage(manager: SlotManager) -> None:
    assert manager.shortages(JOB, 0.0, cluster(NODE)) == ()
    manager.set_requirements(requirements(dedicated=True), 0.0)
    assert manager.shortages(JOB, 0.0, cluster(NODE)) == ()


def test_shortage_names_missing_and_available_resources_and_rays_reason(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 2), dedicated=True), 0.0)
    found = shortage(manager, cluster(NODE, NODE, pending={1: "no node has 1 CPU free."}))
    assert found.reason == (
        "2 of 2 slots (1 CPU, 1g memory each) are missing. The cluster has 4 CPU, 16g memory in "
        "all and 1 CPU, 1g memory free; its largest node has 2 CPU, 8g memory. A placement group "
        "of 2 bundles is asked for and has been waiting for 5 s or more; Ray says: no node has 1 "
        "CPU free."
    )
    assert not found.unfulfillable
    assert (found.missing, found.profile) == (2, SMALL)
    assert found.largest_node == NODE


def test_shortage_of_slots_of_unspecified_size_names_no_size(manager: SlotManager) -> None:
    manager.set_requirements(requirements((ResourceProfile(0.0), 2)), 0.0)
    reason = shortage(manager, cluster(NODE)).reason
    assert reason.startswith("2 of 2 slots are missing.")


def test_slot_larger_than_every_node_is_unfulfillable(manager: SlotManager) -> None:
    """SM-14."""
    manager.set_requirements(requirements((LARGE, 1), dedicated=True), 0.0)
    found = shortage(manager, cluster(NODE, NODE))
    assert found.unfulfillable
    assert found.reason.startswith("1 of 1 slot (4 CPU, 4g memory each) is missing.")
    assert "No node can ever hold such a slot: ask for less per slot" in found.reason


def test_worker_group_larger_than_all_nodes_together_is_unfulfillable(manager: SlotManager) -> None:
    """SM-14."""
    manager.set_requirements(requirements((SMALL, 5), dedicated=True), 0.0)
    found = shortage(manager, cluster(NODE, NODE))
    assert found.unfulfillable
    assert "needs its 5 slots at the same time, 5 CPU, 5g memory in all" in found.reason
    assert "can never hold more than 4 of them" in found.reason


def test_worker_group_that_fits_all_nodes_together_but_no_node_is_unfulfillable(
    manager: SlotManager,
) -> None:
    """SM-14."""
    wide = ResourceProfile(2.0, GIB)
    nodes = (ResourceProfile(3.0, 8 * GIB),) * 2
    manager.set_requirements(requirements((wide, 3), dedicated=True), 0.0)
    found = shortage(manager, cluster(*nodes))
    assert found.unfulfillable
    assert "can never hold more than 2 of them" in found.reason


def test_no_requirement_is_unfulfillable_if_the_autoscaler_may_add_nodes(
    manager: SlotManager,
) -> None:
    """SM-14."""
    manager.set_requirements(requirements((LARGE, 1), dedicated=True), 0.0)
    found = shortage(manager, cluster(NODE, autoscaling=True))
    assert not found.unfulfillable
    assert "The autoscaler may add nodes." in found.reason


def test_shortage_in_a_cluster_without_nodes_is_fulfillable_and_names_the_reason(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    found = shortage(manager, cluster())
    assert not found.unfulfillable
    assert "The cluster has no nodes yet." in found.reason


def test_shortage_names_starting_task_executors(manager: SlotManager) -> None:
    manager.set_requirements(requirements((SMALL, 2), dedicated=True), 0.0)
    manager.worker_group_started(1, group(), 1.0)
    manager.task_executor_start_failed(group(), 1, "no module named pyspark.", 2.0)
    reason = shortage(manager, cluster(NODE)).reason
    assert "2 of 2 TaskExecutors of worker group 'default' (g) are starting." in reason
    assert "bundle 1 was lost or did not start before (no module named pyspark)." in reason


def test_shortage_names_the_number_of_failed_attempts_to_create_the_worker_group(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_failed(1, "Ray is away", 1.0)
    reason = shortage(manager, cluster(NODE)).reason
    assert "1 attempt to create a worker group failed, the last one with: Ray is away." in reason


def test_shortage_counts_failed_attempts_to_create_workers_until_the_job_ends(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 0.0)
    manager.worker_group_failed(1, "Ray is away", 1.0)
    manager.check(100.0)
    manager.worker_group_failed(2, "Ray is away again", 101.0)
    reason = shortage(manager, cluster(NODE), 102.0).reason
    assert "2 attempts to create a worker group failed, the last one with: Ray is away" in reason
    manager.clear_requirements(JOB, True, 103.0)
    manager.set_requirements(requirements((SMALL, 1), dedicated=True), 104.0)
    assert "failed" not in shortage(manager, cluster(NODE), 105.0).reason


def test_shortage_names_the_first_of_many_starting_groups_and_counts_the_others(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 10)), 0.0)
    for number in range(1, 6):
        manager.worker_group_started(number, group(f"g{number}"), 1.0)
    reason = shortage(manager, cluster(NODE)).reason
    for number in (1, 2, 3):
        assert f"1 of 1 TaskExecutors of worker group g{number} are starting." in reason
    assert "worker group g4" not in reason
    assert "2 other TaskExecutors are starting." in reason


def test_shortage_names_the_first_of_many_group_requests_and_counts_the_others(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((SMALL, 10)), 0.0)
    reason = shortage(manager, cluster(NODE)).reason
    assert reason.count("A placement group of 1 bundle is asked for") == 3
    assert "So are 2 others." in reason


def test_slot_larger_than_a_default_worker_is_unfulfillable_if_no_node_holds_it(
    manager: SlotManager,
) -> None:
    """SM-14."""
    manager.set_requirements(requirements((LARGE, 1)), 0.0)
    assert not shortage(manager, cluster(LARGE)).unfulfillable
    found = shortage(manager, cluster(SMALL))
    assert found.unfulfillable
    assert f"No node can ever hold a worker of {LARGE}" in found.reason


def test_shortage_of_devices_says_whether_a_node_has_one_or_has_none_free(
    manager: SlotManager,
) -> None:
    device = replace(SMALL, extended={"GPU": 2.0})
    manager.set_requirements(requirements((device, 1)), 0.0)
    found = shortage(manager, cluster(LARGE))
    assert found.unfulfillable
    assert "No node has any GPU" in found.reason
    found = shortage(manager, cluster(replace(LARGE, extended={"GPU": 1.0})))
    assert found.unfulfillable
    assert "No node has more than 1 GPU" in found.reason
    with_two = cluster(replace(LARGE, extended={"GPU": 2.0}))
    found = shortage(manager, replace(with_two, available=replace(LARGE, extended={"GPU": 1.0})))
    assert not found.unfulfillable
    assert "No node has 2 GPU free" in found.reason


def test_large_slots_are_fulfillable_while_a_large_worker_exists(
    manager: SlotManager,
) -> None:
    """SM-14: the worker was started by an earlier ResourceManager."""
    manager.recover_worker_group(group("g0"), (LARGE,), 1, None, (0,), 0.0)
    busy = report("te0", (OTHER_JOB, allocation(1)), profile=LARGE)
    manager.register_task_executor(location("te0", 0, "g0"), LARGE, busy, 0.0)
    manager.set_requirements(requirements((LARGE, 1)), 1.0)
    assert not shortage(manager, cluster(SMALL)).unfulfillable
    manager.worker_group_lost(group("g0"), "killed", 2.0)
    assert shortage(manager, cluster(SMALL)).unfulfillable


def test_shared_worker_larger_than_every_node_is_unfulfillable(manager: SlotManager) -> None:
    """SM-14."""
    manager.set_requirements(requirements((SMALL, 1)), 0.0)
    found = shortage(manager, cluster(SMALL))
    assert found.unfulfillable
    assert "No node can ever hold a worker of 2 CPU, 8g memory" in found.reason


def test_slots_that_fit_are_counted_per_node_without_rounding_errors() -> None:
    tenth = ResourceProfile(0.1)
    assert slots_that_fit(tenth, (ResourceProfile(0.3), ResourceProfile(0.05))) == 3
    assert slots_that_fit(ResourceProfile(1.0, 0, {"GPU": 1.0}), (NODE,)) == 0


def test_shortage_during_an_outage_of_ray_names_the_outage_and_is_fulfillable(
    manager: SlotManager,
) -> None:
    manager.set_requirements(requirements((LARGE, 1)), 0.0)
    away = replace(cluster(SMALL), outage="Ray's head has not answered since noon")
    found = shortage(manager, away)
    assert "Ray's head has not answered since noon, and nothing can be started" in found.reason
    assert "largest node" not in found.reason
    assert not found.unfulfillable
    assert shortage(manager, cluster(SMALL)).unfulfillable
