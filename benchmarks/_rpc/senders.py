"""One endpoint with many senders: what it gets done, and what the slowest gets of it."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from _results import Section

from _rpc.cluster import NAMESPACE, Cluster
from _rpc.sender_host import SenderHostGateway

SENDERS = (1, 10, 100, 1000)
HOSTS = 2
"""Processes that the senders are spread over."""
OUTSTANDING = 1000
"""Asks on their way, of all senders together."""
SETTLING = 0.5
SECONDS = 2.0


async def run(cluster: Cluster) -> Section:
    echo = await cluster.process("crowded-echo", "create_echo")
    hosts = []
    for index in range(HOSTS):
        address = await cluster.process(f"senders-{index}", "create_sender_host", "sender_host")
        host = await cluster.service.connect(address, SenderHostGateway)
        await host.open(NAMESPACE, max(SENDERS) // HOSTS)
        await host.connect_all(echo)
        hosts.append(host)
    totals: dict[int, list[float]] = {}
    slowest: dict[int, list[float]] = {}
    for _ in range(cluster.rounds):
        for senders in SENDERS:
            counts = await _send(hosts, senders)
            totals.setdefault(senders, []).append(sum(counts) / SECONDS)
            slowest.setdefault(senders, []).append(min(counts) * senders / sum(counts))
    section = Section(
        f"one endpoint, {OUTSTANDING:,} asks on their way in all, senders with a connection each "
        f"in {HOSTS} processes, medians of {cluster.rounds} rounds of {SECONDS:g} s",
        ("senders", "asks/s", "slowest sender's share of its fair share"),
    )
    for senders in SENDERS:
        total, share = median(totals[senders]), median(slowest[senders])
        section.add(f"{senders:,}", f"{total:,.0f}", f"{share:.2f}")
        section.raw[str(senders)] = {"asks_per_second": total, "slowest_share": share}
    return section


async def _send(hosts: list[SenderHostGateway], senders: int) -> list[int]:
    used = hosts[: min(len(hosts), senders)]
    begin = time.monotonic() + SETTLING
    results = await asyncio.gather(
        *(host.send(senders // len(used), OUTSTANDING // senders, begin, SECONDS) for host in used)
    )
    return [count for counts in results for count in counts]
