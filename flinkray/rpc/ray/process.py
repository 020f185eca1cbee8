"""A process of the cluster: the Ray actor that hosts an endpoint.

Ray places, names, supervises and restarts the actor; messages between endpoints go through the
actor's methods only for peers that cannot connect directly.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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

GO_BACK_TIMEOUT = 10.0
"""Seconds that a prestarted process has to end a role, if it is to have another one."""

LEFT_TIMEOUT = 2.0
"""Seconds after the end of a role in which all that it had must be gone."""
LEFT_POLL = 0.02

IMPORT_NICENESS = 5
"""Niceness of a thread that imports modules ahead: it gets a quarter of a core on which another
thread computes. With the highest one, 19, it would get a hundredth, and a job that then waits for
this process would wait for a minute."""

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
        is_ahead: bool,
    ) -> None:
        spare_what_is_there()  # Ray's modules: imports do not collect garbage among them
        os.environ.update(environment)
        end_with_the_loop()
        if is_ahead:
            with suppress(FlinkRayError):  # raised again by _host
                await at_low_priority(load_factory, factory)
        from flinkray.rpc.ray.service import RayRpcService

        self._name = name
        self._actor = ray.get_runtime_context().current_actor
        self._begin()
        self._service = await RayRpcService.open_process(namespace, name, self._end_of_service)
        self._lives[self._service.incarnation] = asyncio.Event()
        await self._host(factory, spec_bytes)

    def _begin(self) -> None:
        self._leaving = asyncio.Event()
        """Set when the process is about to end."""
        self._lives: dict[str, asyncio.Event] = {}
        """Set at the end of an incarnation, by incarnation. Those that have ended are left out."""
        self._end_task: asyncio.Task[None] | None = None

    async def _host(self, factory: str, spec_bytes: bytes) -> None:
        """Create and start the endpoint of the spec, and set ``self._answer`` to its address or the
        error."""
        try:
            load_factory(factory)  # its module registers the messages that the spec may hold
            spec: EndpointSpec = codec.decode(spec_bytes)
            if not self._may_return(spec):
                spare_what_is_there()  # before a job is built
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
        if not self._may_return(spec):
            spare_what_is_there()
        self._answer = codec.encode((True, endpoint.address))
        endpoint.terminated.add_done_callback(lambda _: self._main_ended(endpoint, spec))
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

    async def park(self, incarnation: str | None = None) -> bool:
        """Wait until *incarnation* of the process is about to end, and return True; at once if it
        has ended. None: any incarnation, that is, the end of the actor's process.
        Peers call this to notice its death: Ray lets the call fail when the process dies.

        Returns False after :data:`PARKED` seconds; then the caller asks again. The wait is limited
        because the caller may be dead by now: Ray keeps the calls of a dead process, and its
        connection, until the calls return.
        """
        ends = self._leaving if incarnation is None else self._lives.get(incarnation)
        if ends is None:
            return True
        try:
            await within(PARKED, ends.wait())
        except asyncio.TimeoutError:
            return False
        return True

    def __repr__(self) -> str:
        return getattr(self, "_name", type(self).__name__)

    def _may_return(self, spec: EndpointSpec) -> bool:
        """Return whether this process may have another role after that of *spec*."""
        return False

    def _main_ended(self, endpoint: RpcEndpoint, spec: EndpointSpec) -> None:
        error = endpoint.terminated.exception()
        if error is not None and spec.max_restarts != 0:
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
            await self._end_actor()

    async def _end_actor(self) -> None:
        for ends in (self._leaving, *self._lives.values()):
            ends.set()
        # Not exit_actor: it waits until the open calls of this process have been answered, and
        # each watch is a call that is answered only at the other process's end.
        await asyncio.get_running_loop().run_in_executor(None, self._kill_itself)

    def _kill_itself(self) -> None:
        ray.kill(self._actor, no_restart=True)


class PrestartedProcess(RayProcess):
    """A process that becomes another process later (see :mod:`flinkray.rpc.ray.prestarted`).

    When it has ended a role that ``may_return``, it waits for another one, as a process with
    another name, another incarnation and other connections.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it on the actor's loop
        self,
        namespace: str,
        name: str,
        imports: tuple[str, ...],
        ahead: tuple[str, ...],
        roles: int,
    ) -> None:
        """Wait for the first role, and begin it. *roles*: how many roles the process may have."""
        spare_what_is_there()  # Ray's modules: imports do not collect garbage among them
        end_with_the_loop()
        await at_low_priority(_import_all, imports)
        from flinkray.rpc.ray.directory import RayDirectory

        self._namespace = namespace
        self._actor = ray.get_runtime_context().current_actor
        self._actor_name = self._name = name
        self._ahead, self._roles = ahead, roles
        self._turn = 1
        self._is_shared = False
        self._directory = RayDirectory(namespace)
        self._executor = ThreadPoolExecutor()
        asyncio.get_running_loop().set_default_executor(self._executor)
        self._begin()
        name_in_log_lines("flinkray", lambda: self._name)
        await self._take_role()

    def __repr__(self) -> str:
        # Ray asks once, when the constructor has returned, and shows the answer for ever
        return f"{self._actor_name}, several roles" if self._is_shared else self._name

    def _use_new_executor(self) -> ThreadPoolExecutor:
        """Give the loop another default executor, and return the one it had."""
        before, self._executor = self._executor, ThreadPoolExecutor()
        asyncio.get_running_loop().set_default_executor(self._executor)
        return before

    async def _open(self, name: str) -> RayRpcService:
        from flinkray.rpc.ray.service import RayRpcService

        service = await RayRpcService.open_process(
            self._namespace, name, self._end_of_service, self._actor_name, self._turn
        )
        self._lives[service.incarnation] = asyncio.Event()
        return service

    async def _take_role(self) -> None:
        """Wait for a role, and begin it."""
        from flinkray.rpc.ray.directory import name_in_turn
        from flinkray.rpc.ray.prestarted import Prestarted

        spare_what_is_there()  # not later: what a role leaves would be spared, too
        self._found = Belongings()
        name = name_in_turn(self._actor_name, self._turn)
        self._service = waiting = await self._open(name)
        prestarted = Prestarted(waiting)
        prestarted.start()
        await waiting.run_blocking(self._directory.prestarted_ready, name)
        importing = asyncio.create_task(_import_ahead(self._ahead))
        role = await prestarted.role
        importing.cancel()
        await waiting.run_blocking(self._directory.remove_prestarted, name)
        try:
            load_factory(role.factory)
            spec: EndpointSpec = codec.decode(role.spec)
        except FlinkRayError as error:
            logger.exception("%s cannot become what it is to be", name)
            role.answer.set_result(failed_start(error))
            self._end_task = asyncio.create_task(self._end(FAILED_START_LINGER))
            return
        self._name = spec.name
        self._is_shared = self._is_shared or self._may_return(spec)
        logger.info("%s becomes %s", name, spec.name)
        self._service = await self._open(spec.name)
        await self._host(role.factory, role.spec)
        if role.owner is not None:
            self._service.watch_process(role.owner, self._owner_ended)
        role.answer.set_result(self._answer)
        self._closing = asyncio.create_task(self._close_prestarted(waiting))

    async def _close_prestarted(self, service: RayRpcService) -> None:
        await asyncio.sleep(0)  # send the answer first
        await service.close()
        await service.sign_off()
        self._lives.pop(service.incarnation).set()

    def _may_return(self, spec: EndpointSpec) -> bool:
        return spec.may_return and self._turn < self._roles

    def _main_ended(self, endpoint: RpcEndpoint, spec: EndpointSpec) -> None:
        is_clean = endpoint.terminated.exception() is None and not endpoint.has_run_user_code
        if not is_clean or not self._may_return(spec) or self._end_task is not None:
            super()._main_ended(endpoint, spec)
            return
        role = (weakref.ref(endpoint), weakref.ref(self._service))
        self._end_task = asyncio.create_task(self._go_back(role))

    async def _go_back(self, role: tuple[weakref.ref[Any], ...]) -> None:
        """End the role, and wait for the next one. Ends the process if anything of the role is
        left, or if the process may be about to be killed because of this role.

        *role*: the role's endpoint and RPC service, which must be gone afterwards.
        """
        from flinkray.rpc.ray.directory import name_in_turn

        name, ended = name_in_turn(self._actor_name, self._turn + 1), self._name
        run = asyncio.get_running_loop().run_in_executor
        incarnation = self._service.incarnation
        try:
            is_kept = await run(None, self._directory.goes_back, ended, incarnation, name)
            await within(GO_BACK_TIMEOUT, asyncio.gather(self._closing, self._service.close()))
            self._lives.pop(incarnation).set()
            if not is_kept:
                why = "the cluster keeps no processes ready"
            elif left := await self._left_of(role):
                why = f"this is left: {left}"
            elif not await run(None, self._directory.begin_turn, name):
                why = "it was to be killed"
            else:
                why = ""
        except Exception as error:
            logger.exception("%s was not ended cleanly", ended)
            why = f"{type(error).__name__}: {error}"
        if why:
            logger.info("%s has ended, and its process ends: %s", ended, why)
            try:
                await run(None, self._directory.remove_prestarted, name)
            finally:
                await self._end_actor()
            return
        logger.info("%s has ended, and its process waits for another role as %s", ended, name)
        self._turn += 1
        self._end_task = None
        self._taking = asyncio.create_task(self._take_next_role())

    async def _end_actor(self) -> None:
        try:
            run = asyncio.get_running_loop().run_in_executor
            await run(None, self._directory.forget_turns, self._actor_name)
        finally:
            await super()._end_actor()

    async def _take_next_role(self) -> None:
        """Wait for a role after the first one, and begin it. Ends the process if that fails:
        whoever waits for the role is then told."""
        try:
            await self._take_role()
        except Exception:
            logger.exception("%s could not take another role", self._actor_name)
            await self._end_actor()

    async def _left_of(self, role: tuple[weakref.ref[Any], ...]) -> str:
        """Return what is left of a role after a moment; empty if nothing is."""
        del self._service, self._closing
        self._use_new_executor().shutdown(wait=False)
        give_up = asyncio.get_running_loop().time() + LEFT_TIMEOUT
        while True:
            gc.collect()
            objects = [type(it).__name__ for ref in role if (it := ref()) is not None]
            left = [*objects, *Belongings().since(self._found)]
            if not left or asyncio.get_running_loop().time() > give_up:
                return ", ".join(left)
            await asyncio.sleep(LEFT_POLL)

    def _owner_ended(self, reason: str) -> None:
        logger.info("%s ends with its owner: %s", self._name, reason)
        self._end_of_service()


