"""The connections of one service to other processes: at most one to each, opened when needed.

When a connection breaks, its pending calls fail. The next call (or watch) that needs the process
opens a successor to the same incarnation, once for all callers. Frames sent before the successor is
open wait in the successor; so calls keep their order, and nothing is sent twice.

An unused connection is closed after a while by the side that opened it and that alone sends
requests over it. That side sends a ping first: when the ping is answered, the other side has
received everything, so no request is on its way if nobody has used the connection since the ping.
The other side may still have to report the end of an endpoint; the next connection first asks which
endpoints have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError, RpcError
from flinkray.rpc.calls.background_tasks import BackgroundTasks
from flinkray.rpc.calls.call_context import outside_of_handler
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.wire.transport import OpeningTransport, Transport

FIRST_PAUSE = 0.05
"""Seconds to wait after the first failed attempt to reconnect; doubled with each failure."""
LONGEST_PAUSE = 2.0

IDLE_LOOKS = 4
"""The idle timeout is divided into this many looks at each connection."""

_PING_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A transport that was just opened to another process, and which incarnation it has reached."""

    transport: Transport
    """The open transport; nobody receives from it yet."""
    incarnation: str
    """The incarnation of the process at the other end."""
    where: object = None
    """What the service needs to reach the same incarnation again; see ``open_transport``."""


