"""Hosts the master hooks of a job's sources: calls the hooks at checkpoints, and restores them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from flinkray.actors.gateways.stream_coordinator import RestoredCoordinators
from flinkray.actors.shared.user_calls import call_user_code, described
from flinkray.checkpoint.metadata import MasterState
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID
from flinkray.core.options import RPC_FRAME_SIZE
from flinkray.ha.entries import decode_entry, encode_entry
from flinkray.rpc import RpcEndpoint
from flinkray.rpc.time_limit import retrieve, within
from flinkray.scheduler.checkpoints.failures import StateRestoreError
from flinkray.streaming.errors import StreamError, UnavailableError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.sources.master_hook import (
    MasterTriggerRestoreHook,
    WithMasterCheckpointHook,
)
from flinkray.streaming.sources.source import Source
from flinkray.streaming.sources.source_progress import (
    EnumeratorState,
    read_enumerator_state,
    write_enumerator_state,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_WAIT = 3.0
"""Longest wait in seconds, before a restore, for a call of a hook that is under way."""
_LARGEST_SHARE = 4
"""Share of a message that the states of all hooks may fill: 1/4."""


class HostedMasterHooks:
    """Hosts the master hooks of a job. Lives on the main thread of the coordinator.

    The hooks are created, and restored, when a source task or a checkpoint first needs them. A
    coordinator that has just started may still have to be restored to a later checkpoint, and a
    hook is restored only once.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        job_id: JobID,
        sources: Iterable[tuple[str, Callable[[], Awaitable[Source[object]]]]],
        on_failed: Callable[[FlinkRayError], None],
        *,
        allow_non_restored_state: bool,
    ) -> None:
        """Create a host without hooks.

        Args:
            sources: name of each source with a hook, and a function that loads the source.
            on_failed: fails the job, because a hook cannot be created or restored.
        """
        self._endpoint = endpoint
        self._job_id = job_id
        self._sources = tuple(sources)
        self._on_failed = on_failed
        self._allow_non_restored_state = allow_non_restored_state
        self._hooks: dict[str, MasterTriggerRestoreHook[Any]] = {}
        self._source_of: dict[str, str] = {}
        """Identifier of each hook -> name of its source."""
        self._are_created = False
        self._restored: RestoredCoordinators | None = None
        """The state to which the hooks go back when they are needed next. None: a fresh start."""
        self._ready: asyncio.Task[None] | None = None
        """Creates the hooks and restores them to ``_restored``. None: nobody has needed them."""
        self._calls = asyncio.Lock()
        """Held while a hook is called."""
        self._answers: dict[int, asyncio.Future[tuple[MasterState, ...]]] = {}
        """Id of each checkpoint that is not over -> the hooks' states for the checkpoint."""

    @property
    def are_there(self) -> bool:
        """Whether any source has a hook."""
        return bool(self._sources)

    # --- restores ---------------------------------------------------------------------------------

    def restore(self, restored: RestoredCoordinators) -> None:
        """Set the state to which the hooks are restored when they are next needed: before a source
        is read or a checkpoint is taken."""
        self._restored, self._ready = restored, None
        for checkpoint_id in tuple(self._answers):
            self.checkpoint_over(checkpoint_id)
        if not self.are_there and restored.master_states:  # nobody will need the hooks
            self._begin()

    async def ready(self) -> None:
        """Wait until the hooks are restored. If they cannot be restored, the job fails, and this
        call never returns."""
        await asyncio.shield(self._ready or self._begin())

    def _begin(self) -> asyncio.Task[None]:
        self._ready = self._endpoint.create_task(
            self._prepare(self._restored), "restore the master hooks"
        )
        return self._ready

    async def _prepare(self, restored: RestoredCoordinators | None) -> None:
        try:
            await self._idle()
            try:
                await self._create()
                await self._restore(restored)
            finally:
                self._calls.release()
        except FlinkRayError as error:
            self._on_failed(error)
            # wait for ever, because the job begins anew or ends
            await asyncio.get_running_loop().create_future()

    async def _idle(self) -> None:
        """Wait until no call of a hook is under way, and keep further calls waiting (take their
        lock). Raises UnavailableError if a call does not return in time."""
        try:
            await within(_LONGEST_WAIT, self._calls.acquire())
        except asyncio.TimeoutError:
            raise UnavailableError(
                "the master hooks cannot be restored: a call of trigger_checkpoint or "
                "restore_checkpoint has not returned"
            ) from None

    async def _create(self) -> None:
        if self._are_created:
            return
        for name, load in self._sources:
            what = f"master hook of {name}"
            try:
                source = await load()
            except OSError as error:  # no room for the files of the job
                raise described(error, what) from error
            identifier, hook = await self._call(what, partial(_created, source))
            if identifier in self._hooks:
                raise StreamError(
                    f"the sources {self._source_of[identifier]!r} and {name!r} have master hooks "
                    f"with one identifier, {identifier!r}: their get_identifier must differ"
                )
            self._hooks[identifier], self._source_of[identifier] = hook, name
        self._are_created = True

    async def _restore(self, restored: RestoredCoordinators | None) -> None:
        if restored is None or not restored.checkpoint_id:
            # also at a first start: an earlier JobMaster and its coordinator may have died
            for identifier, hook in self._hooks.items():
                await self._call(self._name_of(identifier), hook.reset)
            return
        states = {state.hook_id: state.data for state in restored.master_states}
        unknown = [hook_id for hook_id in states if hook_id not in self._hooks]
        if unknown and not self._allow_non_restored_state:
            raise StateRestoreError(
                self._job_id,
                f"there is state of the master hook {unknown[0]!r}, which the job does not have: "
                "add the hook's source, or allow non-restored state (--allow-non-restored-state)",
            )
        for identifier, hook in self._hooks.items():
            call = partial(_restored, hook, restored.checkpoint_id, states.get(identifier))
            await self._call(self._name_of(identifier), call)

    # --- checkpoints ------------------------------------------------------------------------------

    def trigger(self, checkpoint_id: int, timestamp: int) -> None:
        """Call the hooks for a checkpoint, in the background. :meth:`states` returns the result."""
        answer = self._endpoint.rpc_service.loop.create_future()
        answer.add_done_callback(retrieve)
        self._answers[checkpoint_id] = answer
        self._endpoint.create_task(
            self._trigger(checkpoint_id, timestamp, answer), "call the master hooks"
        )

    async def states(self, checkpoint_id: int) -> tuple[MasterState, ...]:
        """Return the hooks' states for a checkpoint that was triggered.

        Raises:
            OperatorError: a hook has failed, or its state cannot be stored.
            StreamError: the states are too large.
            UnavailableError: the checkpoint is over.
        """
        if checkpoint_id not in self._answers:
            raise _over(checkpoint_id)
        return await asyncio.shield(self._answers[checkpoint_id])

    def checkpoint_over(self, checkpoint_id: int) -> None:
        """Drop the hooks' states for a checkpoint that is complete or aborted."""
        answer = self._answers.pop(checkpoint_id, None)
        if answer is not None and not answer.done():
            answer.set_exception(_over(checkpoint_id))

    async def _trigger(
        self, checkpoint_id: int, timestamp: int, answer: asyncio.Future[tuple[MasterState, ...]]
    ) -> None:
        await self.ready()
        results: dict[str, MasterState | Future[Any] | None] = {}
        try:
            async with self._calls:
                for identifier, hook in self._hooks.items():
                    if answer.done():  # the checkpoint is over
                        return
                    call = partial(_triggered, identifier, hook, checkpoint_id, timestamp)
                    results[identifier] = await self._call(self._name_of(identifier), call)
            states = []
            for identifier, result in results.items():
                if isinstance(result, Future):
                    result = await self._awaited(identifier, result, answer)
                if result is not None:
                    states.append(result)
            size, most = sum(len(s.data) for s in states), self._endpoint.rpc_service.max_frame_size
            if size > most // _LARGEST_SHARE:
                raise StreamError(
                    f"the states of the master hooks have {size} bytes: at most "
                    f"{most // _LARGEST_SHARE} bytes can be stored, a quarter of "
                    f"{RPC_FRAME_SIZE.key}"
                )
        except FlinkRayError as error:
            if not answer.done():
                answer.set_exception(error)
            return
        finally:
            for result in results.values():
                if isinstance(result, Future):
                    result.cancel()  # no effect if the future is done
        if not answer.done():
            answer.set_result(tuple(states))

    async def _awaited(
        self,
        identifier: str,
        result: Future[Any],
        answer: asyncio.Future[tuple[MasterState, ...]],
    ) -> MasterState | None:
        done = asyncio.wrap_future(result)
        done.add_done_callback(retrieve)
        await asyncio.wait({done, answer}, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():  # the checkpoint is over
            return None
        return await self._call(
            self._name_of(identifier), lambda: _stored(identifier, result.result())
        )

    # --- calls ------------------------------------------------------------------------------------

    def _name_of(self, identifier: str) -> str:
        return f"master hook {identifier!r} of {self._source_of[identifier]}"

    async def _call(self, name: str, call: Callable[[], T]) -> T:
        """Run user code in a thread and return its result. If it fails, raises OperatorError with
        *name*."""
        service = self._endpoint.rpc_service
        return await call_user_code(service, call, lambda error: described(error, name))

    async def close(self) -> None:
        """Close the hooks, unless a call of a hook is under way."""
        for checkpoint_id in tuple(self._answers):
            self.checkpoint_over(checkpoint_id)
        if self._calls.locked():
            return
        async with self._calls:
            hooks, self._hooks = self._hooks, {}
            for identifier, hook in hooks.items():
                try:
                    await self._call(self._name_of(identifier), hook.close)
                except OperatorError as error:
                    log.warning("a master hook cannot be closed: %s", error)


def _created(source: Source[object]) -> tuple[str, MasterTriggerRestoreHook[Any]]:
    assert isinstance(source, WithMasterCheckpointHook)
    hook = source.create_master_trigger_restore_hook()
    identifier = hook.get_identifier()
    if not isinstance(identifier, str) or not identifier:
        raise StreamError(f"get_identifier of a master hook returned {identifier!r}, not a name")
    return identifier, hook


def _triggered(
    identifier: str, hook: MasterTriggerRestoreHook[Any], checkpoint_id: int, timestamp: int
) -> MasterState | Future[Any] | None:
    """Call a hook for a checkpoint, and return its state, serialized at once, because the hook may
    change the object later. A Future of the state is returned as it is. None: the hook has no
    state."""
    result = hook.trigger_checkpoint(checkpoint_id, timestamp)
    return result if isinstance(result, Future) else _stored(identifier, result)


def _stored(identifier: str, state: Any) -> MasterState | None:
    if state is None:
        return None
    return MasterState(identifier, encode_entry(write_enumerator_state(state)))


def _restored(hook: MasterTriggerRestoreHook[Any], checkpoint_id: int, data: bytes | None) -> None:
    state = None
    if data is not None:
        state = read_enumerator_state(decode_entry(data, EnumeratorState))
    hook.restore_checkpoint(checkpoint_id, state)


def _over(checkpoint_id: int) -> UnavailableError:
    return UnavailableError(f"checkpoint {checkpoint_id} is over")
