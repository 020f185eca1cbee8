"""Simulates Ray's role: starts, restarts and ends processes, and knows which are alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flinkray.core.errors import ProcessExistsError, RpcConnectionError
from flinkray.core.ids import WorkerGroupId
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.endpoint import RpcEndpoint
from flinkray.rpc.local_service import create_endpoint
from flinkray.rpc.spec import EndpointSpec
from flinkray.rpc.time_limit import retrieve
from flinkray.rpc.wire import codec
from flinkray.testing.simulation.interfaces import World
from flinkray.testing.simulation.network import NetworkedService
from flinkray.testing.simulation.process import SimulatedProcess

logger = logging.getLogger(__name__)

_NAME_FREED_TIMEOUT = 10.0
"""Seconds that a spawn waits while a process of the same name starts or ends."""
_NAME_FREED_POLL = 0.02
_APART = 1e-9
"""Seconds between two requests of a process: the first begins before the second."""
_PLACEMENT_POLL = 0.1
"""Seconds between two checks whether the bundle of a new process has a node."""


@dataclass(eq=False)
class _Record:
    """What the supervisor knows about a spawned process: its spec, and the process that now has its
    name."""

    spec: EndpointSpec
    owner: str
    restarts_left: int
    ask_timeout: float
    answer: asyncio.Future[str]
    """The answer to the spawn request; belongs to the supervisor's process."""
    process: SimulatedProcess | None = None


