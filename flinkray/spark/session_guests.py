"""Manages the guests of a Spark session that jobs share, and cleans up when a guest leaves.

A guest is an attempt of another job's stage that runs in the session.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from flinkray.rpc import RpcEndpoint, RpcService, TerminationWatch
from flinkray.spark.gateway import (
    SPARK_SESSION_ENDPOINT,
    SparkSessionAccess,
    SparkSessionGateway,
    SparkSessionGuest,
    SparkStageDescriptor,
)
from flinkray.spark.jvm import Jvm
from flinkray.spark.session_requests import SparkSessionEndedError, thread_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

EXPECTED = 60.0
"""Least seconds that a session waits for a guest that has asked whether it is open."""

_LOOK_INTERVAL = 0.25
_SEE_OFF_INTERVAL = 0.05
"""Seconds between two checks whether a guest whose successor waits has left."""
PATIENCE = 300.0
"""Most seconds that the successor of a leaving guest waits."""


@dataclass
class GuestBook:
    """Knows which guests are present, and decides when the session has waited long enough for
    others. Times are monotonic seconds."""

    idle_timeout: float
    present: set[str] = field(default_factory=set)
    _open_until: float = 0.0

    def expect(self, now: float) -> None:
        """Keep the session open until at least ``EXPECTED`` seconds after *now*, because a guest
        may come."""
        self._open_until = max(self._open_until, now + EXPECTED)

    def come(self, guest: str) -> None:
        self.present.add(guest)

    def leave(self, guest: str, now: float) -> bool:
        """Remove a guest; return whether it was present."""
        if guest not in self.present:
            return False
        self.present.remove(guest)
        self._open_until = max(self._open_until, now + self.idle_timeout)
        return True

    def is_over(self, now: float) -> bool:
        """Return whether no guest is present and the session has waited long enough."""
        return not self.present and now >= self._open_until


class Stopping(Protocol):
    """Interface to an event that tells to stop, such as :class:`threading.Event`."""

    def wait(self, timeout: float) -> bool: ...


class OpenSession(Protocol):
    """Interface to a session, for :class:`SessionGuests`."""

    def access(self, tag: str) -> SparkSessionAccess:
        """Return the data with which a guest connects. *tag*: the tag that the guest's Spark jobs
        will carry."""

    def cancel(self, tag: str) -> None:
        """Cancel the Spark jobs that carry the tag."""

    def works_for(self, tag: str) -> bool:
        """Return whether the session still works for the guest with the tag *tag*. This may last
        after :meth:`cancel`: a command of the guest may begin several Spark jobs, and cleans up
        when one of them was cancelled."""

    def forget_cached(self) -> None:
        """Remove all cached data of all guests."""


def end_process(guest: SparkSessionGuest) -> None:
    """Kill the process of a guest whose stage has a newer attempt: it may only be paused, and would
    disturb the newer attempt when it continues."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(guest.pid)
        if process.create_time() == guest.started:
            process.kill()


