"""One source in the coordinator's process: its enumerator runs in threads, one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import cloudpickle

from flinkray.actors.gateways.stream_coordinator import ReaderProgress
from flinkray.actors.shared.user_calls import call_user_code
from flinkray.core.errors import FlinkRayError
from flinkray.rpc import RpcEndpoint, TimerHandle
from flinkray.streaming.errors import OperatorError, operator_error
from flinkray.streaming.sources.coordinator import (
    END_OF_SPLITS,
    NO_MORE_SPLITS,
    SourceCoordinator,
)
from flinkray.streaming.sources.source import Source
from flinkray.streaming.time.waiting_clock import WaitingSystemClock


class SourceHost:
    """Lives on the main thread of the coordinator.

    The enumerator is made when the first reader is heard of, and again when the source is read with
    another parallelism: then all of the job has begun anew.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        name: str,
        load: Callable[[str | None], Awaitable[Source[object]]],
        on_failed: Callable[[FlinkRayError], None],
    ) -> None:
        """*load* is given the address of the blob server."""
        self._endpoint = endpoint
        self._name = f"enumerator of {name}"
        self._load = load
        self._on_failed = on_failed
        self._source: Source[object] | None = None
        self._hosted: SourceCoordinator | None = None
        self._clock = WaitingSystemClock()
        self._parallelism = 0
        self._calls = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """Subtasks of which a call waits for news."""
        self._discovery: TimerHandle | None = None

    async def exchange(self, reader: ReaderProgress) -> tuple[bytes, ...]:
        """See :meth:`StreamCoordinatorGateway.exchange`."""
        subtask, attempt = reader.subtask_index, reader.attempt_number
        self._wake(subtask)
        await self._run(partial(self._heard, reader))
        while self._hosted is not None:
            events = self._hosted.events(subtask, attempt, reader.position)
            if events is None or events:
                return tuple(END_OF_SPLITS if e is NO_MORE_SPLITS else e for e in events or ())
            waiting = asyncio.get_running_loop().create_future()
            self._wake(subtask)
            self._waiting[subtask] = waiting
            await waiting
            if self._waiting.get(subtask) is not waiting:
                return ()  # a later call of this reader has taken its place
        return ()

    async def _heard(self, reader: ReaderProgress) -> Callable[[], None]:
        if self._source is None:
            self._source = await self._load(reader.blob_server)
        source, hosted = self._source, self._hosted

        def call() -> None:
            now = hosted
            if now is None or self._parallelism != reader.parallelism:
                if now is not None:
                    now.close()
                now = self._hosted = SourceCoordinator(self._clock, cloudpickle.dumps)
                now.start(source, reader.parallelism)
                self._parallelism = reader.parallelism
            now.heard(reader.subtask_index, reader.attempt_number, reader.requests)

        return call

    async def _run(self, prepare: Callable[[], Awaitable[Callable[[], None]]]) -> None:
        """Call user code in a thread, and see what it has given to readers."""
        async with self._calls:
            try:
                call = await prepare()
                delay = await call_user_code(
                    self._endpoint.rpc_service, partial(self._call, call), self._described
                )
            except Exception as error:  # noqa: BLE001 - also what has kept it from being loaded
                if not isinstance(error, OperatorError):
                    error = self._described(error)
                self._on_failed(error)
                await asyncio.get_running_loop().create_future()  # the job begins anew, or ends
            self._plan_discovery(delay)
        for subtask in tuple(self._waiting):
            self._notify(subtask)

    def _notify(self, subtask: int) -> None:
        """The call that waits looks again."""
        waiting = self._waiting.get(subtask)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _wake(self, subtask: int) -> None:
        """The call that waits is to end."""
        waiting = self._waiting.pop(subtask, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _call(self, call: Callable[[], None]) -> float | None:
        """In the thread; in how many seconds to look for new splits is user code's to say, too."""
        call()
        at = None if self._hosted is None else self._hosted.next_discovery_time()
        return None if at is None else max(at - self._clock.time(), 0.0)

    def _described(self, error: BaseException) -> OperatorError:
        return operator_error(error, self._name)

    def _plan_discovery(self, delay: float | None) -> None:
        if self._discovery is not None:
            self._discovery.cancel()
            self._discovery = None
        if delay is not None:
            self._discovery = self._endpoint.schedule_run_async(delay, self._discover)

    def _discover(self) -> None:
        self._endpoint.create_task(self._run(self._discovered), f"discovery: {self._name}")

    async def _discovered(self) -> Callable[[], None]:
        assert self._hosted is not None
        return self._hosted.discover

    async def close(self) -> None:
        """End the enumerator; waits for the call that is under way."""
        if self._hosted is not None and not self._calls.locked():
            async with self._calls:
                await call_user_code(
                    self._endpoint.rpc_service, self._hosted.close, self._described
                )
