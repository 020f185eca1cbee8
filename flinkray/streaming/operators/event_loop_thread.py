"""A thread with an event loop, beside the thread of a task."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that coroutines may take to end after they were cancelled."""

_LOOK = 0.1
"""Longest seconds until an interrupt reaches a thread that waits for the event loop."""


class EventLoopThread:
    """Runs an event loop in a daemon thread, which never waits for other threads.
    *on_failure*: called in this thread with an exception that stops the event loop, such as
    ``SystemExit`` in one of the user's tasks."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self.loop = asyncio.new_event_loop()
        self._on_failure = on_failure
        self._is_ending = False
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, work: Callable[..., None], *arguments: Any) -> None:
        """Schedule *work* in the event loop's thread and return at once."""
        self.loop.call_soon_threadsafe(work, *arguments)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call *function* in the event loop's thread and wait for its result.
        A coroutine that *function* returns is awaited. An exception of *function* or of the
        coroutine is raised in the calling thread."""
        outcome: list[Any] = []
        failure: list[BaseException] = []
        done = threading.Event()

        async def run() -> None:
            try:
                result = function(*arguments)
                outcome.append(await result if isinstance(result, Awaitable) else result)
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                failure.append(error)
            finally:
                done.set()

        tasks: list[asyncio.Task[None]] = []  # an event loop does not keep them itself
        self.do(lambda: tasks.append(self.loop.create_task(run())))
        _wait_for(done)
        if failure:
            raise failure[0]
        return outcome[0]

    def end(self, close: Callable[[], Any]) -> None:
        """Cancel all coroutines, wait for them, call *close* in the thread, and end the thread."""
        try:
            self.call(self._cancel_all)
            self.call(close)
            self.call(self.loop.shutdown_asyncgens)
        finally:
            self._is_ending = True
            self.do(self.loop.stop)
        _wait_for(self._ended)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, stubborn = await asyncio.wait(tasks, timeout=PATIENCE)
        for task in stubborn:
            log.warning("a coroutine does not end after it was cancelled, and is left: %r", task)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_ending:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - the task's thread raises it again
                self._on_failure(error)
        self.loop.close()
        self._ended.set()


def _wait_for(event: threading.Event) -> None:
    while not event.wait(_LOOK):
        """Nothing to do: the loop only lets an interrupt (KeyboardInterrupt) through."""
