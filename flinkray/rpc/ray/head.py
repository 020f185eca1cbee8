"""Calls to Ray's head (GCS) from one process.

The head knows all nodes, actors and placement groups, and where the processes of a cluster listen.
While it is away (docs/clusters.md), running processes go on; whatever has to be found, started or
ended waits for it.
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

from flinkray.core.errors import RpcError

logger = logging.getLogger(__name__)

T = TypeVar("T")

ASK_AGAIN = 1.0
"""Seconds between two questions to a head that does not answer."""

TELL_AFTER = 5.0
"""Seconds without an answer until the head counts as away, which is logged.

It is logged again after twice as long, and so on.
"""

_THREADS = 8

_HEAD = "node:__internal_head__"
"""A resource that only the node of Ray's head has."""


class ProcessEndsError(RpcError):
    """Raised when this process ends, and asks Ray nothing more."""


def head_node_id() -> str | None:
    """Return the hex id of Ray's head node, or None if Ray does not report it. Blocks."""
    for node in ray.nodes():
        if node["Alive"] and _HEAD in node["Resources"]:
            return str(node["NodeID"])
    return None


class RayHead:
    """Asks Ray's head questions for one process, off its event loop.

    Ray's own calls wait for a head that is away; Ray ends the process after a minute of waiting
    (``RAY_gcs_rpc_server_reconnect_timeout_s``). The calls run in threads of their own, so that
    they never delay user work.
    """

    def __init__(
        self,
        process_name: str,
        executor: Executor | None = None,
        is_in_ray: Callable[[], bool] = ray.is_initialized,
    ) -> None:
        """Create the object that asks Ray's head.
        *executor* runs the questions. By default they run in threads of this object.

        *is_in_ray* returns whether this process is still connected to Ray.
        """
        self._loop = asyncio.get_running_loop()
        self._epoch = time.time() - self._loop.time()
        self._executor = executor or ThreadPoolExecutor(
            _THREADS, thread_name_prefix=f"ray-{process_name}"
        )
        self._is_in_ray = is_in_ray
        self._unanswered: dict[Future[Any], float] = {}
        """The loop's time at which each unanswered question was asked, oldest first."""
        self._failing: dict[object, float] = {}
        """The time since when each :meth:`ask_patiently` has got errors, oldest first."""
        self._away_since: float | None = None
        """The loop's time at which the head stopped answering; None: no outage was logged."""
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def outage(self) -> str | None:
        """A text for users, which says since when the head does not answer; None: it answers."""
        silence = self._silence()
        if silence < TELL_AFTER:
            return None
        since = datetime.fromtimestamp(self._epoch + self._loop.time() - silence).astimezone()
        return f"Ray's head has not answered since {since.isoformat(timespec='seconds')}"

    async def ask(self, fn: Callable[..., T], *args: object) -> T:
        """Run a Ray call that may wait for the head, and return its result.

        If the caller is cancelled, the call continues in its thread.

        Raises:
            ProcessEndsError: this object is closed, or the interpreter ends.
        """
        question = self._submit(fn, *args)
        self._unanswered[question] = self._loop.time()
        question.add_done_callback(self._answered_in_thread)
        self._look_later(TELL_AFTER)
        return await asyncio.wrap_future(question)

    async def ask_patiently(self, fn: Callable[..., T], *args: object) -> T:
        """Repeat a Ray call until the head has answered; making the call twice must do no harm.

        A call that was under way when the head went away, or that came while it was starting, may
        fail.

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
            self._failing.pop(asker, None)  # a caller that gives up does not learn the outcome

    def soon(self, fn: Callable[..., object], *args: object) -> None:
        """Run a Ray call in the background, and ignore its result and errors."""
        with suppress(ProcessEndsError):
            self._submit(fn, *args)

    def _submit(self, fn: Callable[..., T], *args: object) -> Future[T]:
        try:
            return self._executor.submit(fn, *args)
        except RuntimeError as error:  # at the interpreter's end threads stop before the loop does
            raise ProcessEndsError("this process ends, and asks Ray nothing more") from error

    async def close(self, timeout: float) -> None:
        """Wait until the calls under way have ended, at most *timeout* seconds.

        A call that outlived ``ray.shutdown`` would make Ray end this process; but a head that is
        gone must not delay the end for minutes.
        """
        if self._next_look is not None:
            self._next_look.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)
        drained = self._loop.run_in_executor(None, self._executor.shutdown)
        await asyncio.wait([drained], timeout=timeout)

    # --- telling that it is away --------------------------------------------------------------

    def _silence(self) -> float:
        oldest = [next(iter(of.values())) for of in (self._unanswered, self._failing) if of]
        return self._loop.time() - min(oldest) if oldest else 0.0

    def _answered_in_thread(self, question: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
            self._loop.call_soon_threadsafe(self._answered, question)

    def _answered(self, question: Future[Any]) -> None:
        del self._unanswered[question]
        if question.cancelled() or isinstance(question.exception(), ray.exceptions.RayError):
            return  # not an answer of the head
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
