"""How an ask grows with what it carries."""

from __future__ import annotations

from _results import Section, medians, microseconds

from _rpc.cluster import Cluster
from _rpc.endpoints import CallerGateway, RawCaller, RawEcho, raw_actor

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 8_000_000)
"""Bytes; the largest is below the frame limit of 10 MiB."""


def asks_of(size: int) -> int:
    """Calls in one round: enough for a median, and no more than some 200 MB."""
    return max(25, min(500, 200_000_000 // size))


async def run(cluster: Cluster) -> Section:
    echo = await cluster.process("echo", "create_echo")
    tcp_echo = await cluster.process("tcp-echo", "create_tcp_echo")
    caller = await cluster.service.connect(
        await cluster.process("caller", "create_caller"), CallerGateway
    )
    raw_echo, raw_caller = raw_actor(RawEcho, "RawPayload"), raw_actor(RawCaller, "RawPayloads")
    runs: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(cluster.rounds):
        for size in SIZES:
            asks = asks_of(size)
            found = {
                "flinkray, unix": await caller.payload(echo, size, asks),
                "flinkray, TCP": await caller.payload(tcp_echo, size, asks),
                "Ray, async actor": await raw_caller.payload.remote(raw_echo, size, asks),
            }
            if cluster.peer is not None:
                found["xoscar"] = await cluster.peer.ask("payload", size=size, asks=asks)
            for name, one in found.items():
                runs.setdefault((name, size), []).append(one)
    names = list(dict.fromkeys(name for name, _ in runs))
    columns = [f"{name}, {unit}" for name in names for unit in ("us", "MB/s")]
    section = Section(
        f"an ask with bytes as its argument, p50, medians of {cluster.rounds} rounds",
        ("bytes", *columns),
    )
    for size in SIZES:
        cells = []
        for name in names:
            seconds = medians(runs[name, size])["p50"]
            section.raw.setdefault(name, {})[str(size)] = seconds
            cells += [microseconds(seconds), f"{size / seconds / 1e6:,.0f}"]
        section.add(f"{size:,}", *cells)
    return section
