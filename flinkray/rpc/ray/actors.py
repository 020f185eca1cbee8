"""Creates and ends the actors that are the processes of a cluster."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.actor import ActorHandle

from flinkray.core.errors import ProcessExistsError, RpcConnectionError
from flinkray.rpc.ray.futures import result_of
from flinkray.rpc.ray.head import RayHead, head_node_id
from flinkray.rpc.ray.placement import MAX_CONCURRENCY, actor_options, avoiding
from flinkray.rpc.spec import EndpointSpec, load_factory
from flinkray.rpc.time_limit import within
from flinkray.rpc.wire import codec

logger = logging.getLogger(__name__)

# By name, because these classes run in the other process, which has its own service.
_PROCESS_CLASS = "flinkray.rpc.ray.process:process_class"
_PRESTARTED_CLASS = "flinkray.rpc.ray.process:prestarted_class"

NAME_FREED_TIMEOUT = 10.0
"""Seconds that a spawn waits while a process of the same name dies."""

_NAME_FREED_POLL = 0.02
_ASK_AGAIN = 0.5
"""Seconds until Ray is asked again about a child that Ray cannot reach."""


def died_at_its_start(process_name: str, why: str) -> str:
    """Return the error text for a process that died at its start; *why* is Ray's text.

    If the workers cannot import flinkray, the text says so instead of Ray's stack trace.
    """
    if re.search(r"No module named '?flinkray\b", why):
        return (
            f"{process_name} cannot be started: Ray's Python workers cannot import flinkray. "
            "Install it for the Python that Ray runs with, on every node, then start Ray anew there"
        )
    return f"the process {process_name} died at its start: {why}"


class RayActors:
    """Starts actors in one Ray namespace, and owns the actors that are not detached.

    Ray ends an actor that is not detached when the owner's process is gone or holds no handle of
    the actor any more. Ray keeps the name of a dead actor until then, so the owner frees the names.
    """

    def __init__(self, namespace: str, head: RayHead) -> None:
        self._namespace = namespace
        self._head = head
        self.avoids_head_node = False
        """Whether actors without a placement avoid Ray's head node, if there are other nodes."""
        self._classes: dict[str, Any] = {}
        self._children: dict[str, ActorHandle[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, spec: EndpointSpec, is_running: Callable[[str], Awaitable[bool]]) -> str:
        """Start the process of *spec* and return the address of its endpoint.

        *is_running* returns whether a process is running, that is, neither starting nor ending.
        """
        give_up = asyncio.get_running_loop().time() + NAME_FREED_TIMEOUT
        while True:
            handle = await self._create_when_free(spec, is_running, give_up)
            try:
                started, outcome = codec.decode(await result_of(handle.ready.remote()))
            except ray.exceptions.ActorAlreadyExistsError as error:  # Ray Client reports it late
                await self._until_free(spec.name, is_running, give_up, error)
                continue
            except ray.exceptions.RayError as error:
                await self._head.ask(ray.kill, handle)
                raise RpcConnectionError(died_at_its_start(spec.name, str(error))) from error
            except BaseException:
                await self.kill(spec.name)
                raise
            if not started:
                await self.kill(spec.name)
                raise outcome
            if not spec.detached:
                self._adopt(spec.name, handle)
            return str(outcome)

    async def kill(self, process_name: str) -> None:
        """End the process and free its name. Does nothing if there is no such process."""
        self._children.pop(process_name, None)

        def kill() -> None:
            try:
                handle = ray.get_actor(process_name, self._namespace)
            except ValueError:  # there is none
                return
            ray.kill(handle, no_restart=True)

        await self._head.ask_patiently(kill)

    async def create_prestarted(
        self, name: str, imports: tuple[str, ...], ahead: tuple[str, ...]
    ) -> None:
        """Begin to create a detached process that has no role yet."""
        options = {
            "name": name,
            "namespace": self._namespace,
            "num_cpus": 0,
            "max_concurrency": MAX_CONCURRENCY,
            "lifetime": "detached",
        }

        def create() -> None:
            place = avoiding(self._avoided_node())
            load_factory(_PRESTARTED_CLASS)().options(**options, **place).remote(
                self._namespace, name, imports, ahead
            )

        await self._head.ask(create)

    def forget(self, process_name: str) -> None:
        """Forget a child process that has ended by itself."""
        self._children.pop(process_name, None)

    def children(self) -> tuple[str, ...]:
        """Return the names of the owned processes, for the caller to kill.

        From now on this object does not free the names of these processes when they die.
        """
        for task in tuple(self._tasks):
            task.cancel()
        return tuple(self._children)

    # --- creating -----------------------------------------------------------------------------

    async def _create_when_free(
        self, spec: EndpointSpec, is_running: Callable[[str], Awaitable[bool]], give_up: float
    ) -> ActorHandle[Any]:
        arguments = codec.encode(spec)
        while True:
            creating = asyncio.ensure_future(self._head.ask(self._create, spec, arguments))
            try:
                return await asyncio.shield(creating)
            except asyncio.CancelledError:
                await asyncio.wait({creating})  # otherwise the actor would still start
                if creating.exception() is None:
                    await self._head.ask(ray.kill, creating.result())
                raise
            except ValueError as error:  # Ray's words depend on when it finds that a name is taken
                if not any(words in str(error) for words in ("already taken", "already exists")):
                    raise
                await self._until_free(spec.name, is_running, give_up, error)
            except ray.exceptions.RayError as error:  # the head went away
                raise RpcConnectionError(
                    f"Ray could not be asked to start {spec.name}: {error}"
                ) from error

    async def _until_free(
        self,
        process_name: str,
        is_running: Callable[[str], Awaitable[bool]],
        give_up: float,
        error: Exception,
    ) -> None:
        """Free the name of a dead or ending process, and wait a moment before the next attempt.

        *error*: Ray's error that the name is taken. Raises ProcessExistsError: the process runs,
        or the loop's time *give_up* has passed.
        """
        if asyncio.get_running_loop().time() > give_up or await is_running(process_name):
            raise ProcessExistsError(process_name) from error
        await self._bury(process_name)
        await asyncio.sleep(_NAME_FREED_POLL)

    def _create(self, spec: EndpointSpec, arguments: bytes) -> ActorHandle[Any]:
        actor_class = self._classes.get(spec.kind)
        if actor_class is None:
            actor_class = self._classes[spec.kind] = load_factory(_PROCESS_CLASS)(spec.kind)
        handle: ActorHandle[Any] = actor_class.options(
            **actor_options(spec, self._namespace, self._avoided_node())
        ).remote(self._namespace, spec.name, spec.factory, arguments, dict(spec.environment))
        return handle

    def _avoided_node(self) -> str | None:
        # asked each time: a head that comes back is another node
        return head_node_id() if self.avoids_head_node else None

    async def _bury(self, process_name: str) -> None:
        """Free the name of an actor that died a moment ago."""

        def ask() -> tuple[ActorHandle[Any], Any]:
            handle = ray.get_actor(process_name, self._namespace)
            return handle, handle.ready.remote()

        was_out_of_memory = False
        while True:
            try:
                handle, answer = await self._head.ask(ask)
            except ValueError:
                return
            try:
                await within(_NAME_FREED_POLL, result_of(answer))
            except ray.exceptions.ActorDiedError:
                break
            except ray.exceptions.OutOfMemoryError:
                if was_out_of_memory:  # see _tend
                    break
                was_out_of_memory = True
                await asyncio.sleep(_ASK_AGAIN)
                continue
            except (ray.exceptions.RayError, asyncio.TimeoutError):
                pass  # being started or restarted: it may be there in a moment
            return
        self._children.pop(process_name, None)
        await self._head.ask(ray.kill, handle)

    # --- owning -------------------------------------------------------------------------------

    def _adopt(self, process_name: str, handle: ActorHandle[Any]) -> None:
        self._children[process_name] = handle
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._tend(process_name, handle), name=f"tend {process_name}")
        self._tasks.add(task)
        task.add_done_callback(self._tended)

    def _tended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            logger.error("%s: failed: %r", task.get_name(), error, exc_info=error)

    async def _tend(self, process_name: str, handle: ActorHandle[Any]) -> None:
        """Free the name of a child process when the child is dead.

        After Ray's memory monitor has killed an actor, Ray reports OutOfMemoryError for every call.
        If Ray restarts the actor, only calls that were under way get this error.
        """
        was_out_of_memory = False
        while True:
            pause = _NAME_FREED_POLL
            try:
                await result_of(handle.park.remote())
                was_out_of_memory = False
            except ray.exceptions.ActorDiedError:
                break
            except ray.exceptions.OutOfMemoryError:
                if was_out_of_memory:
                    break
                was_out_of_memory = True
                pause = _ASK_AGAIN
            except ray.exceptions.RayError:
                was_out_of_memory = False
                pause = _ASK_AGAIN  # Ray restarts it, or does not reach it now
            await asyncio.sleep(pause)
        if self._children.get(process_name) is handle:
            del self._children[process_name]
        await self._head.ask_patiently(ray.kill, handle)
