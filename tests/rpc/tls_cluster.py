"""A program: a Ray cluster with TLS, as the environment says, and calls between two processes."""

from __future__ import annotations

import asyncio
import dataclasses

import ray

from flinkray.client.ray_runtime import ports_for_agents
from flinkray.rpc import RayRpcService
from flinkray.rpc.ray.directory import RayDirectory
from tests.rpc.endpoints import EchoGateway, echo_spec


async def main() -> None:
    service = await RayRpcService.open("tls")
    address = await service.spawn(echo_spec("worker"))
    directory = RayDirectory("tls")
    record = await service.run_blocking(directory.get, "worker")
    assert record is not None
    assert record.has_tls
    # as from another node
    by_tcp = dataclasses.replace(record, unix_path=None)
    await service.run_blocking(directory.put, "worker", by_tcp)
    for transport in ("direct", "ray"):
        client = await RayRpcService.open("tls", transport=transport)
        echo = await client.connect(address, EchoGateway)
        assert await echo.echo(transport) == transport
        await client.close()
    await service.close()


if __name__ == "__main__":
    with ports_for_agents():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    asyncio.run(main())
    ray.shutdown()
    print("done")  # noqa: T201