class Supervisor:
    """Starts, restarts and ends simulated processes, as Ray does. It runs in a process of its own,
    which never fails. Its answers take virtual time."""

    def __init__(self, simulation: World) -> None:
        self._simulation = simulation
        self._network = simulation.network
        self._scheduler = simulation.scheduler
        self._process = simulation.scheduler.new_process("supervisor")
        self._records: dict[str, _Record] = {}
        self._children: dict[str, dict[str, None]] = {}
        """For each spawner: the names of the processes that it spawned, the newest last."""
        self._in_group: dict[WorkerGroupId, dict[str, None]] = {}
        """For each worker group: the names of the processes in it."""
        self._guarded: dict[SimulatedProcess, dict[ClientConnection, SimulatedProcess]] = {}
        """For each process: the connections to it, and their owners."""
        self._last_arrivals: dict[SimulatedProcess, float] = {}
        """The time at which the last request of each process arrives.

        Requests arrive in the order of sending.
        """

    # --- asked by services, in their processes ----------------------------------------------------

    async def spawn(self, spec: EndpointSpec, spawner: NetworkedService) -> str:
        _refuse_banished(spawner.process)
        answer: asyncio.Future[str] = spawner.process.create_future()

        async def work() -> None:
            try:
                result = await self._spawn(spec, spawner, is_wanted=lambda: not answer.cancelled())
            except Exception as error:  # noqa: BLE001 - passed to the spawner
                spawner.process.post(self._network.latency(), _fail, answer, error)
            else:
                spawner.process.post(self._network.latency(), _succeed, answer, result)

        self._post(work)
        try:
            return await answer
        except asyncio.CancelledError:
            self._post(self._kill, spec.name)
            raise

    async def kill(self, process_name: str) -> None:
        """Kill a process; return when it is killed. Raises RpcConnectionError: the caller's process
        is taken for dead."""
        running = asyncio.get_running_loop()
        assert isinstance(running, SimulatedProcess)
        _refuse_banished(running)
        done: asyncio.Future[None] = running.create_future()

        def kill() -> None:
            self._kill(process_name)
            running.post(self._network.latency(), _succeed, done, None)

        self._post(kill)
        await done

    def process_names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of the living processes that begin with *prefix*, also of processes that
        are ending."""
        names = {*self._records, *self._network.services}
        return tuple(sorted(name for name in names if name.startswith(prefix)))

    def guard(self, connection: ClientConnection, process: SimulatedProcess) -> None:
        """Break *connection*, which belongs to *process*, when the supervisor notices that the
        process at its other end has died; at once if it is dead already."""
        target = self._network.services.get(connection.process_name)
        if target is None or target.incarnation != connection.incarnation:
            process.post(self._network.latency(), _break, connection)
            return
        guarded = self._guarded.setdefault(target.process, {})
        guarded[connection] = process

        def lost() -> None:
            guarded.pop(connection, None)

        connection.on_lost(lost)

    def end_children(self, owner: str) -> None:
        """End the processes that *owner*, which is ending, has spawned and that are to die with
        it."""
        self._post(self._orphan, owner, False)

    async def end(self, service: NetworkedService) -> None:
        """End the process of *service* after its work has ended normally. Does not return."""
        try:
            await service.close()
        except Exception:
            logger.exception("%s ended with an error", service.process_name)
        self._exit(service.process, service.process_name, "it has ended")

    # --- outside of any process, or in the supervisor's -------------------------------------------

    def has(self, process_name: str) -> bool:
        """Return whether a process with this name is alive, starts or will be started again."""
        return process_name in self._records

    def remove_group(self, group: WorkerGroupId) -> None:
        """Kill the processes that were placed in a worker group."""
        for name in self._in_group.pop(group, ()):
            self._post(self._kill, name)

    def process_died(
        self, process: SimulatedProcess, names: tuple[str, ...], noticed_after: float
    ) -> None:
        """Called when a process has died. After *noticed_after* seconds the supervisor breaks the
        connections to it, ends the processes that die with it, and restarts it if its spec says so.
        *names*: the names by which the process was known."""
        self._last_arrivals.pop(process, None)
        self._process.post(noticed_after, self._found_dead, process, names)

    def _post(self, callback: object, *args: object) -> None:
        arrival = self._scheduler.now + self._network.latency()
        sender = self._scheduler.current
        if sender is not None:
            arrival = max(arrival, self._last_arrivals.get(sender, 0.0) + _APART)
            self._last_arrivals[sender] = arrival
        self._process.post(arrival - self._scheduler.now, self._begin, callback, args)

    def _begin(self, callback: object, args: tuple[object, ...]) -> None:
        result = callback(*args)  # type: ignore[operator]
        if asyncio.iscoroutine(result):
            self._process.create_task(result)

    async def _spawn(
        self, spec: EndpointSpec, spawner: NetworkedService, is_wanted: Callable[[], bool]
    ) -> str:
        give_up = self._scheduler.now + _NAME_FREED_TIMEOUT
        while spec.name in self._records or spec.name in self._network.services:
            service = self._network.services.get(spec.name)
            if (service is not None and service.endpoints()) or self._scheduler.now > give_up:
                raise ProcessExistsError(spec.name)
            await asyncio.sleep(_NAME_FREED_POLL)
            if not is_wanted():
                raise RpcConnectionError(f"{spec.name} is not wanted any more")
        if not spawner.is_up and not spec.detached:
            raise RpcConnectionError(f"{spawner.process_name}, which wanted {spec.name}, is gone")
        # pass the spec through the codec, as every other service has to send it
        spec = codec.decode(codec.encode(spec))
        record = self._records[spec.name] = _Record(
            spec,
            spawner.process_name,
            spec.max_restarts,
            spawner.ask_timeout,
            self._process.create_future(),
        )
        record.answer.add_done_callback(retrieve)
        children = self._children.setdefault(record.owner, {})
        children.pop(spec.name, None)
        children[spec.name] = None
        if spec.placement.worker_group is not None:
            self._in_group.setdefault(spec.placement.worker_group, {})[spec.name] = None
        self._start(record)
        return await record.answer

    def _start(self, record: _Record) -> None:
        spec = record.spec
        if self._records.get(spec.name) is not record:
            return
        try:
            node = self._simulation.place(spec)
        except KeyError:
            self._kill(spec.name)
            return
        if node is None:
            self._process.post(_PLACEMENT_POLL, self._start, record)
            return
        process = record.process = self._simulation.new_process(spec.name, node)
        process.post(self._simulation.durations.start_time(process), self._boot, record, process)

    def _boot(self, record: _Record, process: SimulatedProcess) -> None:
        """Begin to create the endpoint of the new process that *record* describes. Called in that
        process."""
        process.create_task(self._run(record, process))

    async def _run(self, record: _Record, process: SimulatedProcess) -> None:
        """Create the endpoint of the new process that *record* describes, and report it to the
        supervisor. Runs in that process."""
        service = self._simulation.service(record.spec.name, ask_timeout=record.ask_timeout)
        self._network.tell(process, "starts")
        try:
            endpoint = await create_endpoint(service, record.spec)
        except Exception as error:  # noqa: BLE001 - passed to the spawner
            self._process.post(self._network.latency(), self._not_started, record, process, error)
            return
        self._process.post(
            self._network.latency(), self._started, record, process, endpoint.address
        )
        endpoint.terminated.add_done_callback(
            lambda _: self._main_ended(record, process, service, endpoint)
        )

    def _main_ended(
        self,
        record: _Record,
        process: SimulatedProcess,
        service: NetworkedService,
        endpoint: RpcEndpoint,
    ) -> None:
        """Called in a process when its main endpoint has ended. Kills the process if the endpoint
        has failed and the process may be restarted; otherwise ends it normally."""
        if endpoint.terminated.exception() is not None and record.restarts_left != 0:
            self._simulation.kill_process(process, "its main endpoint has failed")
        else:
            process.create_task(self.end(service))

    def _started(self, record: _Record, process: SimulatedProcess, address: str) -> None:
        if record.process is process:
            process.has_started = True
            _succeed(record.answer, address)

    def _not_started(self, record: _Record, process: SimulatedProcess, error: Exception) -> None:
        if record.process is not process:
            return
        if record.answer.done():  # a restart
            self._network.tell(process, "could not be restarted: %r", error)
            self._simulation.kill_process(process, "it could not be restarted")
        else:
            _fail(record.answer, error)
            self._kill(record.spec.name)

    def _found_dead(self, process: SimulatedProcess, names: tuple[str, ...]) -> None:
        for connection, owner in self._guarded.pop(process, {}).items():
            owner.post(self._network.latency(), _break, connection)
        for name in names:
            self._orphan(name, True)
        name = process.name
        record = self._records.get(name)
        if record is None or record.process is not process:
            return
        record.process = None
        if not record.answer.done() or record.restarts_left == 0:
            del self._records[name]
            _fail(record.answer, RpcConnectionError(f"the process {name} died at its start"))
        else:
            record.restarts_left -= 1 if record.restarts_left > 0 else 0
            self._process.post(self._simulation.durations.draw("restart"), self._start, record)

    def _kill(self, name: str) -> None:
        record = self._records.pop(name, None)
        service = self._network.services.get(name)
        process = record.process if record is not None else None
        if record is None and service is not None:
            process = service.process
        if record is not None:
            _fail(record.answer, RpcConnectionError(f"the process {name} died at its start"))
        if process is not None:
            self._simulation.kill_process(process, "it was killed")

    def _orphan(self, owner: str, is_sudden: bool) -> None:
        children = self._children.pop(owner, {})
        for name in children:
            record = self._records.get(name)
            if record is not None and record.owner == owner and not record.spec.detached:
                delay = self._simulation.durations.draw("orphans_live") if is_sudden else 0.0
                self._process.post(delay, self._kill_orphan, name, record)

    def _kill_orphan(self, name: str, record: _Record) -> None:
        if self._records.get(name) is record:
            self._kill(name)

    def _exit(self, process: SimulatedProcess, name: str, reason: str) -> None:
        record = self._records.get(name)
        if record is not None and record.process is process:
            del self._records[name]
        if process is not self._simulation.main_process:
            self._simulation.kill_process(process, reason)


def _refuse_banished(process: SimulatedProcess) -> None:
    if process.is_banished:
        raise RpcConnectionError(f"{process.name} is not served: it is taken for dead")


def _break(connection: ClientConnection) -> None:
    connection.peer_died = True
    if not connection.is_lost:
        connection.break_off(f"the process {connection.process_name} died")


def _succeed(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        with contextlib.suppress(asyncio.InvalidStateError):
            future.set_exception(error)
