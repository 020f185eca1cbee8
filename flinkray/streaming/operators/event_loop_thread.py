"""A thread with an event loop, in which an operator's subtask runs coroutines."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that coroutines have for ending after they were cancelled."""

_LOOK = 0.1
"""Seconds between two moments at which whoever waits for the thread can be interrupted."""


class EventLoopThread:
    """See the module.  Others wait for it, and not it for others.

    Args:
        on_failure: told, in the thread, of what ends an event loop: ``SystemExit`` in a task of the
            user's own.
    """

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self.loop = asyncio.new_event_loop()
        self._on_failure = on_failure
        self._is_ending = False
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, work: Callable[..., None], *arguments: Any) -> None:
        """Have it done there soon."""
        self.loop.call_soon_threadsafe(work, *arguments)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function, or the coroutine that it returns, gives there."""
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
        """Cancel all coroutines, wait for them, call *close* there, and end the thread."""
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
        """An interrupt comes through here."""
