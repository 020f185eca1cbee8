"""Holds a session with ZooKeeper, and connects kazoo's threads with the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry, RetryFailedError

from flinkray.core.errors import FlinkRayError
from flinkray.rpc.calls.peer_deadlines import PatientDeadlines
from flinkray.rpc.time_limit import within

T = TypeVar("T")

AWAY = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    OperationTimeoutError,
    KazooTimeoutError,
)
"""Errors without an answer from the server: the outcome of the request is unknown."""

_ATTEMPTS = 3
"""Smallest number of attempts to connect within a session timeout.

A server that is just starting may accept a connection and never answer; kazoo waits for the answer
for the session timeout, divided by the number of servers that it knows.
"""


class ZooKeeperError(FlinkRayError):
    """ZooKeeper does not answer, or refuses to work; the text gives the cause and the remedy."""


class ZooKeeperClient:
    """Holds a session with ZooKeeper; an expired session is replaced by a new one.

    Args:
        hosts: servers, as ``host:port,host:port``.
        root: path of the znode that holds all znodes of the client.
        session_timeout: seconds without contact after which the server ends a session, and with it
            all leaderships; the server may choose another value within its own limits.
        tolerance: deadlines that do not count time for which this process was paused. With them, a
            broken connection counts as lost only if it is not back within *session_timeout*, or if
            the session has ended. None: a broken connection counts as lost at once.
    """

    def __init__(
        self,
        hosts: str,
        root: str,
        session_timeout: float,
        *,
        tolerance: PatientDeadlines | None = None,
    ) -> None:
        self.root = "/" + root.strip("/")
        self.hosts = hosts
        self._patience = session_timeout
        self._tolerance = tolerance
        self._kazoo = KazooClient(
            _so_often(hosts, _ATTEMPTS),
            timeout=session_timeout,
            connection_retry=KazooRetry(max_tries=-1, max_delay=1.0),
            command_retry=KazooRetry(max_tries=0),
        )
        self._lock = threading.Lock()
        self._epoch = 0
        self._connected = False
        self._away_since = time.time()
        """The time in epoch seconds since when a connection is missing."""
        self._listeners: list[Callable[[bool], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kazoo.add_listener(self._state_changed)

    # --- life cycle

    def start(self) -> None:
        """Begin to connect, without waiting for a connection. Call this on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._away_since = time.time()
        self._kazoo.start_async()

    async def connect(self, timeout: float) -> None:
        """Begin to connect and wait for the session, at most *timeout* seconds.

        Raises:
            ZooKeeperError: no server answers.
        """
        self.start()
        try:
            await within(timeout, self.until_connected())
        except asyncio.TimeoutError:
            await self.close()
            raise ZooKeeperError(
                f"no ZooKeeper server answers at {self.hosts} within {timeout:g} s: start one, or "
                "correct high-availability.zookeeper.quorum"
            ) from None

    async def until_connected(self) -> None:
        """Wait until there is a connection."""
        connected = asyncio.Event()

        def changed(is_connected: bool) -> None:
            if is_connected:
                self.to_loop(connected.set)

        self.add_listener(changed)
        try:
            if not self._connected:
                await connected.wait()
        finally:
            self.remove_listener(changed)

    async def close(self) -> None:
        """End the session; its ephemeral znodes are removed at once."""
        with self._lock:
            self._listeners.clear()

        def stop() -> None:
            self._kazoo.stop()
            self._kazoo.close()

        await asyncio.get_running_loop().run_in_executor(None, stop)

    # --- the connection

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def outage(self) -> str | None:
        """Text for users that says since when no server answers, and the remedy. None if one
        answers."""
        if self._connected:
            return None
        since = datetime.fromtimestamp(self._away_since).astimezone()
        return (
            f"ZooKeeper, which says who leads, has not answered at {self.hosts} since "
            f"{since.isoformat(timespec='seconds')}: more than half of its servers must run, and "
            "be in reach from here"
        )

    @property
    def session(self) -> int:
        """The id of the session, as in ``ephemeralOwner`` of znodes; -1: no session yet."""
        client_id = self._kazoo.client_id
        return -1 if client_id is None else int(client_id[0])

    def add_listener(self, listener: Callable[[bool], None]) -> None:
        """Call *listener* with True when the connection is made, and with False when it is lost.
        Most calls come from a thread of kazoo; *listener* must not block. If breaks are tolerated,
        False comes late or not at all."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[bool], None]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def _state_changed(self, state: str) -> None:
        with self._lock:
            self._epoch += 1
            if self._connected:
                self._away_since = time.time()
            self._connected = state == KazooState.CONNECTED
            epoch = self._epoch
        tolerance = self._tolerance
        if state == KazooState.SUSPENDED and tolerance is not None:
            self.to_loop(lambda: self._give_up_later(tolerance, epoch))
        else:
            self._tell(state == KazooState.CONNECTED)

    def _give_up_later(self, tolerance: PatientDeadlines, epoch: int) -> None:
        """Report the connection as lost after the session timeout, unless its state changes before.
        Time for which this process was paused does not count: the connection may be back. Waiting
        is safe, because changes in an ended session are fenced."""

        def give_up() -> None:
            if self._epoch == epoch:
                self._tell(False)

        tolerance.call_after(self._patience, give_up)

    def _tell(self, is_connected: bool) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(is_connected)

    # --- work on znodes

    def path(self, *names: str) -> str:
        return "/".join((self.root, *names)).replace("//", "/")

    def to_loop(self, callback: Callable[[], None]) -> None:
        """Run *callback* on the event loop, from a thread of kazoo. Does nothing if the loop is
        closed."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    async def do(self, begin: Callable[[KazooClient], Any]) -> Any:
        """Run an ``…_async`` method of kazoo, which *begin* starts, and return its result. Raises a
        KazooException; one of :data:`AWAY` if the outcome is unknown."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(result: Any) -> None:
            def tell() -> None:
                if future.done():
                    return
                error = result.exception
                if error is None:
                    future.set_result(result.value)
                else:
                    future.set_exception(error)

            self.to_loop(tell)

        begin(self._kazoo).rawlink(settle)
        return await future

    def blocking(self, work: Callable[[KazooClient], T]) -> T:
        """Run *work* with kazoo's client in the calling thread, where it may block; return its
        result. Raises a KazooException; one of :data:`AWAY` if the outcome is unknown."""
        return work(self._kazoo)

    def ask(self, read: Callable[[KazooClient], T]) -> T:
        """Run *read*, which must change nothing, in the calling thread; waits for a connection.

        If the connection breaks, *read* is repeated until a session timeout has passed. Raises a
        KazooException of :data:`AWAY` if the connection is still broken then, or the client is
        closed.
        """
        patience = KazooRetry(
            max_tries=-1, delay=0.02, max_delay=0.5, ignore_expire=True, deadline=self._patience
        )
        try:
            answer: T = patience(read, self._kazoo)
        except RetryFailedError as error:
            raise ConnectionLoss from error
        return answer

    def explain(self, error: KazooException) -> Exception:
        """Return the error to report to users for an error of kazoo."""
        if isinstance(error, NoAuthError):
            return ZooKeeperError(
                f"ZooKeeper at {self.hosts} refuses access below {self.root}: its access control "
                "list must give this user create, read, write and delete"
            )
        return ZooKeeperError(f"ZooKeeper at {self.hosts} failed: {type(error).__name__} {error}")


def _so_often(hosts: str, least: int) -> str:
    """Return a host list of at least *least* servers, by repeating *hosts*, so that kazoo tries
    each server several times before it gives up."""
    return ",".join([hosts] * math.ceil(least / len(hosts.split(","))))


def check_transaction(results: list[Any]) -> None:
    """Raise the error of the operation that made a transaction fail, if it failed."""
    errors = [result for result in results if isinstance(result, KazooException)]
    for error in errors:
        if not isinstance(error, (RolledBackError, RuntimeInconsistency)):
            raise error
    if errors:
        raise errors[0]


log = logging.getLogger(__name__)

_PAUSE = 0.1
"""Seconds until work that failed because of the server is repeated, while connected."""


class Watching(ABC):
    """Calls :meth:`look` to read the znodes again whenever a watch or the connection reports a
    change. A missed change is noticed with the next one, and no change is handled twice."""

    def __init__(self, client: ZooKeeperClient, on_error: Callable[[Exception], None]) -> None:
        self.client = client
        self._on_error = on_error
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Call :meth:`look` now, and after each change."""
        self.client.add_listener(self._connection_changed)
        self._changed.set()
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stop; on return, no more work will be done. Can be called again."""
        self._closed = True
        self.client.remove_listener(self._connection_changed)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self, _event: object = None) -> None:
        """Request another :meth:`look`; callable from any thread. Can be passed to kazoo as a
        watch."""
        self.client.to_loop(self._changed.set)

    @abstractmethod
    async def look(self) -> None:
        """Read the current state, and act on it.

        Raises:
            KazooException: for :data:`AWAY`, this method is called again.
        """

    @abstractmethod
    def connection_changed(self, is_connected: bool) -> None:
        """Called in a thread of kazoo, before the next look, when the connection was made or
        lost."""

    def _connection_changed(self, is_connected: bool) -> None:
        self.connection_changed(is_connected)
        self.wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self._closed:
            self._on_error(error)

    async def _run(self) -> None:
        while not self._closed:
            await self._changed.wait()
            self._changed.clear()
            if not self.client.is_connected:
                continue  # the next connection wakes this task
            try:
                await self.look()
            except AWAY as error:
                log.info("ZooKeeper was away: %s; looking again", type(error).__name__)
                asyncio.get_running_loop().call_later(_PAUSE, self._changed.set)
            except KazooException as error:
                self._on_error(self.client.explain(error))
                return