def name_in_log_lines(package: str, name: Callable[[], str]) -> None:
    """Begin each log line of a package from now on with the name that *name* returns: the log file
    of this process holds the lines of several roles, one after the other."""
    make = logging.getLogRecordFactory()

    def make_with_name(logger_name: str, *args: Any, **named: Any) -> logging.LogRecord:
        record = make(logger_name, *args, **named)
        if logger_name.partition(".")[0] == package:
            record.msg = f"{name()}: {record.msg}"
        return record

    logging.setLogRecordFactory(make_with_name)


class Belongings:
    """The tasks, threads, sockets and files that this process has now."""

    def __init__(self) -> None:
        self._all: dict[str, set[Any]] = {
            "task": set(asyncio.all_tasks()) - {asyncio.current_task()},
            "thread": set(threading.enumerate()),
            "socket": {it for it in gc.get_objects() if isinstance(it, socket.socket)},
            "file": set(_open_files()),
        }

    def since(self, earlier: Belongings) -> Iterator[str]:
        """Describe what was not there earlier."""
        for kind, here in self._all.items():
            for one in here - earlier._all[kind]:
                yield f"{kind} {one}"


def _open_files() -> Iterator[str]:
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this listing
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path.startswith("/") and not path.startswith(("/dev/", "/proc/")):
                yield path


async def at_low_priority(fn: Callable[..., object], *args: object) -> None:
    """Run *fn*, which imports modules, in a thread of low priority: nobody waits for this process,
    and others may need the processor.

    On Linux each thread has a priority of its own, and a process without privileges cannot raise
    it again; so the thread ends.
    """

    def work() -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), IMPORT_NICENESS)
        fn(*args)

    with ThreadPoolExecutor(1, thread_name_prefix="import") as executor:
        await asyncio.get_running_loop().run_in_executor(executor, work)


def _import_all(modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(module)


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
