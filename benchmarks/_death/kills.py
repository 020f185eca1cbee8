"""SIGKILL of single processes: how long until a pending caller and a watcher know."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import ray
from _results import Figure, Section

from _death.victims import RawVictim, VictimGateway
from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError
from flinkray.rpc import EndpointSpec, RayRpcService
from flinkray.rpc.ray.directory import RayDirectory

NAMESPACE = "death-benchmark"
GOAL = 50.0
"""Milliseconds."""

Way = Literal["unix", "TCP", "Ray"]


@dataclass
class Times:
    """Seconds after the kill, one of each kill."""

    pending: list[float] = field(default_factory=list)
    watch: list[float] = field(default_factory=list)


async def run(kills: int) -> Section:
    """Needs Ray to be initialised."""
    section = Section(
        f"SIGKILL of a process, ms until it is known; {kills} kills each",
        ("", "pending call", "slowest", "watch", "slowest"),
    )
    service = await RayRpcService.open(NAMESPACE)
    through_ray = await RayRpcService.open(NAMESPACE, transport="ray")
    slowest, peers = 0.0, []
    for max_restarts, name in ((0, "no restarts"), (-1, "restarts")):
        ways: tuple[Way, ...] = ("unix", "TCP", "Ray")
        for way in ways:
            caller = through_ray if way == "Ray" else service
            times = await _endpoints(service, caller, way, kills, max_restarts)
            _show(section, f"flinkray by {way}, {name}", times)
            if way != "Ray":
                slowest = max(slowest, median(times.pending), median(times.watch))
        raw, errors = await _raw(kills, max_restarts)
        _show(section, f"raw Ray, {name} ({', '.join(sorted(errors))})", raw)
        peers.append(f"{median(raw.pending) * 1e3:,.1f} ms with {name}")
    await through_ray.close()
    await service.close()
    what = "from SIGKILL of a process to the end of a pending call and of a watch, slowest median"
    peer = f"raw Ray's call {', '.join(peers)}"
    section.figures = [Figure("process", what, slowest * 1e3, GOAL, "ms", peer=peer)]
    return section


def _show(section: Section, name: str, times: Times) -> None:
    cells = []
    for values in (times.pending, times.watch):
        if values:
            cells += [f"{median(values) * 1e3:,.1f}", f"{max(values) * 1e3:,.1f}"]
        else:
            cells += ["-", "-"]
    section.add(name, *cells)
    section.raw[name] = {"pending": times.pending, "watch": times.watch}


async def _endpoints(
    owner: RayRpcService, caller: RayRpcService, way: Way, kills: int, max_restarts: int
) -> Times:
    times = Times()
    for number in range(kills):
        name = f"victim-{way}-{max_restarts}-{number}"
        spec = EndpointSpec(
            "Victim", name, "_death.victims:create_victim",
            max_restarts=max_restarts, detached=True,
        )  # fmt: skip
        address = await owner.spawn(spec)
        if way == "TCP":
            await _by_tcp_only(owner, name)
        victim = await caller.connect(address, VictimGateway)
        await _one_kill(caller, victim, times)
        await owner.kill(name)
    return times


async def _by_tcp_only(service: RayRpcService, process_name: str) -> None:
    """As if it were on another node."""
    directory = RayDirectory(NAMESPACE)
    record = await service.run_blocking(directory.get, process_name)
    assert record is not None
    by_tcp = dataclasses.replace(record, unix_path=None)
    await service.run_blocking(directory.put, process_name, by_tcp)


async def _one_kill(caller: RayRpcService, victim: VictimGateway, times: Times) -> None:
    loop = asyncio.get_running_loop()
    watched: asyncio.Future[float] = loop.create_future()
    caller.watch(victim, lambda _: watched.set_result(time.perf_counter()))
    pid = await victim.pid()
    pending = asyncio.ensure_future(victim.hang())
    await victim.pid()  # the call before it is being handled
    killed = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        await pending
    except (RecipientUnreachableError, RpcConnectionError):
        times.pending.append(time.perf_counter() - killed)
    times.watch.append(await watched - killed)


async def _raw(kills: int, max_restarts: int) -> tuple[Times, set[str]]:
    times, errors = Times(), set()
    for _ in range(kills):
        raw: Any = RawVictim  # mypy knows nothing of what decorates a class
        victim: Any = raw.options(max_restarts=max_restarts).remote()
        pid = await victim.pid.remote()
        pending = victim.hang.remote()
        await victim.pid.remote()
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        try:
            await pending
        except ray.exceptions.RayActorError as error:
            times.pending.append(time.perf_counter() - killed)
            errors.add(type(error).__name__)
        ray.kill(victim, no_restart=True)
    return times, errors
