"""The framework's settings come from the configuration."""

from __future__ import annotations

import pytest

from flinkray.actors.shared.settings import apply_rpc_settings
from flinkray.core.config import Configuration
from flinkray.rpc import LocalRpcService, RayRpcService


async def test_rpc_settings_that_are_set_hold_and_others_are_left_alone() -> None:
    service = LocalRpcService("process", ask_timeout=3.0)
    default_frame_size = service.max_frame_size
    apply_rpc_settings(service, Configuration())
    assert (service.ask_timeout, service.max_frame_size) == (3.0, default_frame_size)
    apply_rpc_settings(service, Configuration({"rpc.ask-timeout": "5 s", "rpc.frame-size": "1m"}))
    assert (service.ask_timeout, service.max_frame_size) == (5.0, 2**20)
    pending = {"rpc.max-pending-calls": "7", "rpc.max-pending-bytes": "2m"}
    apply_rpc_settings(service, Configuration(pending))
    assert (service.max_pending_calls, service.max_pending_bytes) == (7, 2**21)
    apply_rpc_settings(service, Configuration({"rpc.metrics.export-interval": "0 s"}))
    assert service.metrics_export_interval == 0
    await service.close()


@pytest.mark.ray
async def test_the_transport_can_be_chosen_on_ray(ray_cluster: None) -> None:
    service = await RayRpcService.open("settings")
    for settings, transport in (({}, "auto"), ({"rpc.transport": "ray"}, "ray")):
        apply_rpc_settings(service, Configuration(settings))
        assert service.transport == transport
    await service.close()
