"""Asks between two pretended processes on one event loop."""

from __future__ import annotations

from _results import Figure, Section, medians, microseconds

from _rpc.endpoints import Echo, EchoGateway, Load, measure_calls
from flinkray.rpc import LocalNetwork, LocalRpcService

LOAD = Load(asks=5000, pipelined=50_000, outstanding=1000)


async def run(rounds: int) -> Section:
    network = LocalNetwork()
    called = LocalRpcService("called", network)
    calling = LocalRpcService("calling", network)
    endpoint = Echo(called, "echo")
    endpoint.start()
    echo = await calling.connect("called/echo", EchoGateway)
    await measure_calls(echo, LOAD)
    found = [await measure_calls(echo, LOAD) for _ in range(rounds)]
    await calling.close()
    await called.close()
    middle = medians(found)
    section = Section(
        f"LocalRpcService: two processes pretended on one loop, medians of {rounds} rounds",
        ("", ""),
        raw={"medians": middle, "rounds": found},
    )
    section.add("ask, p50, us", microseconds(middle["p50"]))
    section.add("ask, p99, us", microseconds(middle["p99"]))
    section.add("asks/s, 1,000 outstanding", f"{middle['pipelined']:,.0f}")
    section.add("tells/s", f"{middle['tells']:,.0f}")
    what = "asks/s between two services on one loop"
    section.figures = [Figure("local", what, middle["pipelined"], 50_000, at_least=True)]
    return section
