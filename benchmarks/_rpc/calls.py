"""Asks and tells between two processes: flinkray, Ray's own calls, xoscar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from _results import Figure, Section, medians, microseconds

from _rpc.cluster import Cluster
from _rpc.endpoints import (
    CallerGateway,
    Load,
    RawCaller,
    RawEcho,
    RawSyncEcho,
    raw_actor,
)

OUTSTANDING = 1000
OURS = Load(asks=3000, pipelined=30_000, outstanding=OUTSTANDING)
RAW = Load(asks=1000, pipelined=4000, outstanding=OUTSTANDING)
XOSCAR = Load(asks=3000, pipelined=10_000, outstanding=OUTSTANDING)

Contender = Callable[[], Awaitable[dict[str, float]]]

ROWS = (
    ("p50", "ask, p50, us"),
    ("p99", "ask, p99, us"),
    ("pipelined", f"asks/s, {OUTSTANDING:,} outstanding"),
    ("tells", "tells/s"),
    ("batched", "calls/s in batches of its own"),
)


async def contenders(cluster: Cluster) -> dict[str, Contender]:
    """What runs in each round, in this order."""
    echo = await cluster.process("echo", "create_echo")
    tcp_echo = await cluster.process("tcp-echo", "create_tcp_echo")
    caller = await cluster.service.connect(
        await cluster.process("caller", "create_caller"), CallerGateway
    )
    raw_echo = raw_actor(RawEcho, "RawEcho", OUTSTANDING)
    raw_sync_echo = raw_actor(RawSyncEcho, "RawSyncEcho")
    raw_caller = raw_actor(RawCaller, "RawCaller")
    found: dict[str, Contender] = {
        "flinkray, unix": lambda: caller.calls(echo, OURS),
        "Ray, async actor": lambda: raw_caller.calls.remote(raw_echo, RAW),
        "flinkray, TCP": lambda: caller.calls(tcp_echo, OURS),
        "flinkray, through Ray": lambda: caller.calls_through_ray(echo, RAW),
        "Ray, sync actor": lambda: raw_caller.calls.remote(raw_sync_echo, RAW),
    }
    peer = cluster.peer
    if peer is not None:
        found["xoscar"] = lambda: peer.ask(
            "calls", asks=XOSCAR.asks, pipelined=XOSCAR.pipelined, outstanding=OUTSTANDING
        )
    return found


async def run(cluster: Cluster) -> Section:
    """All contenders in turn, as often as there are rounds."""
    runs: dict[str, list[dict[str, float]]] = {}
    competing = await contenders(cluster)
    for contend in competing.values():
        await contend()  # warm: connections are open, code is loaded
    for number in range(cluster.rounds):
        order = list(competing.items())
        for name, contend in order[number % len(order) :] + order[: number % len(order)]:
            runs.setdefault(name, []).append(await contend())
    found = {name: medians(runs[name]) for name in competing}
    section = Section(
        f"calls between two processes on this node, medians of {cluster.rounds} rounds",
        ("", *found),
        raw={"medians": found, "rounds": runs},
    )
    for key, title in ROWS:
        if any(key in one for one in found.values()):
            show = microseconds if key in ("p50", "p99") else "{:,.0f}".format
            section.add(title, *(show(one[key]) if key in one else "" for one in found.values()))
    _judge(section, found)
    return section


def _judge(section: Section, found: dict[str, dict[str, float]]) -> None:
    def ratio(
        id_: str, what: str, bound: float, way: str = "unix", peer: str = "Ray, async actor"
    ) -> None:
        key = id_.partition("-")[0]
        mine = found[f"flinkray, {way}"][key]
        theirs = found[peer]["pipelined" if key == "tells" else key]
        is_time = key in ("p50", "p99")
        shown = [f"{microseconds(it)} us" if is_time else f"{it:,.0f}" for it in (mine, theirs)]
        name, value = f"{peer}: {shown[1]}", mine / theirs
        figure = Figure(
            id_, what, value, bound, "x", at_least=not is_time, shown=f"{shown[0]}, {{}}", peer=name
        )
        section.figures.append(figure)

    ratio("p50", "an ask, one after the other, p50", 0.12)
    ratio("p99", "an ask, one after the other, p99", 0.2)
    ratio("pipelined", f"asks/s, {OUTSTANDING:,} on their way", 25)
    ratio("tells", "tells/s, against the actor's calls", 80)
    ratio("p50-through-ray", "an ask that Ray's calls carry, p50", 1.15, "through Ray")
    if "xoscar" in found:
        ratio("p50-xoscar", "an ask, one after the other, p50, beside xoscar", 1.0, peer="xoscar")
