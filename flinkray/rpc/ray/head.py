"""Ray's head (GCS), as a process asks it.

The head knows of all nodes, actors and placement groups, and of where the processes of a cluster
listen.  It may be away for a while and come back (docs/clusters.md).  What runs goes on meanwhile;
what has to be found, started or ended waits for it.  Nothing dies because the head is away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

import ray

logger = logging.getLogger(__name__)

T = TypeVar("T")

ASK_AGAIN = 1.0
"""Seconds between two questions to a head that does not answer."""

TELL_AFTER = 5.0
"""Seconds without an answer after which the head counts as away, and that is told; told again after
twice as long, and so on."""

_THREADS = 8

_HEAD = "node:__internal_head__"
"""A resource that only Ray's head has."""


def head_node_id() -> str | None:
    """Hex id of Ray's head node, or None when Ray does not say.  Blocks."""
    for node in ray.nodes():
        if node["Alive"] and _HEAD in node["Resources"]:
            return str(node["NodeID"])
    return None


class RayHead:
    """Questions to Ray's head, from one process, off its event loop.

    Ray's own calls wait for a head that is away; Ray ends the process after a minute of that
    (``RAY_gcs_rpc_server_reconnect_timeout_s``).  They have threads of their own, so that user work
    is never behind them.
    """

    def __init__(
        self,
        process_name: str,
        executor: Executor | None = None,
        is_in_ray: Callable[[], bool] = ray.is_initialized,
    ) -> None:
        """*executor*: for the questions; with threads of its own by default.  *is_in_ray*: whether
        this process has not left Ray."""
        self._loop = asyncio.get_running_loop()
        self._epoch = time.time() - self._loop.time()
        self._executor = executor or ThreadPoolExecutor(
            _THREADS, thread_name_prefix=f"ray-{process_name}"
        )
        self._is_in_ray = is_in_ray
        self._unanswered: dict[Future[Any], float] = {}
        """Since when each question waits, oldest first."""
        self._failing: dict[object, float] = {}
        """Since when each of those who ask patiently is answered with errors of Ray's, the first
        one first."""
        self._away_since: float | None = None
        """Set: that it is away was told."""
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def outage(self) -> str | None:
        """For people: that the head does not answer, and since when; None: it does."""
        silence = self._silence()
        if silence < TELL_AFTER:
            return None
        since = datetime.fromtimestamp(self._epoch + self._loop.time() - silence).astimezone()
        return f"Ray's head has not answered since {since.isoformat(timespec='seconds')}"

    async def ask(self, fn: Callable[..., T], *args: object) -> T:
        """Run a call of Ray's that may wait for the head; it goes on when nobody waits any more."""
        question = self._executor.submit(fn, *args)
        self._unanswered[question] = self._loop.time()
        question.add_done_callback(self._answered_in_thread)
        self._look_later(TELL_AFTER)
        return await asyncio.wrap_future(question)

    async def ask_patiently(self, fn: Callable[..., T], *args: object) -> T:
        """A call that does no harm when it is made twice, until the head has answered.

        One that was under way when the head went, or came while it was starting, may fail.

        Raises:
            RayError: this process has left Ray.
        """
        asker = object()
        try:
            while True:
                try:
                    answer = await self.ask(fn, *args)
                except ray.exceptions.RayError as error:
                    if not self._is_in_ray():
                        raise
                    if not self._failing:
                        logger.warning("Ray's head does not answer, asking it again: %s", error)
                    self._failing.setdefault(asker, self._loop.time())
                    self._look_later(TELL_AFTER)
                    await asyncio.sleep(ASK_AGAIN)
                else:
                    self._failing.clear()
                    self._tell_if_back()
                    return answer
        finally:
            self._failing.pop(asker, None)  # who gives up does not know how it went on

    def soon(self, fn: Callable[..., object], *args: object) -> None:
        """Run a call of Ray's whose result nobody wants."""
        self._executor.submit(fn, *args)

    async def close(self, timeout: float) -> None:
        """Return when the calls under way have ended, after *timeout* seconds at the latest.

        One that outlived ``ray.shutdown`` would make Ray end this process; but a head that is gone
        must not hold the end up for minutes.
        """
        if self._next_look is not None:
            self._next_look.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)
        drained = self._loop.run_in_executor(None, self._executor.shutdown)
        await asyncio.wait([drained], timeout=timeout)

    # --- telling that it is away --------------------------------------------------------------

    def _silence(self) -> float:
        """Seconds for which the oldest question waits, or is answered with errors."""
        oldest = [next(iter(of.values())) for of in (self._unanswered, self._failing) if of]
        return self._loop.time() - min(oldest) if oldest else 0.0

    def _answered_in_thread(self, question: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(self._answered, question)

    def _answered(self, question: Future[Any]) -> None:
        del self._unanswered[question]
        if question.cancelled() or isinstance(question.exception(), ray.exceptions.RayError):
            return  # no answer of the head
        self._tell_if_back()

    def _tell_if_back(self) -> None:
        if self._away_since is not None and self._silence() < TELL_AFTER:
            away, self._away_since = self._loop.time() - self._away_since, None
            logger.warning("Ray's head answers again, after %.0f s", away)

    def _look_later(self, delay: float) -> None:
        if self._next_look is None:
            self._next_look = self._loop.call_later(delay, self._look)

    def _look(self) -> None:
        self._next_look = None
        silence = self._silence()
        if silence < TELL_AFTER:
            if silence:
                self._look_later(TELL_AFTER - silence)
            return
        if self._away_since is None:
            self._away_since = self._loop.time() - silence
        logger.warning(
            "Ray's head has not answered for %.0f s: what runs goes on, and what is to be found, "
            "started or ended waits for it (see 'When the head fails' in docs/clusters.md)",
            silence,
        )
        self._look_later(silence)
