"""A process of the cluster: the Ray actor that hosts an endpoint.

Ray places, names, supervises and restarts the actor; messages between endpoints go through the
actor's methods only for peers that cannot connect directly.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from flinkray.core.clock import Clock
from flinkray.core.errors import FlinkRayError, RpcSerializationError
from flinkray.core.garbage_collection import spare_what_is_there
from flinkray.core.resources import format_memory_size
from flinkray.rpc.local_service import create_endpoint
from flinkray.rpc.spec import Renewal, load_factory
from flinkray.rpc.time_limit import within
from flinkray.rpc.wire import codec

if TYPE_CHECKING:
    from flinkray.rpc.endpoint import RpcEndpoint
    from flinkray.rpc.ray.service import RayRpcService
from flinkray.rpc.spec import EndpointSpec

logger = logging.getLogger(__name__)

FAILED_START_LINGER = 10.0
"""Seconds that a process whose first start failed lives on, so that its spawner can ask why."""

_LOOP_END_GRACE = 2.0
"""Seconds that Ray has to end a process after stopping the process's event loop."""

PARKED = 120.0
"""Seconds for which a call that waits for the end of the process stays open."""

IMPORT_AHEAD_AFTER = 0.5
"""Seconds from the readiness of a prestarted process until it imports modules ahead.

A caller that waits for the process comes at once, and goes first.
"""

RESTART_PAUSE = 1.0
"""Seconds between a failed start after a restart and the next start."""


def end_with_the_loop() -> None:
    """End this process when its event loop ends: without the loop it would answer nobody."""
    thread = threading.current_thread()
    join, exit_process, pause = thread.join, os._exit, threading.Event().wait  # may be spoilt later

    def watch() -> None:
        join()
        pause(_LOOP_END_GRACE)
        exit_process(1)

    threading.Thread(target=watch, name="end with the loop", daemon=True).start()


def failed_start(error: Exception) -> bytes:
    """Return the encoded answer to a spawner whose process has failed to start with *error*."""
    try:
        return codec.encode((False, error))
    except RpcSerializationError:  # it holds something that cannot be sent
        return codec.encode((False, codec.decode(codec.encode_error_in_short(error))))


class RayProcess:
    """Base of the actor classes that host processes. Each kind of process has a subclass."""

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
        """Create and start the endpoint of the spec, and set ``self._answer`` to its address or the
        error."""
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
        # The imported modules stay in memory: with Ray's and our modules, each full garbage
        # collection takes tens of milliseconds, in which no call is answered, and 1,000 calls under
        # way cause such collections.
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
        """Return, encoded, (True, address) or (False, the error of the start)."""
        return self._answer

    async def carry(self, request: bytes) -> bytes:
        """Handle one call of a peer that cannot connect, and return the answer
        (:mod:`flinkray.rpc.wire.call_transport`)."""
        return await self._service.carry(request)

    async def park(self) -> bool:
        """Wait until the process is about to end, and return True.
        Peers call this to notice its death: Ray lets the call fail when the process dies.

        Returns False after :data:`PARKED` seconds; then the caller asks again. The wait is limited
        because the caller may be dead by now: Ray keeps the calls of a dead process, and its
        connection, until the calls return.
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
            # only now, because others must find the process to kill it if it hangs while ending
            await self._service.sign_off()
            self._leaving.set()
            # Not exit_actor: it waits until the open calls of this process have been answered, and
            # each watch is a call that is answered only at the other process's end.
            await asyncio.get_running_loop().run_in_executor(None, self._kill_itself)

    def _kill_itself(self) -> None:
        ray.kill(self._actor, no_restart=True)


class PrestartedProcess(RayProcess):
    """A process that becomes another process later (see :mod:`flinkray.rpc.ray.prestarted`)."""

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
        self._name = spec.name  # the name that Ray shows: Ray asks for it only now
        self._service = await RayRpcService.open_process(
            namespace, spec.name, self._end_of_service, actor_name=name
        )
        await self._host(role.factory, role.spec)
        if role.owner is not None:
            self._service.watch_process(role.owner, self._owner_ended)
        role.answer.set_result(self._answer)
        self._closing = asyncio.create_task(self._close_prestarted(prestarted_service))

    async def _close_prestarted(self, service: RayRpcService) -> None:
        await asyncio.sleep(0)  # send the answer first
        await service.close()
        await service.sign_off()

    def _owner_ended(self, reason: str) -> None:
        logger.info("%s ends with its owner: %s", self._name, reason)
        self._end_of_service()


async def _import_ahead(modules: tuple[str, ...]) -> None:
    """Import the modules one after the other. A role that comes meanwhile waits for one import
    only."""
    await asyncio.sleep(IMPORT_AHEAD_AFTER)
    for module in modules:
        importlib.import_module(module)
        await asyncio.sleep(0)


def prestarted_class() -> Any:
    """Return the actor class of prestarted processes."""
    return _remote("Prestarted", PrestartedProcess)


def process_class(kind: str) -> Any:
    """Return the actor class for processes of *kind*, named after the kind."""
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
    # As an option of the actor: ray.method refuses this in a process that has joined by ray://.
    options: dict[str, Any] = {"enable_task_events": False}  # not in Ray's type hints
    return ray.remote(**options)(cls)


_STATUS = Path("/proc/self/status")
_OF_ITS_OWN = "RssAnon:"


def memory_of_its_own() -> int | None:
    """Return the process's resident bytes without files and shared memory; None: not on Linux."""
    try:
        lines = _STATUS.read_text().splitlines()
    except FileNotFoundError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith(_OF_ITS_OWN)), None
    )


class GrowthWatch:
    """Decides when a process has grown so much that a fresh process should replace it.

    The growth is measured from the creation of this object, at the start of the process.
    """

    def __init__(self, renewal: Renewal, clock: Clock, memory: Callable[[], int | None]) -> None:
        self._renewal = renewal
        self._clock = clock
        self._memory = memory
        self._start = clock.monotonic()
        self._at_start = memory()

    def grown(self) -> int:
        """Return the growth in bytes if the process should be replaced now. Otherwise 0."""
        now = self._memory()
        if now is None or self._at_start is None:
            return 0
        grown = now - self._at_start
        is_old = self._clock.monotonic() - self._start >= self._renewal.age
        return grown if is_old and grown > self._renewal.growth else 0
