"""Places, creates, watches and ends the Ray actors that are the processes of a cluster.

This process asks Ray by a call to the other process's actor; the call stays open while the process
lives, and is repeated now and then.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flinkray.core.errors import ProcessExistsError, RpcConnectionError, RpcError
from flinkray.core.ids import WorkerGroupId
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.ray.head import RayHead, head_node_id
from flinkray.rpc.spec import EndpointSpec, Placement, load_factory
from flinkray.rpc.time_limit import retrieve, within
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

    async def exists(self, name: str) -> bool:
        """Return whether Ray has an actor of that name that is not dead."""

        def look() -> bool:
            try:
                ray.get_actor(name, self._namespace)
            except ValueError:
                return False
            return True

        return await self._head.ask(look)

    async def create_prestarted(
        self, name: str, imports: tuple[str, ...], ahead: tuple[str, ...], roles: int
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
                self._namespace, name, imports, ahead, roles
            )

        await self._head.ask(create)

    def forget(self, process_name: str) -> None:
        """Note that a child process has ended by itself, so that it need not be killed any more."""
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
        """Free the name of a process that is dead, and wait a moment, so that the caller can try to
        start the process again.

        *error*: Ray's error that the name is taken. Raises ProcessExistsError: the process runs, or
        the loop's time *give_up* has passed.
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
        ).remote(
            self._namespace,
            spec.name,
            spec.factory,
            arguments,
            dict(spec.environment),
            spec.is_ahead,
        )
        return handle

    def _avoided_node(self) -> str | None:
        # asked each time: a head that comes back is another node
        return head_node_id() if self.avoids_head_node else None

    async def _bury(self, process_name: str) -> None:
        """Free the name of an actor that has died. Waits a moment for Ray to notice the death. Does
        nothing if there is no such actor, or if it is being started, restarted or still runs."""

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
        """Wait until a child process is dead, then free its name.

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


async def result_of(reference: Any) -> Any:
    """Await one of Ray's object references, also of Ray Client, on any event loop.
    Returns its value.

    Ray's own future is not cancelled together with the waiting task: the thread in which Ray Client
    sets its futures does not survive that.
    """
    future = asyncio.wrap_future(reference.future())
    future.add_done_callback(retrieve)  # also when nobody waits any more
    return await asyncio.shield(future)


MAX_CONCURRENCY = 100_000
"""The concurrency of actors: every watcher of a process keeps one call to its actor open."""


_NODE_ID = "ray.io/node-id"
"""Ray's own label of each node: its id."""


def actor_options(
    spec: EndpointSpec, namespace: str, avoided_node: str | None = None
) -> dict[str, Any]:
    """Return the ``options`` of the actor that hosts the process of *spec*.

    The process is not started on *avoided_node* if there are other nodes, unless its placement says
    where. Environment variables are not part of the options: with a runtime_env, Ray starts a fresh
    worker through its agent, instead of taking one from its pool.
    """
    placement = spec.placement
    options: dict[str, Any] = {
        "name": spec.name,
        "namespace": namespace,
        "num_cpus": placement.num_cpus,
        "max_restarts": spec.max_restarts,
        "max_task_retries": 0,
        "max_concurrency": MAX_CONCURRENCY,
        **_place(placement, avoided_node),
    }
    if spec.detached:
        options["lifetime"] = "detached"
    if placement.memory:
        options["memory"] = placement.memory
    resources = dict(placement.resources)
    gpus = resources.pop("GPU", 0.0)  # Ray refuses this name among the resources
    if gpus:
        options["num_gpus"] = gpus
    if resources:
        options["resources"] = resources
    return options


