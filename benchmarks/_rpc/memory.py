"""What a connection costs in memory, on both sides."""

from __future__ import annotations

from statistics import median

from _results import Section

from _rpc.cluster import NAMESPACE, Cluster
from _rpc.sender_host import SenderHostGateway

CONNECTIONS = 500


async def run(cluster: Cluster) -> Section:
    calling, called = [], []
    for number in range(cluster.rounds):  # in fresh processes: freed memory is used again
        echo_name, host_name = f"memory-echo-{number}", f"memory-senders-{number}"
        echo = await cluster.process(echo_name, "create_sender_host", "sender_host")
        near = await cluster.service.connect(
            await cluster.process(host_name, "create_sender_host", "sender_host"),
            SenderHostGateway,
        )
        far = await cluster.service.connect(echo, SenderHostGateway)
        await near.open(NAMESPACE, CONNECTIONS)
        before = await near.memory(), await far.memory()
        await near.connect_all(echo)
        after = await near.memory(), await far.memory()
        calling.append((after[0] - before[0]) / CONNECTIONS)
        called.append((after[1] - before[1]) / CONNECTIONS)
        await cluster.stop_process(host_name)
        await cluster.stop_process(echo_name)
    section = Section(
        f"resident memory of a connection, over {CONNECTIONS} connections between two processes, "
        f"medians of {cluster.rounds} rounds",
        ("", "KB"),
        raw={"calling": median(calling), "called": median(called)},
    )
    section.add("calling side", f"{median(calling) / 1000:,.1f}")
    section.add("called side", f"{median(called) / 1000:,.1f}")
    return section
