"""Calls, failures and latencies by gateway method, on both sides."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

import pytest

from flinkray.core.errors import (
    EndpointNotStartedError,
    FencingTokenError,
    RecipientUnreachableError,
    RpcSerializationError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobMasterId
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint, RpcGateway, oneway
from flinkray.rpc.calls.metrics import BUCKETS, LatencyHistogram, MethodMetrics
from flinkray.rpc.calls.proxy import asks_within
from flinkray.rpc.wire import codec
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import Leader, LeaderGateway


class MeasuredGateway(RpcGateway):
    """What is counted."""

    @abstractmethod
    async def wait(self, seconds: float) -> object: ...

    @abstractmethod
    @oneway
    async def note(self, seconds: float) -> None: ...


class Measured(RpcEndpoint, MeasuredGateway):
    """Fails when it is to wait for less than nothing."""

    async def wait(self, seconds: float) -> object:
        if seconds < 0:
            raise ValueError(seconds)
        if seconds:
            await asyncio.sleep(seconds)
        return object() if seconds == 5 else None

    async def note(self, seconds: float) -> None:
        await self.wait(seconds)


WAIT, NOTE = "MeasuredGateway.wait", "MeasuredGateway.note"


async def processes() -> tuple[LocalRpcService, LocalRpcService, Measured, MeasuredGateway]:
    network = LocalNetwork()
    caller, host = LocalRpcService("caller", network), LocalRpcService("host", network)
    endpoint = Measured(host, "measured")
    endpoint.start()
    return caller, host, endpoint, await caller.connect(endpoint.address, MeasuredGateway)


def summary(metrics: MethodMetrics) -> tuple[int, int, int]:
    """Calls, failures, measured latencies."""
    return metrics.calls, metrics.failures, metrics.latency.count


@on_virtual_time
async def test_calls_are_counted_by_method_on_the_calling_and_the_called_side() -> None:
    caller, host, _, gateway = await processes()
    assert caller.metrics.called == host.metrics.handled == {}
    for seconds in (0, 1, 1, 3):
        await gateway.wait(seconds)
    await gateway.note(0)
    await gateway.wait(0)
    assert list(caller.metrics.called) == list(host.metrics.handled) == [NOTE, WAIT]
    assert caller.metrics.handled == host.metrics.called == {}
    assert summary(caller.metrics.called[WAIT]) == summary(host.metrics.handled[WAIT]) == (5, 0, 5)
    assert summary(caller.metrics.called[NOTE]) == (1, 0, 0)
    assert summary(host.metrics.handled[NOTE]) == (1, 0, 1)
    for latency in (caller.metrics.called[WAIT].latency, host.metrics.handled[WAIT].latency):
        assert latency.seconds == pytest.approx(5)
        assert latency.counts[0] == 2
        # 1 s is 2**20 us less 4.6 %, 3 s is between 2**21 and 2**22 us
        assert (latency.counts[20], latency.counts[22]) == (2, 1)


@on_virtual_time
async def test_failed_call_is_counted_on_the_side_that_notices_the_failure() -> None:
    caller, host, _, gateway = await processes()
    with pytest.raises(ValueError, match="-1"):
        await gateway.wait(-1)
    assert summary(caller.metrics.called[WAIT]) == summary(host.metrics.handled[WAIT]) == (1, 1, 1)
    with pytest.raises(RpcSerializationError):
        await gateway.wait(object())  # type: ignore[arg-type]
    assert summary(caller.metrics.called[WAIT]) == (2, 2, 1)
    assert summary(host.metrics.handled[WAIT]) == (1, 1, 1)
    with asks_within(2), pytest.raises(RpcTimeoutError):
        await gateway.wait(4)
    await asyncio.sleep(5)
    assert summary(caller.metrics.called[WAIT]) == (3, 3, 1)
    assert summary(host.metrics.handled[WAIT]) == (2, 2, 2)
    with pytest.raises(RpcSerializationError, match="the result"):
        await gateway.wait(5)
    assert summary(host.metrics.handled[WAIT]) == (3, 3, 3)
    await gateway.note(-1)
    await gateway.wait(0)
    assert summary(caller.metrics.called[NOTE]) == (1, 0, 0)
    assert summary(host.metrics.handled[NOTE]) == (1, 1, 1)
    await host.close()
    with pytest.raises(RecipientUnreachableError):
        await gateway.note(0)
    assert summary(caller.metrics.called[NOTE]) == (2, 1, 0)


@on_virtual_time
async def test_call_that_its_caller_cancelled_does_not_count_as_failure() -> None:
    caller, _, _, gateway = await processes()
    waiting = asyncio.ensure_future(gateway.wait(1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(2)
    assert summary(caller.metrics.called[WAIT]) == (1, 0, 0)


@on_virtual_time
async def test_refused_calls_count_as_failures_without_a_latency() -> None:
    network = LocalNetwork()
    caller, host = LocalRpcService("caller", network), LocalRpcService("host", network)
    leader = Leader(host, JobMasterId(b"n" * 16))
    stale = await caller.connect(leader.address, LeaderGateway, JobMasterId(b"o" * 16))
    with pytest.raises(EndpointNotStartedError):
        await stale.lead()
    leader.start()
    with pytest.raises(FencingTokenError):
        await stale.lead()
    assert summary(host.metrics.handled["LeaderGateway.lead"]) == (2, 2, 0)
    assert summary(caller.metrics.called["LeaderGateway.lead"]) == (2, 2, 2)


@on_virtual_time
async def test_metrics_snapshot_does_not_change_and_can_be_sent() -> None:
    caller, _, _, gateway = await processes()
    await gateway.wait(0)
    before = caller.metrics
    await gateway.wait(0)
    assert before.called[WAIT].calls == 1
    assert codec.decode(codec.encode(before)) == before


def test_latency_quantiles_are_upper_bounds_of_buckets() -> None:
    counts = [0] * BUCKETS
    assert LatencyHistogram(tuple(counts), 0.0).quantile(0.5) == 0.0
    counts[6], counts[10] = 90, 10
    histogram = LatencyHistogram(tuple(counts), 1.0)
    assert histogram.quantile(0.5) == histogram.quantile(0.9) == 64e-6
    assert histogram.quantile(0.99) == histogram.quantile(1.0) == 1024e-6
