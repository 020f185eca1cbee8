"""A program: what a driver does that has joined Ray by its client, ``ray://…``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest
import ray

from flinkray.core.errors import ProcessExistsError, RecipientUnreachableError
from flinkray.rpc import RayRpcService
from flinkray.rpc.ray.dialler import Whereabouts
from tests.rpc.endpoints import EchoGateway, OrderError, echo_spec


async def drive(transport: str) -> None:
    service = await RayRpcService.open("ray-client", transport=transport)  # type: ignore[arg-type]
    address = await service.spawn(echo_spec("worker"))
    echo = await service.connect(address, EchoGateway)
    (connection,) = service.connections()
    assert isinstance(connection.where, Whereabouts)
    assert connection.where.is_carried == (transport == "ray")
    assert await echo.echo(("a", 1)) == ("a", 1)
    await asyncio.gather(*(echo.note(number) for number in range(500)))
    assert await echo.notes() == tuple(range(500))
    with pytest.raises(OrderError, match="seven"):
        await echo.fail("order")
    with pytest.raises(ProcessExistsError, match="worker"):
        await service.spawn(echo_spec("worker"))
    reasons: asyncio.Queue[str] = asyncio.Queue()
    service.watch(echo, reasons.put_nowait)
    hanging = asyncio.ensure_future(echo.hang())
    os.kill(await echo.pid(), signal.SIGKILL)
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.hang"):
        await hanging
    assert await reasons.get()
    assert await service.spawn(echo_spec("other")) == "other/echo"
    await service.stop("other")
    await service.close()


async def main() -> None:
    for transport in ("direct", "ray"):
        await drive(transport)


if __name__ == "__main__":
    ray.init(sys.argv[1], log_to_driver=False)
    asyncio.run(main())
    ray.shutdown()
    print("done")  # noqa: T201
