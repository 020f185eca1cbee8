"""The guests of a Spark session that jobs share: who they are, and what follows when one leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from flinkray.rpc import RpcEndpoint, RpcService, TerminationWatch
from flinkray.spark.gateway import (
    SPARK_SESSION_ENDPOINT,
    SparkSessionAccess,
    SparkSessionGateway,
    SparkStageDescriptor,
)
from flinkray.spark.jvm import Jvm
from flinkray.spark.shared_session import SparkSessionEndedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

EXPECTED = 60.0
"""Seconds for which a session waits for a guest that has asked whether it is open, at least."""

_LOOK_INTERVAL = 0.25


@dataclass
class GuestBook:
    """Who is there, and until when the session waits for others.  Times are monotonic seconds."""

    idle_timeout: float
    present: set[str] = field(default_factory=set)
    _open_until: float = 0.0

    def expect(self, now: float) -> None:
        """A guest will come, or the session has just been opened."""
        self._open_until = max(self._open_until, now + EXPECTED)

    def come(self, guest: str) -> None:
        self.present.add(guest)

    def leave(self, guest: str, now: float) -> bool:
        """Whether it was there."""
        if guest not in self.present:
            return False
        self.present.remove(guest)
        self._open_until = max(self._open_until, now + self.idle_timeout)
        return True

    def is_over(self, now: float) -> bool:
        """Whether the session has waited long enough."""
        return not self.present and now >= self._open_until


class Stopping(Protocol):
    """Of :class:`threading.Event`."""

    def wait(self, timeout: float) -> bool: ...


class OpenSession(Protocol):
    """A session as its guests need it."""

    def access(self, tag: str) -> SparkSessionAccess:
        """For a guest, whose Spark jobs carry the tag."""

    def cancel(self, tag: str) -> None:
        """The Spark jobs that carry it."""

    def forget_cached(self) -> None:
        """All that is cached, of whomever."""


class SessionGuests:
    """All of one session's; called from several threads."""

    def __init__(
        self, idle_timeout: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.opened: Future[None] = Future()
        """Done when guests may come; fails if none may (any more)."""
        self._lock = threading.Lock()
        self._book = GuestBook(idle_timeout)
        self._monotonic = monotonic
        self._session: OpenSession | None = None

    def hold(self, session: OpenSession, stopping: Stopping) -> None:
        """Keep the session open: returns when it has had no guests for long enough, or when it is
        to stop."""
        with self._lock:
            self._session = session
            self._book.expect(self._monotonic())
        with suppress(InvalidStateError):  # closed meanwhile
            self.opened.set_result(None)
        while not stopping.wait(_LOOK_INTERVAL):
            if self.is_over():
                return

    def is_over(self) -> bool:
        """Whether it has waited long enough; from then on nobody may come."""
        with self._lock:
            if self._session is None or not self._book.is_over(self._monotonic()):
                return self._session is None
            self._session = None
            return True

    def close(self) -> None:
        """Nobody may come (any more)."""
        with self._lock:
            self._session = None
        with suppress(InvalidStateError):
            self.opened.set_exception(SparkSessionEndedError("the Spark session has ended"))

    def expect(self) -> None:
        """
        Raises:
            SparkSessionEndedError: it is ending.
        """
        with self._lock:
            self._of_open()
            self._book.expect(self._monotonic())

    def come(self, guest: str) -> SparkSessionAccess:
        """
        Raises:
            SparkSessionEndedError: it is ending.
        """
        with self._lock:
            access = self._of_open().access(_tag(guest))
            self._book.come(guest)
            log.info("%s is a guest of the Spark session", guest)
            return access

    def leave(self, guest: str) -> None:
        """Its Spark jobs are cancelled; what is cached is forgotten when it was the last one,
        because Spark does not say who has cached what."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        with self._lock:
            if not self._book.leave(guest, self._monotonic()) or self._session is None:
                return
            try:
                self._session.cancel(_tag(guest))
                if not self._book.present:
                    self._session.forget_cached()
            except (Py4JError, OSError) as error:  # which ends the session
                log.warning("the Spark session does not answer as %s leaves: %s", guest, error)

    def _of_open(self) -> OpenSession:
        if self._session is None:
            raise SparkSessionEndedError("the Spark session has ended")
        return self._session


class SparkSessionDesk(RpcEndpoint, SparkSessionGateway):
    """Where guests come and go, in the process of the session's driver."""

    def __init__(self, rpc_service: RpcService, guests: SessionGuests, node_id: str) -> None:
        super().__init__(rpc_service, SPARK_SESSION_ENDPOINT)
        self._guests = guests
        self._node_id = node_id
        self._watches: dict[str, TerminationWatch] = {}

    async def on_stop(self) -> None:
        for watch in self._watches.values():
            watch.cancel()

    async def await_open(self) -> str:
        await asyncio.shield(asyncio.wrap_future(self._guests.opened))
        # It may wait for the JVM with a guest that leaves; heartbeats are answered meanwhile.
        await self.rpc_service.run_blocking(self._guests.expect)
        return self._node_id

    async def attach(self, process: str) -> SparkSessionAccess:
        access = await self.rpc_service.run_blocking(self._guests.come, process)
        self._watches[process] = self.rpc_service.watch_process(
            process, lambda reason: self._has_ended(process)
        )
        return access

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
    """See :class:`OpenSession`."""

    def __init__(self, stage: SparkStageDescriptor, session: SparkSession, jvm: Jvm) -> None:
        """*stage*: which holds it."""
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

    def forget_cached(self) -> None:
        session: Any = self._session
        session._jsparkSession.sharedState().cacheManager().clearCache()
        for cached in self._context.getPersistentRDDs().values():
            cached.unpersist(False)
