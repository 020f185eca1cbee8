"""A process of the cluster: the Ray actor that hosts an endpoint.

Ray's part is to place, name, supervise and restart it; messages between endpoints go through the
actor's methods only for peers that cannot connect directly.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from flinkray.core.errors import FlinkRayError, RpcSerializationError
from flinkray.core.garbage_collection import spare_what_is_there
from flinkray.core.resources import format_memory_size
from flinkray.rpc.local_service import create_endpoint
from flinkray.rpc.ray.growth import GrowthWatch, memory_of_its_own
from flinkray.rpc.spec import load_factory
from flinkray.rpc.time_limit import within
from flinkray.rpc.wire import codec

if TYPE_CHECKING:
    from flinkray.rpc.endpoint import RpcEndpoint
    from flinkray.rpc.ray.service import RayRpcService
from flinkray.rpc.spec import EndpointSpec

logger = logging.getLogger(__name__)

FAILED_START_LINGER = 10.0
"""Seconds that a process whose first start failed waits for its spawner to ask why."""

_LOOP_END_GRACE = 2.0
"""Seconds that Ray has to end a process after it has stopped its event loop."""

PARKED = 120.0
"""Seconds for which a call that waits for the end of the process stays open."""

IMPORT_AHEAD_AFTER = 0.5
"""Seconds after a process without a role is ready.  Who waits for one comes at once, and goes
first."""

RESTART_PAUSE = 1.0
"""Seconds between a failed start after a restart and the next one."""


def end_with_the_loop() -> None:
    """End this process when the present event loop does: it would be there and answer nobody."""
    thread = threading.current_thread()
    join, exit_process, pause = thread.join, os._exit, threading.Event().wait  # may be spoilt later

    def watch() -> None:
        join()
        pause(_LOOP_END_GRACE)
        exit_process(1)

    threading.Thread(target=watch, name="end with the loop", daemon=True).start()


def failed_start(error: Exception) -> bytes:
    """The answer to who has spawned a process whose start failed."""
    try:
        return codec.encode((False, error))
    except RpcSerializationError:  # it holds something that cannot be sent
        return codec.encode((False, codec.decode(codec.encode_error_in_short(error))))


class RayProcess:
    """Base of the actor classes; each kind of process has a subclass of that name."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it on the actor's loop
        self,
        namespace: str,
        name: str,
        factory: str,
        spec_bytes: bytes,
        environment: dict[str, str],
    ) -> None:
        os.environ.update(environment)
        end_with_the_loop()
        from flinkray.rpc.ray.service import RayRpcService

        self._name = name
        self._actor = ray.get_runtime_context().current_actor
        self._leaving = asyncio.Event()
        self._end_task: asyncio.Task[None] | None = None
        self._service = await RayRpcService.open_process(namespace, name, self._end_of_service)
        await self._host(factory, spec_bytes)

    async def _host(self, factory: str, spec_bytes: bytes) -> None:
        """Be the process that the spec describes; ``self._answer`` says whether that went well."""
        try:
            load_factory(factory)  # its module registers the messages that the spec may hold
            spare_what_is_there()  # before a job is built
            spec: EndpointSpec = codec.decode(spec_bytes)
            endpoint = await create_endpoint(self._service, spec)
        except Exception as error:
            logger.exception("%s could not be started", self._name)
            if self._service.is_restart:
                await asyncio.sleep(RESTART_PAUSE)
                os._exit(1)  # an error raised here would make Ray give the actor up
            self._answer = failed_start(error)
            self._end_task = asyncio.create_task(self._end(FAILED_START_LINGER))
            return
        # What was imported stays: with Ray's and our modules in it, each full collection takes tens
        # of milliseconds, in which no call is answered, and 1,000 calls under way bring them about.
        spare_what_is_there()
        self._answer = codec.encode((True, endpoint.address))
        restarts = spec.max_restarts != 0
        endpoint.terminated.add_done_callback(lambda _: self._main_ended(endpoint, restarts))
        if spec.renewal is not None:
            watch = GrowthWatch(spec.renewal, self._service.clock, memory_of_its_own)
            self._service.schedule_periodically(
                partial(self._look_at_growth, watch), spec.renewal.interval
            )

    async def ready(self) -> bytes:
        """Encoded: (True, address) or (False, the error of the start)."""
        return self._answer

    async def carry(self, request: bytes) -> bytes:
        """For peers that cannot connect: see :mod:`flinkray.rpc.wire.call_transport`."""
        return await self._service.carry(request)

    async def park(self) -> bool:
        """Return when the process is about to end; fails, by Ray, when it dies.

        False: it goes on, and is to be asked again.  Who has asked may be dead by now, and Ray
        keeps what a dead process has called, its connection included, until that returns.
        """
        try:
            await within(PARKED, self._leaving.wait())
        except asyncio.TimeoutError:
            return False
        return True

    def __repr__(self) -> str:
        return getattr(self, "_name", type(self).__name__)

    def _main_ended(self, endpoint: RpcEndpoint, restarts: bool) -> None:
        error = endpoint.terminated.exception()
        if error is not None and restarts:
            logger.error("%s failed and leaves its restart to Ray: %r", self._name, error)
            logging.shutdown()
            os._exit(1)
        self._end_of_service()

    def _look_at_growth(self, watch: GrowthWatch) -> None:
        if grown := watch.grown():
            logger.warning(
                "%s has grown by %s, and makes way for a fresh process: Ray starts it again",
                self._name,
                format_memory_size(grown),
            )
            logging.shutdown()
            os._exit(1)

    def _end_of_service(self) -> None:
        if self._end_task is None:
            self._end_task = asyncio.create_task(self._end(0.0))

    async def _end(self, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            await self._service.close()
        except Exception:
            logger.exception("%s ended with an error", self._name)
        finally:
            # so late, because others must find it to kill it if it hangs while it ends
            await self._service.sign_off()
            self._leaving.set()
            # Not exit_actor: it waits until the calls that this process has open have been
            # answered, and each of its watches is one that only the other's end answers.
            await asyncio.get_running_loop().run_in_executor(None, self._kill_itself)

    def _kill_itself(self) -> None:
        ray.kill(self._actor, no_restart=True)


class PrestartedProcess(RayProcess):
    """A process that is to become another one (see :mod:`flinkray.rpc.ray.prestarted`)."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it on the actor's loop
        self, namespace: str, name: str, imports: tuple[str, ...], ahead: tuple[str, ...]
    ) -> None:
        from flinkray.rpc.ray.directory import RayDirectory
        from flinkray.rpc.ray.prestarted import Prestarted
        from flinkray.rpc.ray.service import RayRpcService

        end_with_the_loop()
        for module in imports:
            importlib.import_module(module)
        self._actor = ray.get_runtime_context().current_actor
        self._name = name
        self._leaving = asyncio.Event()
        self._end_task = None
        self._service = prestarted_service = await RayRpcService.open_process(
            namespace, name, self._end_of_service
        )
        prestarted = Prestarted(prestarted_service)
        prestarted.start()
        directory = RayDirectory(namespace)
        await prestarted_service.run_blocking(directory.prestarted_ready, name)
        importing = asyncio.create_task(_import_ahead(ahead))
        role = await prestarted.role
        importing.cancel()
        await prestarted_service.run_blocking(directory.remove_prestarted, name)
        try:
            load_factory(role.factory)
            spec: EndpointSpec = codec.decode(role.spec)
        except FlinkRayError as error:
            logger.exception("%s cannot become what it is to be", name)
            role.answer.set_result(failed_start(error))
            self._end_task = asyncio.create_task(self._end(FAILED_START_LINGER))
            return
        self._name = spec.name  # as Ray shows it, which asks only now
        self._service = await RayRpcService.open_process(
            namespace, spec.name, self._end_of_service, actor_name=name
        )
        await self._host(role.factory, role.spec)
        if role.owner is not None:
            self._service.watch_process(role.owner, self._owner_ended)
        role.answer.set_result(self._answer)
        self._closing = asyncio.create_task(self._close_prestarted(prestarted_service))

    async def _close_prestarted(self, service: RayRpcService) -> None:
        await asyncio.sleep(0)  # the answer goes first
        await service.close()
        await service.sign_off()

    def _owner_ended(self, reason: str) -> None:
        logger.info("%s ends with its owner: %s", self._name, reason)
        self._end_of_service()


async def _import_ahead(modules: tuple[str, ...]) -> None:
    """One after the other: a role that comes waits for one at most."""
    await asyncio.sleep(IMPORT_AHEAD_AFTER)
    for module in modules:
        importlib.import_module(module)
        await asyncio.sleep(0)


def prestarted_class() -> Any:
    """The actor class of prestarted processes."""
    return _remote("Prestarted", PrestartedProcess)


def process_class(kind: str) -> Any:
    """The actor class of that name."""
    return _remote(kind, RayProcess)


def _remote(kind: str, base: type) -> Any:
    cls = type(
        kind,
        (base,),
        {
            "__module__": "flinkray.processes",  # not importable: travels with the actor
            "__qualname__": kind,
            "__doc__": f"A process of kind {kind}.",
        },
    )
    # By an option of the actor: ray.method refuses this one in a process that has joined by ray://.
    options: dict[str, Any] = {"enable_task_events": False}  # Ray's own types do not know it
    return ray.remote(**options)(cls)