class SessionGuests:
    """Attaches guests to one session and detaches them, and cancels their work when they leave.
    Methods may be called from several threads."""

    def __init__(
        self,
        idle_timeout: float,
        monotonic: Callable[[], float] = time.monotonic,
        end: Callable[[SparkSessionGuest], None] = end_process,
    ) -> None:
        """Create the guests of a session that is not open yet. *idle_timeout*: seconds without
        guests after which the session ends. *end*: ends the process of a guest after a later
        attempt of the guest's stage has come."""
        self._end = end
        self._present: dict[str, SparkSessionGuest] = {}
        self._leaving: dict[str, SparkSessionGuest] = {}
        """Leaving guests for which work may remain to be done."""
        self._waiting: dict[str, SparkSessionGuest] = {}
        """Guests that come when no work for earlier attempts is left, by their stages."""
        self.opened: Future[None] = Future()
        """Done when guests may come; fails if none may come (any more)."""
        self._lock = threading.Lock()
        self._book = GuestBook(idle_timeout)
        self._monotonic = monotonic
        self._session: OpenSession | None = None

    def hold(self, session: OpenSession, stopping: Stopping) -> None:
        """Allow guests to attach to *session*. Returns when *stopping* is set, or when no guest was
        attached for long enough."""
        with self._lock:
            self._session = session
            self._book.expect(self._monotonic())
        with suppress(InvalidStateError):  # closed in the meantime
            self.opened.set_result(None)
        while not stopping.wait(_LOOK_INTERVAL):
            if self.is_over():
                return

    def is_over(self) -> bool:
        """End the session if it has waited long enough for guests; return whether it has ended.
        From then on no guest may come."""
        with self._lock:
            if self._session is None or not self._book.is_over(self._monotonic()):
                return self._session is None
            self._session = None
            return True

    def close(self) -> None:
        """Refuse all guests from now on."""
        with self._lock:
            self._session = None
        with suppress(InvalidStateError):
            self.opened.set_exception(SparkSessionEndedError("the Spark session has ended"))

    def expect(self) -> None:
        """Keep the session open for some time, because a guest is about to come.

        Raises:
            SparkSessionEndedError: the session is ending.
        """
        with self._lock:
            self._of_open()
            self._book.expect(self._monotonic())

    def announce(self, guest: SparkSessionGuest) -> None:
        """Announce a guest, which must be done before :meth:`come`. The announcement of an earlier
        attempt of the guest's stage is withdrawn."""
        with self._lock:
            self._waiting[guest.stage] = guest

    def give_up(self, guest: SparkSessionGuest) -> None:
        """Withdraw the announcement of a guest."""
        with self._lock:
            if self._waiting.get(guest.stage) is guest:
                del self._waiting[guest.stage]

    def come(self, guest: SparkSessionGuest) -> SparkSessionAccess | None:
        """Attach an announced guest and return its access to the session. None: Spark still works
        for an earlier attempt of the guest's stage, so the caller must try again later.

        Raises:
            SparkSessionEndedError: the session is ending, or another attempt of the stage was
                announced.
        """
        with self._lock:
            session = self._of_open()
            self._book.expect(self._monotonic())  # the session waits together with the guest
            if self._waiting.get(guest.stage) is not guest:
                raise SparkSessionEndedError(f"{guest.process} was overtaken by another attempt")
            known = (*self._present.values(), *self._leaving.values())
            earlier = [one for one in known if one.stage == guest.stage]
            if not earlier:
                access = session.access(_tag(guest.process))
                self._book.come(guest.process)
                self._present[guest.process] = guest
                log.info("%s is a guest of the Spark session", guest.process)
                return access
        for one in earlier:
            self._end(one)
            self.leave(one.process)
        self.see_off()
        return None

    def earlier(self, guest: SparkSessionGuest) -> str:
        """Return the names of earlier attempts of the guest's stage for which Spark still works,
        separated by commas; "" if there are none. The text is for people."""
        with self._lock:
            return ", ".join(
                one.process for one in self._leaving.values() if one.stage == guest.stage
            )

    def leave(self, process: str) -> None:
        """Detach a guest, and cancel its Spark jobs. When the last guest leaves, all cached data is
        removed, because Spark does not say which guest has cached it."""
        with self._lock:
            if not self._book.leave(process, self._monotonic()):
                return
            self._leaving[process] = self._present.pop(process)
            session, is_last = self._session, not self._book.present
        if session is None:
            return
        with _noting_silence(process):
            session.cancel(_tag(process))
            if is_last:
                session.forget_cached()

    @property
    def are_leaving(self) -> bool:
        """Return whether Spark may still work for a guest that has left."""
        return bool(self._leaving)

    def see_off(self) -> None:
        """Forget the guests that have left and for which Spark does not work any more; cancel the
        work for the others again. Waits for the JVM, without delaying other callers."""
        with self._lock:
            session, leaving = self._session, tuple(self._leaving)
        for process in leaving:
            with _noting_silence(process):
                if session is not None and session.works_for(_tag(process)):
                    session.cancel(_tag(process))
                    continue
                with self._lock:
                    self._leaving.pop(process, None)

    def _of_open(self) -> OpenSession:
        if self._session is None:
            raise SparkSessionEndedError("the Spark session has ended")
        return self._session


