"""A small scenario: clients have amounts booked, each exactly once, whatever goes wrong."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from dataclasses import replace

from flinkray.core.errors import RpcError
from flinkray.core.message import message
from flinkray.ha import open_directory
from flinkray.rpc import EndpointSpec, RpcEndpoint, RpcGateway, RpcService, ask_timeout
from flinkray.rpc.wire import codec
from flinkray.testing.simulation import Faults, Simulation

FAULTS = Faults(
    loss=0.05,
    duplication=0.05,
    breaks_before=0.02,
    breaks_after=0.02,
    delay=0.05,
    reset_every=5,
    crash_every=5,
    hang_every=10,
    slow_every=20,
    partition_every=20,
    node_crash_every=40,
    storage_every=20,
    torn_writes=0.05,
    until=40,
)
CLIENTS, BOOKINGS = 3, 5


@message
class LedgerSettings:
    """Safeguards, which tests take away."""

    ignores_duplicates: bool = True
    writes_before_it_answers: bool = True
    writes_one_after_the_other: bool = True
    """Also when the call that wanted a write is given up in its middle."""


class LedgerGateway(RpcGateway):
    """Books."""

    @abstractmethod
    @ask_timeout(2.0)
    async def book(self, booking: str) -> None:
        """Durable on return; booking again changes nothing."""

    @abstractmethod
    async def booked(self) -> tuple[str, ...]: ...


class Ledger(RpcEndpoint, LedgerGateway):
    """Keeps its bookings in one entry of a directory."""

    def __init__(self, rpc_service: RpcService, settings: LedgerSettings) -> None:
        super().__init__(rpc_service, "ledger")
        self._settings = settings
        self._directory = open_directory("simulated://shared/ledger")
        self._booked: tuple[str, ...] = ()
        self._lock = asyncio.Lock()

    async def on_start(self) -> None:
        data = await self.rpc_service.run_blocking(self._directory.read, "bookings")
        self._booked = () if data is None else codec.decode(data)

    async def book(self, booking: str) -> None:
        if self._settings.writes_one_after_the_other:
            await asyncio.shield(self.create_task(self._book(booking)))
        else:
            await self._book(booking)

    async def _book(self, booking: str) -> None:
        async with self._lock:
            if self._settings.ignores_duplicates and booking in self._booked:
                return
            after = (*self._booked, booking)
            if self._settings.writes_before_it_answers:
                await self._write(after)
            else:
                self.create_task(self._write(after))
            self._booked = after

    async def _write(self, bookings: tuple[str, ...]) -> None:
        data = codec.encode(bookings)
        await self.rpc_service.run_blocking(self._directory.write, "bookings", data)

    def on_fatal_error(self, error: BaseException) -> None:
        """A failed write is its caller's, who may not wait any more."""
        if not isinstance(error, OSError):
            super().on_fatal_error(error)

    async def booked(self) -> tuple[str, ...]:
        return self._booked


def create_ledger(rpc_service: RpcService, settings: LedgerSettings) -> Ledger:
    return Ledger(rpc_service, settings)


async def play(simulation: Simulation, settings: LedgerSettings | None = None) -> None:
    """The scenario."""
    confirmed: list[str] = []

    async def client(name: str) -> None:
        service = simulation.service(name)
        for number in range(BOOKINGS):
            booking = f"{name}: {number}"
            while booking not in confirmed:
                try:
                    ledger = await service.connect("ledger/ledger", LedgerGateway)
                    await ledger.book(booking)
                    confirmed.append(booking)
                except (RpcError, OSError) as error:
                    simulation.tell("%s is not confirmed: %s", booking, error)
                    await asyncio.sleep(0.5)
            await asyncio.sleep(simulation.random.uniform(0, 10))

    service = simulation.service("auditor")
    spec = EndpointSpec(
        "Ledger", "ledger", f"{__name__}:create_ledger", settings or LedgerSettings()
    )
    await simulation.eventually(
        lambda: service.spawn(replace(spec, max_restarts=-1, detached=True)),
        within=60,
        retry_on=(RpcError, OSError),
    )
    for number in range(CLIENTS):
        simulation.start(f"client-{number}", client, f"client-{number}")
    await simulation.quiet()

    async def audit() -> bool:
        ledger = await service.connect("ledger/ledger", LedgerGateway)
        before = set(confirmed)
        booked = Counter(await ledger.booked())
        assert before <= set(booked), "a confirmed booking is lost"
        assert set(booked.values()) <= {1}, "something was booked twice"
        living = [p.name for p in simulation.processes("client")]
        return not living

    await simulation.eventually(audit, within=90, what="all is booked", retry_on=(RpcError,))