def placement_group_of(worker_group: WorkerGroupId) -> PlacementGroup:
    """Return Ray's handle of a worker group; another process may have made the group."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(worker_group.value)))


def _place(placement: Placement, avoided_node: str | None) -> dict[str, Any]:
    if placement.worker_group is not None:
        strategy = PlacementGroupSchedulingStrategy(
            placement_group_of(placement.worker_group),
            placement_group_bundle_index=placement.bundle_index,
            placement_group_capture_child_tasks=False,
        )
        return {"scheduling_strategy": strategy}
    if placement.node_id is not None:
        return {"scheduling_strategy": "DEFAULT", **_preferring(placement.node_id)}
    return {"scheduling_strategy": "DEFAULT", **avoiding(avoided_node)}


def _preferring(node_id: str) -> dict[str, Any]:
    # Not a soft NodeAffinitySchedulingStrategy: actors that take no resources go anywhere with it
    return _selecting(node_id, "!" + node_id)


def avoiding(node_id: str | None) -> dict[str, Any]:
    """Return actor options that avoid *node_id* if there are other nodes; None: avoid no node."""
    return {} if node_id is None else _selecting("!" + node_id, node_id)


def _selecting(first: str, second: str) -> dict[str, Any]:
    return {
        "label_selector": {_NODE_ID: first},
        "fallback_strategy": [{"label_selector": {_NODE_ID: second}}],
    }


_FIRST = 1.0
"""Seconds until Ray is first asked.

Many connections are closed earlier, and Ray takes much longer to notice that a node is gone.
"""
_AGAIN = 1.0
"""Seconds between two questions while Ray reports a process as unavailable that answers pings."""


async def death_of(
    run: Callable[..., Awaitable[Any]],
    connection: ClientConnection,
    namespace: str,
    actor_name: str,
    actor_id: str,
    incarnation: str,
    node_id: str | None,
    ping_timeout: float,
    give_up: Callable[[Any], None],
) -> str:
    """Wait until the process of *connection* is dead according to Ray, or *incarnation* of it is
    over according to its actor; return the reason.

    *run* runs blocking calls off the loop. *give_up* cancels the open call when nobody waits for it
    any more, as an actor has room for a limited number of calls. If Ray reports a node as dead, its
    processes count as dead, as Ray starts them on other nodes. After any other report of Ray's, or
    without Ray's head, a process that answers a ping in *ping_timeout* seconds counts as alive.
    """
    name = connection.process_name

    def park() -> Any:
        handle = ray.get_actor(actor_name, namespace)
        if handle._actor_id.hex() != actor_id:
            return None
        return handle.park.remote(incarnation)

    await asyncio.sleep(_FIRST)
    while True:
        parked: Any = None
        try:
            parked = await run(park)
            if parked is None:
                reason = f"another actor is named {actor_name} now"
            elif await result_of(parked):
                return f"the process {name} has ended"
            else:
                continue
        except asyncio.CancelledError:
            if parked is not None:
                give_up(parked)
            raise
        except ray.exceptions.ActorDiedError as error:
            return f"the process {name} died: {_how(error)}"
        except ValueError:
            reason = f"Ray has no actor {actor_name} any more"
        except ray.exceptions.RayError as error:
            reason = f"the process {name} is not reachable: {error}"
        try:
            if await run(is_node_dead, node_id):
                return f"Ray has given up node {node_id}, where the process {name} was"
            await connection.ping(ping_timeout)
        except RpcError:
            return reason
        await asyncio.sleep(_AGAIN)


_OF_ACTOR = re.compile(r"^\t(class_name|actor_id|name|namespace): .*\n?", re.MULTILINE)


def _how(error: ray.exceptions.ActorDiedError) -> str:
    """Return Ray's text about a dead actor, without the actor's name.

    The name would be wrong for a prestarted process: Ray uses its first name even hours later.
    """
    return _OF_ACTOR.sub("", str(error))


def is_node_dead(node_id: str | None) -> bool:
    """Return whether Ray reports the node as dead; False when Ray's head is away."""
    try:
        nodes: list[dict[str, Any]] = ray.nodes()
    except ray.exceptions.RayError:
        return False
    return any(node["NodeID"] == node_id and not node["Alive"] for node in nodes)
