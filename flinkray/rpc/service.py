"""The RPC service, which hosts the endpoints of a process; each process has one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from random import Random
from typing import ClassVar, Literal, TypeVar

from flinkray.core.clock import Clock
from flinkray.core.ids import FencingToken
from flinkray.rpc.calls.background_tasks import PeriodicTask
from flinkray.rpc.calls.metrics import MetricSample, RpcMetrics
from flinkray.rpc.calls.peer_deadlines import PatientDeadlines
from flinkray.rpc.calls.watch import TerminationWatch
from flinkray.rpc.gateway import RpcGateway
from flinkray.rpc.mailbox import HostedEndpoint
from flinkray.rpc.spec import EndpointSpec
from flinkray.rpc.wire.listener import SocketAccess

G = TypeVar("G", bound=RpcGateway)
T = TypeVar("T")

TransportChoice = Literal["auto", "direct", "ray"]
"""How other processes are reached: auto means directly where that works, else through Ray."""

JITTER = 0.25
"""The largest random fraction by which a pause before another attempt is made longer."""


class RpcService(ABC):
    """Hosts the endpoints of one process, connects to other endpoints, and starts processes.

    Call all methods on :attr:`loop`.
    """

    DEFAULT_ASK_TIMEOUT: ClassVar[float] = 10.0

    process_name: str
    clock: Clock
    ask_timeout: float
    """Seconds that an ask waits, unless its gateway method has a timeout of its own.

    A new value applies to proxies that are connected later.
    """
    metrics_export_interval: float = 10.0
    """Seconds between two exports of :attr:`metrics`, if the service has a place to export to.

    On Ray, the place is Ray's metrics endpoint. 0: no export. A new value applies after the next
    export; 0 applies at once and for good.
    """
    transport: TransportChoice = "auto"
    """How other processes are reached, on Ray. Other services ignore the value.

    A new value applies to connections made later.
    """
    avoids_head_node: bool = False
    """Whether processes without a placement avoid Ray's head node, if there are other nodes."""
    samplers: list[Callable[[], Iterable[MetricSample]]]
    """Functions that return further samples to export; called at each export, on :attr:`loop`."""
    max_frame_size: int
    """The largest message in bytes; larger messages are refused. Applies to later connections."""
    max_pending_calls: int
    """How many calls of one connection may be unfinished before reading from it pauses.

    Reading resumes when half of the calls are done. So a sender that sends faster than the handlers
    finish has to wait, and no other sender does. A new value applies to connections made later.

    This limit should not be reached in normal operation: a handler that waits for another call of
    the same sender waits in vain if that call is queued behind too many others.
    """
    max_pending_bytes: int
    """How many bytes the unfinished calls of one connection may have before reading pauses."""
    loop: asyncio.AbstractEventLoop
    deadlines: PatientDeadlines
    """Deadlines after which this process takes a peer for dead; time of stalls does not count."""
    random: Random
    """The source of the service's random numbers; in a simulation, seeded."""

    @property
    @abstractmethod
    def connection_idle_timeout(self) -> float | None:
        """The seconds without use after which a connection to another process is closed.

        None, the default: connections stay open. A new value applies at once.

        A connection is in use if something was sent over it, if an answer is awaited on it, or if
        it serves a watch of an endpoint or a process. Proxies do not notice a closed connection:
        their next call opens another connection to the same incarnation of the process.
        """

    @connection_idle_timeout.setter
    @abstractmethod
    def connection_idle_timeout(self, seconds: float | None) -> None: ...

    @property
    @abstractmethod
    def metrics(self) -> RpcMetrics:
        """The calls, failures and latencies by gateway method, of both sides, until now."""

    @property
    def outage(self) -> str | None:
        """A text for users, which says since when the service that starts and ends processes (Ray's
        head) does not answer.

        None: it answers. An outage does not affect existing connections.
        """
        return None

    @property
    @abstractmethod
    def socket_access(self) -> SocketAccess | None:
        """The host to listen on, the secret and the TLS contexts, for code of this process that
        opens its own sockets.

        None: this process cannot open sockets, or is not on a node of the cluster.
        """

    @property
    @abstractmethod
    def has_own_process(self) -> bool:
        """Whether this process has an operating system process of its own.

        False where several processes are simulated on one event loop.
        """

    @property
    def devices(self) -> Mapping[str, tuple[str, ...]]:
        """The ids of the accelerators that this process may use, by the name of the resource."""
        return {}

    @property
    @abstractmethod
    def has_threads(self) -> bool:
        """Whether threads can be started here; False in a simulation."""

    @property
    @abstractmethod
    def executor(self) -> Executor:
        """The thread pool for blocking work of this process."""

    @abstractmethod
    async def connect(
        self, address: str, gateway: type[G], fencing_token: FencingToken | None = None
    ) -> G:
        """Return a proxy of the endpoint at *address*.

        An address that ends with ``*`` means the newest running endpoint whose id begins with the
        text before ``*``; see :meth:`new_endpoint_id`.

        The proxy is bound to the endpoint object it was connected to: once that has terminated or
        its process has died, each call raises RecipientUnreachableError; connect again. A wrong
        fencing token does not fail here: the calls fail.

        Raises:
            RpcConnectionError: nothing is at the address (at once; also while Ray restarts it).
            HandshakeError: the endpoint does not implement the gateway, the other process speaks
                another protocol version or does not know the cluster's secret.
        """

    @abstractmethod
    def self_gateway(self, endpoint: HostedEndpoint, gateway: type[G]) -> G:
        """Return a proxy of *endpoint*.

        See :meth:`~flinkray.rpc.endpoint.RpcEndpoint.get_self_gateway`.
        """

    @abstractmethod
    async def spawn(self, spec: EndpointSpec) -> str:
        """Start a process; return the address of its main endpoint once ``on_start`` is done.

        Raises:
            ProcessExistsError: a process of that name runs.
            Exception: the exception of the factory or of ``on_start``.
        """

    @abstractmethod
    def keep_prestarted(
        self,
        number: int,
        imports: tuple[str, ...] = (),
        ahead: tuple[str, ...] = (),
        roles: int = 1,
    ) -> None:
        """Keep *number* prestarted processes ready while this service is open.

        When any process of the cluster spawns with ``may_take_over``, a prestarted process takes
        the role. Call this in one process of a cluster. Does nothing where processes start at once.

        Args:
            imports: modules that a process has imported when it is ready.
            ahead: modules that a ready process imports while it has no role.
            roles: how many roles a process takes, one after the other, if each one
                ``may_return``; then the process ends.
        """

    @abstractmethod
    async def end_prestarted(self) -> None:
        """Stop keeping prestarted processes, and end those that have no role yet."""

    @abstractmethod
    def watch(
        self, target: str | RpcGateway, on_terminated: Callable[[str], None]
    ) -> TerminationWatch:
        """Call *on_terminated* once, with the reason, when an endpoint ends or its process dies.

        If the endpoint has failed, the reason names the error: type and message. *target* is an
        address, for the endpoint that is found there, or a proxy, for exactly the endpoint it was
        connected to. *on_terminated* is also called if there is no such endpoint (any more). A
        restart by Ray counts as a death.
        """

    @abstractmethod
    def watch_process(self, process_name: str, on_ended: Callable[[str], None]) -> TerminationWatch:
        """Call *on_ended* once, with the reason, when a process ends, with or without endpoints.

        *on_ended* is also called if there is no such process.
        """

    @property
    @abstractmethod
    def identity(self) -> str:
        """The identity of this process as a sender of messages: process name and incarnation."""

    @abstractmethod
    def identity_of(self, gateway: RpcGateway) -> str:
        """Return the identity of the process that a proxy is connected to."""

    @abstractmethod
    async def is_dead(self, identity: str) -> bool:
        """Return whether it is certain that this incarnation of a process has ended.

        False if that is unknown, as for a process that hangs or is behind a broken network.
        """

    @abstractmethod
    async def kill(self, process_name: str, patience: float = 0.0) -> None:
        """End a process for good; idempotent, no error if there is none.

        With *patience*, a process whose endpoint has just closed may get so many seconds to end by
        itself: then the actor that was prestarted for it can take another role. Otherwise the
        process ends at once.

        While Ray's head is away, this waits for the head and raises nothing.
        """

    @abstractmethod
    async def process_names(self, prefix: str) -> tuple[str, ...]:
        """Return the sorted names of the running, listening processes that begin with *prefix*.

        A process that has just died may be among them.
        """

    @abstractmethod
    async def stop(self, process_name: str) -> None:
        """Close the endpoints of a process, then end the process.

        Idempotent, no error if there is none.
        """

    def jittered(self, seconds: float) -> float:
        """Return *seconds*, made longer by a random fraction of at most :data:`JITTER`.

        Use this for timeouts and pauses before another attempt: many processes that failed at the
        same time, for example by a leader's death, then do not all retry at the same time.
        """
        return seconds * (1.0 + JITTER * self.random.random())

    async def pause(self, seconds: float) -> None:
        """Wait before another attempt, for :meth:`jittered` *seconds*."""
        await asyncio.sleep(self.jittered(seconds))

    @abstractmethod
    async def run_blocking(self, fn: Callable[..., T], *args: object) -> T:
        """Run *fn*, which may block, in a thread of :attr:`executor`; return its result."""

    @abstractmethod
    def schedule_periodically(
        self,
        fn: Callable[[], Awaitable[None] | None],
        interval: float,
        *,
        initial_delay: float | None = None,
    ) -> PeriodicTask:
        """Run *fn* on :attr:`loop`, first after *initial_delay* seconds (None: after *interval*).

        Each further run begins *interval* seconds after the end of the run before, until the task
        is cancelled, *fn* raises or the service closes.
        """

    @abstractmethod
    def new_endpoint_id(self, prefix: str) -> str:
        """Return *prefix* with a suffix, as an id that no endpoint of this process has had."""

    @abstractmethod
    async def close(self) -> None:
        """Close all endpoints of this process, then the connections; then its proxies fail.

        Every endpoint is closed, even if others fail to close.

        Raises:
            Exception: the first error with which an endpoint terminated.
        """

    @abstractmethod
    def register_endpoint(self, endpoint: HostedEndpoint) -> None:
        """Make *endpoint* reachable under its id; called by the new endpoint itself."""

    @abstractmethod
    def unregister_endpoint(self, endpoint: HostedEndpoint) -> None:
        """Free the id of *endpoint*; called by the endpoint's mailbox."""
