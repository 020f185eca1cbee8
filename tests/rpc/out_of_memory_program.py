"""Spawns a process that Ray's memory monitor kills, and then another one of its name.

The Ray that it starts takes any use of memory for too much, and looks every few seconds.
"""

from __future__ import annotations

import asyncio
import sys

import ray

from flinkray.client.ray_runtime import ports_for_agents
from flinkray.core.errors import RpcConnectionError
from flinkray.rpc import RayRpcService
from tests.rpc.endpoints import echo_spec


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


async def main() -> None:
    service = await RayRpcService.open("out-of-memory", "driver")
    address = None
    while address is None:
        try:
            address = await service.spawn(echo_spec("worker"))
        except RpcConnectionError as error:
            say(f"at its start: {error}")  # the monitor came too early
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.watch(address, gone.set_result)
    say(f"gone: {await gone}")
    try:
        say(f"again: {await service.spawn(echo_spec('worker'))}")
    except RpcConnectionError as error:
        say(f"again, at its start: {error}")
    await service.close()


if __name__ == "__main__":
    with ports_for_agents():
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    asyncio.run(main())
    ray.shutdown()