class ConnectionPool:
    """The connections of one service to other processes. Call all methods on the event loop."""

    def __init__(
        self,
        open_transport: Callable[[str, object], Awaitable[Opened]],
        new_connection: Callable[[str, str, Transport], ClientConnection],
        jittered: Callable[[float], float],
        tasks: BackgroundTasks,
        on_open: Callable[[ClientConnection], None],
    ) -> None:
        """Create a pool without connections.

        *open_transport* takes (process name, ``Opened.where``) and opens a transport to that
        incarnation (None: to any); raises RpcConnectionError. *new_connection* takes name,
        incarnation and transport. *jittered* is :meth:`RpcService.jittered`. *on_open* is called
        with each connection once the connection is open.
        """
        self._open_transport = open_transport
        self._new_connection = new_connection
        self._jittered = jittered
        self._tasks = tasks
        self._on_open = on_open
        self._loop = asyncio.get_running_loop()
        self._connections: dict[str, ClientConnection] = {}
        self._connecting: dict[str, asyncio.Task[ClientConnection]] = {}
        # also lost connections, while a proxy or a watch holds them
        self._latest: WeakValueDictionary[str, ClientConnection] = WeakValueDictionary()
        self._closed_reason: str | None = None
        self._idle_timeout: float | None = None
        self._idle_looks: dict[ClientConnection, tuple[int, int]] = {}
        """How often each connection was idle.

        For each connection: the number of requests sent at the last look, and the looks in a row
        that found no new request.
        """
        self._looker: asyncio.TimerHandle | None = None

    @property
    def idle_timeout(self) -> float | None:
        """The seconds without use after which a connection is closed; None: never."""
        return self._idle_timeout

    @idle_timeout.setter
    def idle_timeout(self, seconds: float | None) -> None:
        self._idle_timeout = seconds
        self._idle_looks.clear()
        if self._looker is not None:
            self._looker.cancel()
            self._looker = None
        self._look_later()

    def close(self, reason: str) -> None:
        """Refuse to open connections from now on; the caller closes the existing connections."""
        self._closed_reason = reason
        if self._looker is not None:
            self._looker.cancel()
            self._looker = None

    def all(self) -> list[ClientConnection]:
        return list(self._connections.values())

    def get(self, process_name: str) -> ClientConnection | None:
        """Return the connection to the process, which may still be opening; None: there is none."""
        return self._connections.get(process_name)

    async def connect(self, process_name: str) -> ClientConnection:
        """Return a connection to the current incarnation of the process.

        Raises:
            RpcConnectionError: there is no such process, it cannot be reached, or the pool is
                closed.
        """
        if self._closed_reason is not None:
            raise RpcConnectionError(self._closed_reason)
        connection = self._connections.get(process_name)
        if connection is not None:
            return connection
        task = self._connecting.get(process_name)
        if task is None:
            task = self._tasks.create_awaited(
                self._connect(process_name), f"connect to {process_name}"
            )
            self._connecting[process_name] = task
        await asyncio.wait({task})  # others wait for it too
        if task.cancelled():  # the task was cancelled, not the caller
            raise RpcConnectionError(self._closed_reason or f"connecting to {process_name} ended")
        return task.result()

    async def _connect(self, process_name: str) -> ClientConnection:
        try:
            opened = await self._open_transport(process_name, None)
        finally:
            del self._connecting[process_name]
        known = self._connections.get(process_name)
        if known is not None and known.incarnation == opened.incarnation:
            opened.transport.close()  # a reopened connection was faster
            return known
        connection = self._new_connection(process_name, opened.incarnation, opened.transport)
        connection.where = opened.where
        self.keep(connection)
        opened.transport.attach(connection)
        if not connection.is_lost:
            self._on_open(connection)
        return connection

    def keep(self, connection: ClientConnection) -> None:
        """Use *connection* for all calls to its process from now on."""
        name = connection.process_name

        def forget() -> None:
            self._idle_looks.pop(connection, None)
            if self._connections.get(name) is connection:
                del self._connections[name]

        self._connections[name] = self._latest[name] = connection
        connection.on_lost(forget)
        self._look_later()

    def successor_of(self, lost: ClientConnection) -> ClientConnection:
        """Return the connection to the same incarnation that replaces a lost connection.

        The returned connection may still be opening; if opening fails, it counts as lost. It also
        reports the ends of the endpoints that the lost connection had resolved.

        Raises RecipientUnreachableError: the process is dead or was just out of reach, or the pool
        is closed.
        """
        if self._closed_reason is not None:
            raise RecipientUnreachableError(self._closed_reason)
        latest = self._latest.get(lost.process_name, lost)
        if latest.incarnation != lost.incarnation:
            raise RecipientUnreachableError(
                f"{lost.lost_reason}; another process named {lost.process_name} has come since"
            )
        if latest.is_lost:
            may_live = latest.where is not None and not latest.peer_died
            if not may_live or self._loop.time() < latest.retry_at:
                raise RecipientUnreachableError(str(latest.lost_reason))
            latest = self._reopen(latest)
        latest.follow(lost.followed)
        return latest

    def _reopen(self, lost: ClientConnection) -> ClientConnection:
        opening = OpeningTransport(self._loop)
        connection = self._new_connection(lost.process_name, lost.incarnation, opening)
        connection.where = lost.where
        connection.failed_openings = lost.failed_openings
        connection.replaces_lost = lost.replaces_lost or str(lost.lost_reason)
        self.keep(connection)
        self._tasks.create(
            self._open_again(connection, opening, connection.replaces_lost),
            f"connect to {lost.process_name} again",
        )
        return connection

    async def _open_again(
        self, connection: ClientConnection, opening: OpeningTransport, lost_reason: str
    ) -> None:
        reason = lost_reason
        try:
            opened = await self._open_transport(connection.process_name, connection.where)
        except RpcConnectionError as error:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**connection.failed_openings)
            connection.failed_openings += 1
            connection.retry_at = self._loop.time() + self._jittered(pause)
            reason = f"{lost_reason}; {error}"
        else:
            reason = ""
            connection.failed_openings = 0
            connection.replaces_lost = None
            connection.use(opened.transport, opening.take())
            if not connection.is_lost:
                self._on_open(connection)
        finally:
            if reason:
                connection.break_off(reason)

    # --- idle connections ---------------------------------------------------------------------

    def _look_later(self) -> None:
        if (
            self._looker is None
            and self._idle_timeout is not None
            and self._closed_reason is None
            and self._connections
        ):
            delay = self._idle_timeout / IDLE_LOOKS
            self._looker = outside_of_handler(self._loop.call_later, delay, self._look)

    def _look(self) -> None:
        self._looker = None
        looks, self._idle_looks = self._idle_looks, {}
        for connection in self.all():
            if connection.where is None or connection.is_needed:
                continue  # it leads to this process, or is in use
            requests, idle = looks.get(connection, (-1, 0))
            idle = idle + 1 if connection.requests == requests else 0
            if idle < IDLE_LOOKS:
                self._idle_looks[connection] = connection.requests, idle
            else:
                name = f"close the connection to {connection.process_name}"
                self._tasks.create(self._close_idle(connection), name)
        self._look_later()

    async def _close_idle(self, connection: ClientConnection) -> None:
        requests = connection.requests
        try:
            await connection.ping(_PING_TIMEOUT)
        except RpcError:
            return  # it is lost, or the other side is still busy with requests
        if connection.requests == requests + 1 and not connection.is_needed:
            connection.close("the connection was closed because nobody used it")
