"""Many connections from one process: each sender has a service, and so a connection, of its own."""

from __future__ import annotations

import asyncio
import gc
import time
from abc import abstractmethod

import psutil

from _rpc.endpoints import Echo, EchoGateway
from flinkray.rpc import RayRpcService, RpcEndpoint, RpcGateway, RpcService, ask_timeout

_OPENED_TOGETHER = 20


class SenderHostGateway(RpcGateway):
    """A process of many senders."""

    @abstractmethod
    @ask_timeout(None)
    async def open(self, namespace: str, senders: int) -> None:
        """Open services until there are that many; they are connected to nothing yet."""

    @abstractmethod
    @ask_timeout(None)
    async def connect_all(self, address: str) -> None:
        """One connection from each service to the endpoint, used once."""

    @abstractmethod
    @ask_timeout(None)
    async def send(
        self, senders: int, outstanding: int, begin: float, seconds: float
    ) -> tuple[int, ...]:
        """Answered asks of each of the first *senders* between *begin* and its *seconds*.

        Each keeps *outstanding* asks on their way.  *begin* is of the node's monotonic clock; they
        start at once.
        """

    @abstractmethod
    async def memory(self) -> int:
        """Resident bytes of this process."""


class SenderHost(Echo, SenderHostGateway):
    """See the gateway; also what others call, so that both sides can say what they hold."""

    def __init__(self, rpc_service: RpcService) -> None:
        super().__init__(rpc_service, "senders")
        self._services: list[RayRpcService] = []
        self._echoes: list[EchoGateway] = []

    async def on_stop(self) -> None:
        await asyncio.gather(*(service.close() for service in self._services))

    async def open(self, namespace: str, senders: int) -> None:
        while len(self._services) < senders:
            count = min(_OPENED_TOGETHER, senders - len(self._services))
            self._services += await asyncio.gather(
                *(RayRpcService.open(namespace) for _ in range(count))
            )

    async def connect_all(self, address: str) -> None:
        for first in range(len(self._echoes), len(self._services), _OPENED_TOGETHER):
            services = self._services[first : first + _OPENED_TOGETHER]
            self._echoes += await asyncio.gather(
                *(service.connect(address, EchoGateway) for service in services)
            )
        for echo in self._echoes:
            await echo.echo(1)

    async def send(
        self, senders: int, outstanding: int, begin: float, seconds: float
    ) -> tuple[int, ...]:
        counts = [0] * senders
        end = begin + seconds

        async def ask(sender: int) -> None:
            echo = self._echoes[sender]
            while True:
                await echo.echo(1)
                now = time.monotonic()
                if now >= end:
                    return
                if now >= begin:
                    counts[sender] += 1

        await asyncio.gather(
            *(ask(sender) for sender in range(senders) for _ in range(outstanding))
        )
        return tuple(counts)

    async def memory(self) -> int:
        return resident()


def resident() -> int:
    """Resident bytes of this process, after garbage was collected."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def create_sender_host(service: RpcService, arguments: object) -> RpcEndpoint:
    return SenderHost(service)
