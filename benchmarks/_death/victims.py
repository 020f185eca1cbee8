"""What is killed: an endpoint of flinkray, and an actor of bare Ray."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod

import ray

from flinkray.rpc import RpcEndpoint, RpcGateway, RpcService, ask_timeout


class VictimGateway(RpcGateway):
    """What is called when it dies."""

    @abstractmethod
    async def pid(self) -> int: ...

    @abstractmethod
    @ask_timeout(None)
    async def hang(self) -> None: ...


class Victim(RpcEndpoint, VictimGateway):
    """Answers with its process id, or never."""

    async def pid(self) -> int:
        return os.getpid()

    async def hang(self) -> None:
        await asyncio.Event().wait()


def create_victim(service: RpcService, arguments: object) -> RpcEndpoint:
    return Victim(service, "victim")


@ray.remote(num_cpus=0, max_concurrency=10)  # type: ignore[call-overload]  # Ray lacks it
class RawVictim:
    """The same without flinkray."""

    async def pid(self) -> int:
        return os.getpid()

    async def hang(self) -> None:
        await asyncio.Event().wait()
