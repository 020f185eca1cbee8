"""The service that endpoints live on: one per process."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from random import Random
from typing import ClassVar, TypeVar

from flinkray.core.clock import Clock
from flinkray.core.ids import FencingToken
from flinkray.rpc.calls.metrics import MetricSample, RpcMetrics
from flinkray.rpc.calls.patience import PatientDeadlines
from flinkray.rpc.calls.watch import TerminationWatch
from flinkray.rpc.gateway import RpcGateway
from flinkray.rpc.mailbox import HostedEndpoint
from flinkray.rpc.periodic import PeriodicTask
from flinkray.rpc.spec import EndpointSpec
from flinkray.rpc.wire.socket_access import SocketAccess

G = TypeVar("G", bound=RpcGateway)
T = TypeVar("T")

JITTER = 0.25
"""A pause before another attempt is longer by at most this share of it, at random."""


class RpcService(ABC):
    """Hosts the endpoints of one process, connects to those of others, starts new processes.

    All methods are to be called on :attr:`loop`.
    """

    DEFAULT_ASK_TIMEOUT: ClassVar[float] = 10.0

    process_name: str
    clock: Clock
    ask_timeout: float
    """Seconds that an ask waits, unless its gateway method says otherwise.  A new value holds for
    proxies that are connected later."""
    metrics_export_interval: float = 10.0
    """Seconds between two exports of :attr:`metrics`, on services that have where to: on Ray, to
    its metrics endpoint; 0: none.  A new value holds after the next export, 0 at
    once and for good."""
    samplers: list[Callable[[], Iterable[MetricSample]]]
    """Called at each export, on :attr:`loop`: what else is exported."""
    max_frame_size: int
    """Bytes; a larger message is refused.  A new value holds for connections made later."""
    max_pending_calls: int
    """Calls of one connection whose handlers are not done, before no more is read from it; it is
    read again when half of them are done.  So whoever sends faster than the handlers are done has
    to wait, and nobody else does.  A new value holds for connections made later.

    Not to be reached in good order: a handler that waits for another call of the same sender, which
    is behind so many others, waits in vain."""
    max_pending_bytes: int
    """The same for the size of these calls."""
    loop: asyncio.AbstractEventLoop
    deadlines: PatientDeadlines
    """After which this process gives others up; time in which it stood still does not count."""
    random: Random
    """Where the service's own chance comes from: in a simulation, the seed."""

    @property
    @abstractmethod
    def connection_idle_timeout(self) -> float | None:
        """Seconds after which a connection to another process is closed that nobody uses; None, the
        default: never.  A new value holds from now on.

        Used is a connection over which something was sent, on which an answer is waited for, or by
        which an endpoint or a process is watched.  Proxies do not notice: their next call opens
        another connection to the same incarnation of the process.
        """

    @connection_idle_timeout.setter
    @abstractmethod
    def connection_idle_timeout(self, seconds: float | None) -> None: ...

    @property
    @abstractmethod
    def metrics(self) -> RpcMetrics:
        """Calls, failures and latencies by gateway method, of both sides, until now."""

    @property
    def outage(self) -> str | None:
        """For people: what is away that finds, starts and ends processes, and since when; None:
        nothing is.  Connections that there are do not depend on it."""
        return None

    @property
    @abstractmethod
    def socket_access(self) -> SocketAccess | None:
        """For sockets of the process's own; None: it has no sockets, or is not on the cluster's
        nodes."""

    @property
    @abstractmethod
    def has_own_process(self) -> bool:
        """Whether a process of the operating system is this one's alone; False where several are
        pretended in one, on one event loop."""

    @property
    @abstractmethod
    def has_threads(self) -> bool:
        """Whether threads can be started here: not in a simulation."""

    @property
    @abstractmethod
    def executor(self) -> Executor:
        """Threads for blocking work."""

    @abstractmethod
    async def connect(
        self, address: str, gateway: type[G], fencing_token: FencingToken | None = None
    ) -> G:
        """A proxy of the endpoint at *address*.

        An address that ends with ``*`` is that of the newest endpoint there that runs and whose id
        begins like that, as :meth:`new_endpoint_id` makes them.

        The proxy is bound to the endpoint object it was connected to: once that has terminated or
        its process has died, each call raises RecipientUnreachableError; connect again.  A wrong
        fencing token is no reason to fail here: the calls fail.

        Raises:
            RpcConnectionError: nothing is at the address (at once; also while Ray restarts it).
            HandshakeError: the endpoint does not implement the gateway, the other process speaks
                another protocol version or does not know the cluster's secret.
        """

    @abstractmethod
    def self_gateway(self, endpoint: HostedEndpoint, gateway: type[G]) -> G:
        """See :meth:`~flinkray.rpc.endpoint.RpcEndpoint.get_self_gateway`."""

    @abstractmethod
    async def spawn(self, spec: EndpointSpec) -> str:
        """Start a process; returns the address of its main endpoint once ``on_start`` is done.

        Raises:
            ProcessExistsError: a process of that name runs.
            Exception: what the factory or ``on_start`` raised.
        """

    @abstractmethod
    def keep_prestarted(
        self, number: int, imports: tuple[str, ...] = (), ahead: tuple[str, ...] = ()
    ) -> None:
        """Keep so many processes ready to become those that anybody in the cluster spawns with
        ``may_take_over``, as long as this service is open.

        To be called in one process of a cluster.  Does nothing where processes start at once.

        Args:
            imports: modules that they have imported when they are ready.
            ahead: those that they import then, while nobody needs them.
        """

    @abstractmethod
    async def end_prestarted(self) -> None:
        """Keep none any more, and end those that are ready."""

    @abstractmethod
    def watch(
        self, target: str | RpcGateway, on_terminated: Callable[[str], None]
    ) -> TerminationWatch:
        """Be told once, with the reason, when an endpoint terminates or its process dies.

        The reason names the error that the endpoint has failed with, if it has: type and message.

        *target* is an address, for whatever is there by the time that it is reached, or a proxy,
        for the very endpoint that it was connected to.  Also when nothing is there (any more).  A
        restart by Ray is a death.
        """

    @abstractmethod
    def watch_process(self, process_name: str, on_ended: Callable[[str], None]) -> TerminationWatch:
        """Be told once, with the reason, when a process ends, be there endpoints in it or not; also
        when there is none."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Who the sender of a message is: process and incarnation."""

    @abstractmethod
    async def is_dead(self, identity: str) -> bool:
        """Whether it is certain that this incarnation of a process has ended.

        False also where nobody can tell: of one that hangs, or is behind a broken network.
        """

    @abstractmethod
    async def kill(self, process_name: str) -> None:
        """End a process at once and for good; idempotent, also when there is none.

        While Ray's head is away it waits for it, and raises nothing.
        """

    @abstractmethod
    async def process_names(self, prefix: str) -> tuple[str, ...]:
        """Of the processes that are there and listen, those whose names begin so, sorted.

        One that has just died may be among them.
        """

    @abstractmethod
    async def stop(self, process_name: str) -> None:
        """Close the endpoints of a process, then end it; idempotent, also when there is none."""

    def jittered(self, seconds: float) -> float:
        """*seconds*, and up to :data:`JITTER` of them more.

        For time-outs and pauses after which something is tried again: many that failed at the same
        time, by one leader's death, say, do not all come again at the same time.
        """
        return seconds * (1.0 + JITTER * self.random.random())

    async def pause(self, seconds: float) -> None:
        """Wait before another attempt, for :meth:`jittered` *seconds*."""
        await asyncio.sleep(self.jittered(seconds))

    @abstractmethod
    async def run_blocking(self, fn: Callable[..., T], *args: object) -> T:
        """Run *fn* in a thread of :attr:`executor`."""

    @abstractmethod
    def schedule_periodically(
        self,
        fn: Callable[[], Awaitable[None] | None],
        interval: float,
        *,
        initial_delay: float | None = None,
    ) -> PeriodicTask:
        """Run *fn* on :attr:`loop`, first after *initial_delay* seconds (by default the interval).

        Each further run begins *interval* seconds after the end of the one before, until the task
        is cancelled, *fn* raises or the service closes.
        """

    @abstractmethod
    def new_endpoint_id(self, prefix: str) -> str:
        """*prefix* and a suffix that no id of this process has had."""

    @abstractmethod
    async def close(self) -> None:
        """Close all endpoints here, then the connections; then its proxies fail.

        Every endpoint is closed whatever the others do.

        Raises:
            Exception: the first error that an endpoint terminated with.
        """

    @abstractmethod
    def register_endpoint(self, endpoint: HostedEndpoint) -> None:
        """For a new endpoint itself: make it reachable under its id."""

    @abstractmethod
    def unregister_endpoint(self, endpoint: HostedEndpoint) -> None:
        """For the endpoint's mailbox: its id is free again."""
