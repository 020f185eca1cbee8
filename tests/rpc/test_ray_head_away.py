"""Calls to Ray's head that fail because it is away."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import ray

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc import RayRpcService
from flinkray.rpc.ray import futures as ray_futures
from tests.rpc.endpoints import EchoGateway, echo_spec


@pytest.mark.ray
async def test_a_kill_is_repeated_until_the_head_has_answered(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its caller, a Dispatcher for example, does not fail because the head restarts."""
    service = await RayRpcService.open(f"rpc-{uuid.uuid4().hex}", "driver")
    address = await service.spawn(echo_spec("worker", detached=True))
    run = service._ray
    failures = 0

    async def unavailable_at_first(fn: Callable[..., Any], *args: object) -> Any:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise ray.exceptions.RpcError("UNAVAILABLE: failed to connect", rpc_code=14)
        return await run(fn, *args)

    monkeypatch.setattr(ray_futures, "ASK_AGAIN", 0.0)
    monkeypatch.setattr(service, "_ray", unavailable_at_first)
    await service.kill("worker")
    assert failures == 3
    assert len([r for r in caplog.records if "head does not answer" in r.message]) == 1
    with pytest.raises(RpcConnectionError, match="worker/echo"):
        await service.connect(address, EchoGateway)
    await service.close()
