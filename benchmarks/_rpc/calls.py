"""Asks and tells between two processes: flinkray, Ray's own calls, xoscar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from _rpc.cluster import Cluster
from _rpc.endpoints import (
    CallerGateway,
    Load,
    RawCaller,
    RawEcho,
    RawSyncEcho,
    raw_actor,
)
from _rpc.report import Goal, Section, medians, microseconds

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
        figures={"medians": found, "rounds": runs},
    )
    for key, title in ROWS:
        if any(key in one for one in found.values()):
            show = microseconds if key in ("p50", "p99") else "{:,.0f}".format
            section.add(title, *(show(one[key]) if key in one else "" for one in found.values()))
    _judge(section, found)
    return section


def _judge(section: Section, found: dict[str, dict[str, float]]) -> None:
    ours, raw = found["flinkray, unix"], found["Ray, async actor"]

    def ratio(what: str, key: str, bound: float, at_least: bool = False) -> Goal:
        base = raw["pipelined" if key == "tells" else key]
        return Goal(f"{what} / raw async actor call", ours[key] / base, bound, at_least)

    section.goals += [
        ratio("ask p50", "p50", 0.12),
        ratio("ask p99", "p99", 0.2),
        ratio("asks/s", "pipelined", 25, at_least=True),
        ratio("tells/s", "tells", 80, at_least=True),
    ]
    carried = found["flinkray, through Ray"]["p50"] / raw["p50"]
    section.goals.append(Goal("ask p50 through Ray's calls / raw async actor call", carried, 1.15))
    if "xoscar" in found:
        section.goals.append(Goal("ask p50 / xoscar's", ours["p50"] / found["xoscar"]["p50"], 1.0))
