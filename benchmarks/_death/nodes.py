"""Nodes that are killed or hang: two raylets on one machine."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import ray
from _results import Figure, Section
from ray.cluster_utils import Cluster

from _death.victims import VictimGateway
from flinkray.core.errors import RpcError
from flinkray.rpc import EndpointSpec, Placement, RayRpcService

TIGHT = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 2,
}
"""Ray's ``RAY_health_check_*``."""

LONGEST = 100.0
"""Seconds."""


def run() -> Section:
    section = Section(
        "the end of a node, s until it is known", ("", "pending call", "watch", "ray.nodes()")
    )
    for id_, name, settings, end in (
        ("", "raylet killed", {}, _kill_raylet),
        ("node", "node stopped, default health check", {}, _stop_all),
        ("tight", "node stopped, tight health check", TIGHT, _stop_all),
    ):
        for max_restarts, kind in ((0, "no restarts"), (-1, "restarts")):
            found = _one(settings, end, max_restarts)
            section.add(f"{name}, {kind}", *(f"{value:,.2f}" for value in found))
            section.raw[f"{name}, {kind}"] = dict(
                zip(("pending", "watch", "nodes"), found, strict=True)
            )
            if not max_restarts:
                peer = f"`ray.nodes()` {found[2]:,.1f} s"
                what = f"{name}: to the end of a watch"
                section.figures.append(Figure(id_, what, found[1], unit="s", peer=peer))
    return section


def _kill_raylet(raylet: psutil.Process) -> None:
    """Its workers stay for a while, and answer."""
    raylet.send_signal(signal.SIGKILL)


def _stop_all(raylet: psutil.Process) -> None:
    """The node hangs, with all that runs on it; no socket is closed."""
    for process in (raylet, *raylet.children(recursive=True)):
        process.send_signal(signal.SIGSTOP)


def _one(
    settings: dict[str, int], end: Callable[[psutil.Process], None], max_restarts: int
) -> tuple[float, float, float]:
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": settings}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        node = cluster.add_node(num_cpus=2, resources={"other": 1})
        ray.init(address=cluster.address, log_to_driver=False)
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        family = [raylet, *raylet.children(recursive=True)]
        try:
            return asyncio.run(_measure(raylet, end, max_restarts))
        finally:
            for process in {*family, *_children(raylet)}:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
    finally:
        ray.shutdown()
        cluster.shutdown()


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


async def _measure(
    raylet: psutil.Process, end: Callable[[psutil.Process], None], max_restarts: int
) -> tuple[float, float, float]:
    loop = asyncio.get_running_loop()
    service = await RayRpcService.open("death-of-nodes")
    spec = EndpointSpec(
        "Victim", "victim", "_death.victims:create_victim",
        placement=Placement(resources={"other": 0.1}), max_restarts=max_restarts, detached=True,
    )  # fmt: skip
    victim = await service.connect(await service.spawn(spec), VictimGateway)
    watched: asyncio.Future[float] = loop.create_future()
    service.watch(victim, lambda _: watched.set_result(time.perf_counter()))
    pid = await victim.pid()
    assert pid != os.getpid()
    pending = asyncio.ensure_future(victim.hang())
    listed = loop.run_in_executor(None, _until_not_alive)
    await victim.pid()
    begin = time.perf_counter()
    end(raylet)
    failed = asyncio.ensure_future(_failure_of(pending))
    await asyncio.wait({failed, watched, listed}, timeout=LONGEST)
    pending_at, watch_at, listed_at = (
        one.result() - begin if one.done() else math.inf for one in (failed, watched, listed)
    )
    await service.close()
    return pending_at, watch_at, listed_at


async def _failure_of(call: asyncio.Future[Any]) -> float:
    with suppress(RpcError):
        await call
    return time.perf_counter()


def _until_not_alive() -> float:
    """When Ray's list of nodes says so."""
    give_up = time.perf_counter() + LONGEST
    while all(node["Alive"] for node in ray.nodes()) and time.perf_counter() < give_up:
        time.sleep(0.02)
    return time.perf_counter()
