"""Hosts one source in the coordinator's process. Threads run its enumerator, one call at a time.

The progress of the source (its splits and the events for readers) is also stored by other
processes, in case this process dies. Readers are sent only events that are stored.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from flinkray.actors.gateways.stream_coordinator import ReaderProgress
from flinkray.actors.shared.user_calls import call_user_code, described
from flinkray.core import cloud_pickle
from flinkray.core.errors import FlinkRayError
from flinkray.rpc import RpcEndpoint, TimerHandle
from flinkray.rpc.time_limit import within
from flinkray.streaming.errors import UnavailableError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.sources.coordinator import (
    END_OF_SPLITS,
    NO_MORE_SPLITS,
    SourceCoordinator,
)
from flinkray.streaming.sources.source import Source
from flinkray.streaming.sources.source_progress import EnumeratorState, SourceProgress
from flinkray.streaming.time.time_service import WaitingSystemClock

log = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_WAIT = 3.0
"""Longest wait in seconds, before a snapshot, until a first reader has called."""


class SourceHost:
    """Hosts the enumerator of one source. The host is used on the coordinator's main thread; the
    enumerator's methods run in other threads, one call at a time.

    The enumerator is created when the first reader calls, and again when the source is read with
    another parallelism, after the whole job has begun anew.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        name: str,
        load: Callable[[str | None], Awaitable[Source[object]]],
        on_failed: Callable[[FlinkRayError], None],
        keep: Callable[[SourceProgress | None], Awaitable[bool]],
        state: EnumeratorState | None = None,
        checkpoint_id: int = 0,
        progress: SourceProgress | None = None,
    ) -> None:
        """Create a host without an enumerator.

        Args:
            load: returns the source; its argument is the address of the blob server.
            keep: stores the source's progress at other processes. Returns True when the progress is
                stored, and False if that is impossible. None in place of the progress says that
                later progress will not be stored.
            state: state of the enumerator in the restored checkpoint, if any.
            progress: progress that an earlier coordinator has stored; takes precedence over
                *state*.
        """
        self._endpoint = endpoint
        self._name = f"enumerator of {name}"
        self._load = load
        self._on_failed = on_failed
        self._source: Source[object] | None = None
        self._clock = WaitingSystemClock()
        self._keep = keep
        self._hosted = SourceCoordinator(
            self._clock,
            cloud_pickle.dumps,
            state,
            checkpoint_id,
            decode=pickle.loads,
            progress=progress,
            is_kept=True,
        )
        self._kept_changes = 0
        self._is_kept = True
        """Whether other processes keep the progress. False once keeping has failed."""
        self._is_to_be_kept_again = progress is not None
        self._may_be_unknown = progress is not None
        """Whether no other process may know the progress with which this host begins."""
        self._keeping: asyncio.Task[None] | None = None
        self._awaiting_kept: list[asyncio.Future[None]] = []
        self._calls = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """Subtask -> future that ends the wait of the subtask's call for events."""
        self._discovery: TimerHandle | None = None
        self._is_closed = False
        self._has_begun = asyncio.Event()
        """Set when there is an enumerator, or when there never will be one."""

    # --- readers ----------------------------------------------------------------------------------

    async def exchange(self, reader: ReaderProgress) -> tuple[bytes, ...]:
        """Wait for events for a reader and return them; see
        :meth:`StreamCoordinatorGateway.exchange`."""
        subtask, attempt = reader.subtask_index, reader.attempt_number
        self._wake(subtask)
        await self._run(partial(self._heard, reader))
        while not self._is_closed:
            events = self._hosted.events(subtask, attempt, reader.position)
            if events is None or events:
                return _encoded(events or ())
            waiting = asyncio.get_running_loop().create_future()
            self._wake(subtask)
            self._waiting[subtask] = waiting
            await waiting
            if self._waiting.get(subtask) is not waiting:
                return ()  # a later call of this reader has replaced this one
        return ()

    async def events_before(self, reader: ReaderProgress, checkpoint_id: int) -> tuple[bytes, ...]:
        """Return the remaining events that a reader gets before a checkpoint.
        See :meth:`StreamCoordinatorGateway.exchange_until_cut`.
        """
        # normally everything before a cut is kept before readers hear of the cut
        if self._may_be_unknown:
            await self.kept()
        try:
            events = self._hosted.events_before(
                checkpoint_id, reader.subtask_index, reader.attempt_number, reader.position
            )
        except UnavailableError as error:
            self._on_failed(self._described(error))
            raise
        self._changed()
        return _encoded(events or ())

    async def _heard(self, reader: ReaderProgress) -> Callable[[], None]:
        if self._source is None:
            self._source = await self._load(reader.blob_server)
        source = self._source

        def call() -> None:
            if self._hosted.parallelism not in (0, reader.parallelism):
                self._hosted.close()
                self._hosted = SourceCoordinator(
                    self._clock,
                    cloud_pickle.dumps,
                    decode=pickle.loads,
                    is_kept=self._is_kept,
                )
                self._is_to_be_kept_again = True
            if not self._hosted.parallelism:
                self._hosted.start(source, reader.parallelism)
            self._hosted.heard(
                reader.subtask_index,
                reader.attempt_number,
                reader.requests,
                reader.position,
                reader.checkpoint_id,
                reader.restored_from,
            )

        return call

    # --- checkpoints ------------------------------------------------------------------------------

    async def snapshot(self, checkpoint_id: int) -> EnumeratorState | None:
        """Fix which events readers get before the checkpoint, and return the enumerator's state.
        Raises OperatorError.
        """
        if self._hosted.owes_splits:  # readers run and will call, unless they have failed
            with suppress(asyncio.TimeoutError):
                await within(_LONGEST_WAIT, self._has_begun.wait())
        return await self._asked(lambda: self._hosted.snapshot(checkpoint_id))

    async def reset_subtask(self, subtask: int, attempt: int, checkpoint_id: int) -> None:
        """Take back the splits that earlier attempts of the subtask have received after a
        checkpoint; see :meth:`SourceCoordinator.reset_subtask`. Raises OperatorError."""
        await self._asked(lambda: self._hosted.reset_subtask(subtask, attempt, checkpoint_id))

    async def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Tell the enumerator that a checkpoint is complete: the job may recover from it from now
        on."""
        await self._run(_no_more(lambda: self._hosted.checkpoint_completed(checkpoint_id)))

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Drop what belongs to an aborted checkpoint, from which the job never recovers."""
        self._hosted.checkpoint_aborted(checkpoint_id)
        self._changed()
        self._notify_all()

    async def _asked(self, call: Callable[[], T]) -> T:
        """Run *call*, which is user code, in a thread, and return its result or raise its error."""
        async with self._calls:
            answer = await call_user_code(self._endpoint.rpc_service, call, self._described)
        self._changed()
        self._notify_all()
        return answer

    # --- what is kept outside ---------------------------------------------------------------------

    def keep_again(self) -> None:
        """Store the progress at other processes again, because the process that had it is gone."""
        self._is_to_be_kept_again = True
        self._changed()

    async def kept(self) -> None:
        """Wait until the present progress is stored at other processes, or cannot be stored."""
        self._changed()
        if self._keeping is not None:
            kept = asyncio.get_running_loop().create_future()
            self._awaiting_kept.append(kept)
            await kept

    @property
    def _is_behind(self) -> bool:
        """Whether the present progress is not yet stored at other processes."""
        has_changed = self._is_kept and self._kept_changes != self._hosted.changes
        return (has_changed or self._is_to_be_kept_again) and not self._is_closed

    def _changed(self) -> None:
        if self._is_behind and self._keeping is None:
            self._keeping = self._endpoint.create_task(self._keep_all(), f"keep: {self._name}")

    async def _keep_all(self) -> None:
        try:
            while self._is_behind:
                awaiting, self._awaiting_kept = self._awaiting_kept, []
                await self._keep_now()
                self._notify_all()
                _resolve(awaiting)
        finally:
            self._keeping = None
            awaiting, self._awaiting_kept = self._awaiting_kept, []
            _resolve(awaiting)

    async def _keep_now(self) -> None:
        self._is_to_be_kept_again = False
        async with self._calls:
            hosted, self._kept_changes = self._hosted, self._hosted.changes
            progress = await self._progress(hosted) if self._is_kept else None
        if progress is not None and await self._keep(progress):
            hosted.kept(progress)
        else:
            self._is_kept = False
            await self._keep(None)
            hosted.keep_no_more()
        self._may_be_unknown = False

    async def _progress(self, hosted: SourceCoordinator) -> SourceProgress | None:
        service = self._endpoint.rpc_service
        try:
            return await call_user_code(service, hosted.progress, self._described)
        except FlinkRayError as error:  # fails checkpoints, if the job takes any, but not the job
            log.warning("%s: the progress cannot be stored: %s", self._name, error)
            return None

    # --- calls ------------------------------------------------------------------------------------

    async def _run(self, prepare: Callable[[], Awaitable[Callable[[], None]]]) -> None:
        """Await *prepare*, and run the function that it returns in a thread, as user code. Then let
        the waiting calls of readers look for new events. If anything fails, the job fails, and this
        call never returns."""
        async with self._calls:
            if self._is_closed:
                return
            try:
                call = await prepare()
                delay = await call_user_code(
                    self._endpoint.rpc_service, partial(self._call, call), self._described
                )
            except Exception as error:  # noqa: BLE001 - also what has kept it from being loaded
                if not isinstance(error, OperatorError):
                    error = self._described(error)
                self._on_failed(error)
                # wait for ever, because the job begins anew or ends
                await asyncio.get_running_loop().create_future()
            self._plan_discovery(delay)
        if self._hosted.parallelism:
            self._has_begun.set()
        self._changed()
        self._notify_all()

    def _notify_all(self) -> None:
        for subtask in tuple(self._waiting):
            self._notify(subtask)

    def _notify(self, subtask: int) -> None:
        """Make the subtask's waiting call look for events again. If there are none, it continues to
        wait."""
        waiting = self._waiting.get(subtask)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _wake(self, subtask: int) -> None:
        """End the subtask's waiting call without events: it made a later call, or the source is
        closed."""
        waiting = self._waiting.pop(subtask, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _call(self, call: Callable[[], None]) -> float | None:
        """Run *call*. Returns the number of seconds after which the source wants to look for new
        splits. None: never. Called in the thread of the user code."""
        call()
        at = self._hosted.next_discovery_time()
        return None if at is None else max(at - self._clock.time(), 0.0)

    def _described(self, error: BaseException) -> OperatorError:
        return described(error, self._name)

    def _plan_discovery(self, delay: float | None) -> None:
        if self._discovery is not None:
            self._discovery.cancel()
            self._discovery = None
        if delay is not None:
            self._discovery = self._endpoint.schedule_run_async(delay, self._discover)

    def _discover(self) -> None:
        self._endpoint.create_task(self._run(self._discovered), f"discovery: {self._name}")

    async def _discovered(self) -> Callable[[], None]:
        return self._hosted.discover

    async def close(self) -> None:
        """Close the enumerator, unless a call of it is under way or has failed. Waiting readers get
        no events."""
        self._is_closed = True
        self._has_begun.set()
        self._plan_discovery(None)
        if self._keeping is not None:
            self._keeping.cancel()
        for subtask in tuple(self._waiting):
            self._wake(subtask)
        if not self._calls.locked():
            async with self._calls:
                await call_user_code(
                    self._endpoint.rpc_service, self._hosted.close, self._described
                )


def _no_more(call: Callable[[], None]) -> Callable[[], Awaitable[Callable[[], None]]]:
    async def prepared() -> Callable[[], None]:
        return call

    return prepared


def _resolve(waiting: list[asyncio.Future[None]]) -> None:
    for one in waiting:
        if not one.done():
            one.set_result(None)


def _encoded(events: tuple[object, ...]) -> tuple[bytes, ...]:
    return tuple(END_OF_SPLITS if e is NO_MORE_SPLITS else e for e in events)  # type: ignore[misc]
