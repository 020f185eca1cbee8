"""The actor framework: typed endpoints that call each other by address."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from flinkray.core.ids import FencingToken, ResourceID
from flinkray.core.message import message
from flinkray.rpc.calls.background_tasks import PeriodicTask
from flinkray.rpc.calls.call_context import deadline
from flinkray.rpc.calls.metrics import LatencyHistogram, MethodMetrics, MetricSample, RpcMetrics
from flinkray.rpc.calls.watch import TerminationWatch
from flinkray.rpc.clock import LoopClock, SystemClock
from flinkray.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from flinkray.rpc.gateway import (
    FencedRpcGateway,
    RpcGateway,
    ask_timeout,
    oneway,
    runs_to_completion,
)
from flinkray.rpc.liveness.heartbeat import HeartbeatManager, HeartbeatSender, HeartbeatSettings
from flinkray.rpc.liveness.registration import (
    RegisteredRpcConnection,
    RegistrationFailure,
    RegistrationRejection,
    RegistrationSettings,
    RegistrationSuccess,
    RetryingRegistration,
)
from flinkray.rpc.local_service import LocalNetwork, LocalRpcService
from flinkray.rpc.mailbox import TimerHandle
from flinkray.rpc.service import RpcService
from flinkray.rpc.spec import EndpointSpec, Placement, Renewal, split_address

if TYPE_CHECKING:
    from flinkray.rpc.ray.service import RayRpcService

__all__ = [
    "EndpointSpec",
    "FencedRpcEndpoint",
    "FencedRpcGateway",
    "FencingToken",
    "HeartbeatManager",
    "HeartbeatSender",
    "HeartbeatSettings",
    "LatencyHistogram",
    "LocalNetwork",
    "LocalRpcService",
    "LoopClock",
    "MethodMetrics",
    "MetricSample",
    "PeriodicTask",
    "Placement",
    "RayRpcService",
    "RegisteredRpcConnection",
    "RegistrationFailure",
    "RegistrationRejection",
    "RegistrationSettings",
    "RegistrationSuccess",
    "Renewal",
    "ResourceID",
    "RetryingRegistration",
    "RpcEndpoint",
    "RpcGateway",
    "RpcMetrics",
    "RpcService",
    "SystemClock",
    "TerminationWatch",
    "TimerHandle",
    "ask_timeout",
    "deadline",
    "message",
    "oneway",
    "runs_to_completion",
    "split_address",
]


def __getattr__(name: str) -> object:
    """Return ``RayRpcService``, importing Ray only now.

    The local service and tests run without Ray (PEP 562).
    """
    if name != "RayRpcService":
        raise AttributeError(f"module 'flinkray.rpc' has no attribute {name!r}")
    value: object = importlib.import_module("flinkray.rpc.ray.service").RayRpcService
    globals()[name] = value
    return value