@contextmanager
def _noting_silence(process: str) -> Iterator[None]:
    """Context manager: log an error of a JVM that does not answer, instead of raising it. The
    session of such a JVM ends anyway."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        yield
    except (Py4JError, OSError) as error:
        log.warning("the Spark session does not answer as %s leaves: %s", process, error)


class SparkSessionDesk(RpcEndpoint, SparkSessionGateway):
    """Endpoint through which guests attach and leave, in the process of the session's driver."""

    def __init__(self, rpc_service: RpcService, guests: SessionGuests, node_id: str) -> None:
        super().__init__(rpc_service, SPARK_SESSION_ENDPOINT)
        self._guests = guests
        self._node_id = node_id
        self._watches: dict[str, TerminationWatch] = {}

    async def on_start(self) -> None:
        self.create_task(self._see_off(), "see guests off")

    async def on_stop(self) -> None:
        for watch in self._watches.values():
            watch.cancel()

    async def _see_off(self) -> None:
        while True:
            await self.rpc_service.pause(_LOOK_INTERVAL)
            if self._guests.are_leaving:
                await self.rpc_service.run_blocking(self._guests.see_off)

    async def await_open(self) -> str:
        await asyncio.shield(asyncio.wrap_future(self._guests.opened))
        # This may wait for the JVM with a leaving guest; heartbeats are answered in the meantime.
        await self.rpc_service.run_blocking(self._guests.expect)
        return self._node_id

    async def attach(self, guest: SparkSessionGuest) -> SparkSessionAccess:
        self._guests.announce(guest)
        try:
            access = await self._let_in(guest)
        finally:
            self._guests.give_up(guest)
        self._watches[guest.process] = self.rpc_service.watch_process(
            guest.process, lambda reason: self._has_ended(guest.process)
        )
        return access

    async def _let_in(self, guest: SparkSessionGuest) -> SparkSessionAccess:
        service = self.rpc_service
        give_up_at = service.clock.monotonic() + PATIENCE
        while service.clock.monotonic() < give_up_at:
            access = await service.run_blocking(self._guests.come, guest)
            if access is not None:
                return access
            await service.pause(_SEE_OFF_INTERVAL)
        raise SparkSessionEndedError(
            f"the Spark session has worked for {PATIENCE:g} s for an earlier attempt "
            f"({self._guests.earlier(guest)}), which was cancelled: if that does not end, cancel "
            "the session's job"
        )

    async def leave(self, process: str) -> None:
        watch = self._watches.pop(process, None)
        if watch is not None:
            watch.cancel()
        await self.rpc_service.run_blocking(self._guests.leave, process)

    def _has_ended(self, process: str) -> None:
        self.create_task(self.leave(process), name=f"{process} has ended")


def _tag(guest: str) -> str:
    return f"flinkray-{guest}"


class HeldSparkSession:
    """The session that a stage keeps open for guests; implements :class:`OpenSession`."""

    def __init__(self, stage: SparkStageDescriptor, session: SparkSession, jvm: Jvm) -> None:
        """Create the view of *session*, which the function of *stage* keeps open. *jvm*: the
        driver's JVM."""
        self._stage = stage
        self._session = session
        self._jvm = jvm
        self._context: Any = session.sparkContext._jsc

    def access(self, tag: str) -> SparkSessionAccess:
        stage = self._stage
        return SparkSessionAccess(
            port=int(os.environ["PYSPARK_GATEWAY_PORT"]),
            secret=os.environ["PYSPARK_GATEWAY_SECRET"],
            jvm_pid=self._jvm.pid,
            log_file=str(self._jvm.log_file),
            executors=stage.parallelism,
            slot_profile=stage.slot_profile,
            configuration=stage.configuration,
            tag=tag,
        )

    def cancel(self, tag: str) -> None:
        self._context.cancelJobsWithTag(tag)

    def works_for(self, tag: str) -> bool:
        gateway: Any = self._session.sparkContext._gateway
        threads: str = gateway.jvm.java.lang.Thread.getAllStackTraces().keySet().toString()
        return thread_name(tag) in threads

    def forget_cached(self) -> None:
        session: Any = self._session
        session._jsparkSession.sharedState().cacheManager().clearCache()
        for cached in self._context.getPersistentRDDs().values():
            cached.unpersist(False)
