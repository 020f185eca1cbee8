"""Worker groups on Ray while its head is away."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import placement_group_table

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.resource_manager import ray_driver
from flinkray.actors.resource_manager.driver import WorkerGroupRequest, WorkerGroupStartError
from flinkray.actors.resource_manager.ray_driver import RayResourceManagerDriver
from flinkray.core.ids import WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import RayRpcService
from flinkray.rpc.ray import head as ray_head
from flinkray.rpc.ray.head import RayHead
from flinkray.testing.waiting import eventually

pytestmark = pytest.mark.ray

REQUEST = WorkerGroupRequest(None, (ResourceProfile(0.5, 64 * 2**20),))


@pytest.fixture
async def driver(ray_cluster: None, tmp_path: Path) -> AsyncIterator[RayResourceManagerDriver]:
    cluster_id = f"driver-{uuid.uuid4().hex[:8]}"
    service = await RayRpcService.open(f"flinkray-{cluster_id}")
    yield RayResourceManagerDriver(service, ClusterArguments(cluster_id, {}, str(tmp_path)))
    await service.close()


def failing(
    monkeypatch: pytest.MonkeyPatch, head: RayHead, name: str, *, after_it_was_done: bool
) -> None:
    """The head goes while it is asked for *name*."""
    ask = head.ask

    async def ask_failing(fn: Callable[..., Any], *args: object) -> Any:
        is_hit = getattr(fn, "__name__", "") == name
        answer = None if is_hit and not after_it_was_done else await ask(fn, *args)
        if is_hit:
            raise ray.exceptions.RpcError("UNAVAILABLE: failed to connect", rpc_code=14)
        return answer

    monkeypatch.setattr(head, "ask", ask_failing)


async def test_worker_group_that_the_ray_head_created_before_going_away_is_found_by_name(
    driver: RayResourceManagerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nobody would know of the group, which would keep its resources."""
    failing(monkeypatch, driver._head, "_create", after_it_was_done=True)
    group = await driver.create_worker_group(REQUEST)
    entry = placement_group_table()[group.group_id.value]
    assert entry["name"] == group.name
    await driver.release_worker_group(group.group_id)
    assert placement_group_table()[group.group_id.value]["state"] == "REMOVED"


async def test_worker_group_that_the_ray_head_did_not_create_before_going_away_fails(
    driver: RayResourceManagerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, driver._head, "_create", after_it_was_done=False)
    with pytest.raises(WorkerGroupStartError, match="UNAVAILABLE"):
        await driver.create_worker_group(REQUEST)


class Silent(Executor):
    """Nothing is answered."""

    def __init__(self) -> None:
        self.questions = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.questions += 1
        question: Future[Any] = Future()
        question.set_running_or_notify_cancel()
        return question


async def test_last_known_resources_are_shown_without_blocking_while_rays_head_is_away(
    driver: RayResourceManagerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await driver.cluster_resources()
    assert before.outage is None
    monkeypatch.setattr(ray_head, "TELL_AFTER", 0.05)
    monkeypatch.setattr(ray_driver, "_PATIENCE", 0.01)
    away = Silent()
    driver._head = RayHead("test", away)

    async def is_told() -> bool:
        resources = await driver.cluster_resources()
        assert resources.nodes == before.nodes
        return resources.outage is not None

    await eventually(is_told, 50, "the outage")
    asked = away.questions
    assert "not answered since" in await driver.describe_placement(WorkerGroupId("00" * 18))
    assert away.questions == asked
