"""The RPC service on Ray: processes are named actors, messages go over direct connections."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random
from typing import Any, TypeVar

import ray
from ray.util.client import ray as ray_client

from flinkray.core.errors import (
    HandshakeError,
    ProcessExistsError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcError,
    StoredFormatError,
)
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.connection_pool import Opened
from flinkray.rpc.clock import SystemClock
from flinkray.rpc.ray.actors import RayActors, death_of, is_node_dead
from flinkray.rpc.ray.dialler import RayDialler, Whereabouts
from flinkray.rpc.ray.directory import ProcessRecord, RayDirectory, turn_of
from flinkray.rpc.ray.head import ProcessEndsError, RayHead
from flinkray.rpc.ray.metrics import MetricsExporter
from flinkray.rpc.ray.prestarted import PrestartedKeeper, PrestartedTaker
from flinkray.rpc.service import RpcService, TransportChoice
from flinkray.rpc.serving.base_service import BaseRpcService
from flinkray.rpc.spec import EndpointSpec, process_of
from flinkray.rpc.time_limit import within
from flinkray.rpc.wire import handshake
from flinkray.rpc.wire.call_transport import AnsweringStream, Carrier
from flinkray.rpc.wire.frames import FrameStream
from flinkray.rpc.wire.listener import HANDSHAKE_TIMEOUT, Listener, SocketAccess
from flinkray.rpc.wire.tls import tls_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_AGAIN = 0.02
"""Seconds between two looks whether a process has ended by itself."""

_CALLS_END_TIMEOUT = 5.0
"""Seconds that a closing service waits for its calls to Ray."""


class RayRpcService(BaseRpcService):
    """The RPC service of one process on a Ray cluster: of an actor or a driver.

    Create it with :meth:`open`. A driver's service can do all that an actor's can; other processes
    find it under its ``process_name`` as long as it is open.
    """

    def __init__(
        self,
        namespace: str,
        process_name: str,
        secret: bytes,
        *,
        ask_timeout: float,
        transport: TransportChoice = "auto",
    ) -> None:
        """Create a service that is not open. Use :meth:`open` instead."""
        super().__init__(
            process_name,
            uuid.uuid4().hex,
            clock=SystemClock(),
            random=Random(),
            ask_timeout=ask_timeout,
        )
        self.namespace = namespace
        self.is_restart = False
        """Whether Ray has restarted this process after its death."""
        self.actor_name = process_name
        """The name of the hosting actor; differs from the process name after a prestart."""
        self.turn = 1
        """The number of the role in the hosting actor (:attr:`ProcessRecord.turn`)."""
        self.head = RayHead(process_name)
        """Asks Ray's head; all calls to Ray in this process go through this object."""
        self._directory = RayDirectory(namespace)
        self._secret = secret
        self._on_end: Callable[[], None] | None = None
        self._actors = RayActors(namespace, self.head)
        self._tls = tls = tls_of(os.environ)
        self._listener = Listener(
            lambda: FrameStream(self.max_frame_size),
            self._welcome,
            lambda reason: self.refuse_frame("an unknown peer", reason),
            self.create_task,
            None if tls is None else tls.server,
        )
        self._carrier = Carrier(
            lambda stream: _ignore(self.create_task(self._welcome(stream), "welcome a peer")),
            lambda: self.max_frame_size,
        )
        # a driver of Ray Client is on no node of the cluster
        is_outside = bool(ray_client.is_connected())
        node_id = None if is_outside else ray.get_runtime_context().get_node_id()
        self._dialler = RayDialler(
            namespace,
            self.identity,
            secret,
            node_id,
            tls,
            transport,
            self.head.ask,
            lambda: self.max_frame_size,
        )
        self._prestarted = PrestartedTaker(
            self, self._directory, self.head.ask, self._end_prestarted
        )
        self._keeper_of_prestarted: PrestartedKeeper | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._taken_children: set[str] = set()
        """Names of the spawned processes that were prestarted and die with this one."""

    @classmethod
    async def open(
        cls,
        namespace: str,
        process_name: str | None = None,
        *,
        ask_timeout: float = RpcService.DEFAULT_ASK_TIMEOUT,
        transport: TransportChoice = "auto",
        actor_name: str | None = None,
        turn: int = 1,
    ) -> RayRpcService:
        """Join the cluster of *namespace* with this process, on the running loop.

        *process_name* defaults to ``client-<random>``. *transport*: with "auto", messages go over
        direct connections where they can be opened, and elsewhere through Ray's actor calls, which
        are slower; "direct" and "ray" allow only the one or the other. Drivers are always reached
        directly. *actor_name* is the name of the hosting actor, if it differs from *process_name*;
        *turn* counts the roles of a prestarted process.

        Raises:
            RuntimeError: Ray is not initialised in this process.
            ConfigurationError: Ray's TLS is on, and its files are missing.
        """
        if not ray.is_initialized():
            raise RuntimeError("Ray is not initialised in this process: call ray.init first")
        name = process_name or f"client-{uuid.uuid4().hex[:8]}"
        loop = asyncio.get_running_loop()
        secret = await loop.run_in_executor(None, RayDirectory(namespace).secret)
        service = cls(namespace, name, secret, ask_timeout=ask_timeout, transport=transport)
        service.actor_name = actor_name or name
        service.turn = turn
        try:
            await service._listen()
        except BaseException:
            await service.close()
            raise
        if service._dialler.node_id is not None:  # Ray Client has no metrics
            service.create_task(service._export_metrics(), "export metrics")
        return service

    @classmethod
    async def open_process(
        cls,
        namespace: str,
        process_name: str,
        on_end: Callable[[], None],
        actor_name: str | None = None,
        turn: int = 1,
    ) -> RayRpcService:
        """Open the service for the actor that hosts a process.

        *on_end* ends the process; *actor_name* and *turn* as for :meth:`open`. Others find the
        process by its name until :meth:`sign_off`, even after this service is closed.
        """
        service = await cls.open(namespace, process_name, actor_name=actor_name, turn=turn)
        service._on_end = on_end
        return service

    @property
    def transport(self) -> TransportChoice:
        return self._dialler.choice

    @transport.setter
    def transport(self, choice: TransportChoice) -> None:
        self._dialler.choice = choice

    @property
    def avoids_head_node(self) -> bool:
        return self._actors.avoids_head_node

    @avoids_head_node.setter
    def avoids_head_node(self, value: bool) -> None:
        self._actors.avoids_head_node = value

    @property
    def outage(self) -> str | None:
        return self.head.outage

    @property
    def socket_access(self) -> SocketAccess | None:
        node_id = self._dialler.node_id
        if node_id is None:
            return None
        host: str = ray.util.get_node_ip_address()
        return SocketAccess(host, node_id, self._secret, self._tls)

    @property
    def has_own_process(self) -> bool:
        return True

    @property
    def devices(self) -> Mapping[str, tuple[str, ...]]:
        ids: dict[str, list[str]] = ray.get_runtime_context().get_accelerator_ids()
        return {name: tuple(map(str, of_name)) for name, of_name in ids.items() if of_name}

    async def _export_metrics(self) -> None:
        exporter = MetricsExporter(self.namespace, self.process_name)
        try:
            while (interval := self.metrics_export_interval) > 0:
                await asyncio.sleep(interval)
                if self.metrics_export_interval <= 0:
                    return
                samples = [sample for sampler in self.samplers for sample in sampler()]
                figures = self.metrics, self.refused_frames, len(self.connections()), samples
                try:
                    exported = self.loop.run_in_executor(None, exporter.export, *figures)
                except RuntimeError:  # the interpreter is ending, and nobody closed this service
                    return
                await exported
        finally:
            exporter.end()

    # --- being reached ------------------------------------------------------------------------

    async def _listen(self) -> None:
        host: str = ray.util.get_node_ip_address()
        record = ProcessRecord(
            incarnation=self.incarnation,
            node_id=self._dialler.node_id,
            host=host,
            port=self._listener.listen_tcp(host),
            unix_path=self._listener.listen_unix(f"flinkray-{self.incarnation}"),
            has_tls=self._listener.has_tls,
            actor_id=ray.get_runtime_context().get_actor_id(),
            actor_name=self.actor_name,
            pid=os.getpid(),
            turn=self.turn,
        )
        before = await _if_readable(self.head.ask(self._directory.get, self.process_name))
        self.is_restart = (
            before is not None
            and before.actor_id is not None
            and before.actor_id == record.actor_id
        )
        await self.head.ask(self._directory.put, self.process_name, record)

    async def carry(self, request: bytes) -> bytes:
        """Handle one call of a connection whose frames Ray's calls carry, and return the answer.
        Called by the actor that hosts the process."""
        return await self._carrier.carry(request)

    async def _welcome(self, stream: FrameStream | AnsweringStream) -> None:
        try:
            identity = await within(
                HANDSHAKE_TIMEOUT,
                handshake.receive(stream, self._secret, self.process_name, self.incarnation),
            )
        except (RpcConnectionError, asyncio.TimeoutError) as error:
            self.refuse_frame("an unknown peer", f"handshake: {error!r}")
            stream.close()
            return
        except asyncio.CancelledError:
            stream.abort("it was turned away, or the service was closed")
            raise
        stream.attach(self.new_peer(stream, identity))

    # --- reaching others ----------------------------------------------------------------------

    async def _open_transport(self, process_name: str, where: Whereabouts | None) -> Opened:
        if where is None:
            record, was_carried = await self._find(process_name), None
        else:
            record, was_carried = where.record, where.is_carried
        stream, is_carried = await self._dialler.dial(process_name, record, was_carried)
        return Opened(stream, record.incarnation, Whereabouts(record, is_carried))

    async def _find(self, process_name: str) -> ProcessRecord:
        try:  # patiently: an absent head says nothing about the process, which may be watched
            record = await self.head.ask_patiently(self._directory.get, process_name)
        except StoredFormatError as error:
            raise RpcConnectionError(str(error)) from error
        if record is None:
            raise RpcConnectionError(f"no process {process_name} is running")
        return record

    def _connection_opened(self, connection: ClientConnection) -> None:
        where = connection.where
        assert isinstance(where, Whereabouts)
        # a connection that Ray carries ends with the calls that carry it
        if where.record.actor_id is not None and not where.is_carried:
            sentinel = self.create_task(
                self._guard(connection, where.record), f"hear of {connection.process_name}'s death"
            )
            connection.on_lost(lambda: _ignore(sentinel.cancel()))

    async def _guard(self, connection: ClientConnection, record: ProcessRecord) -> None:
        """Watch the process of *record*, and break the connection to it when Ray reports the death
        of the process or of its node."""
        assert record.actor_id is not None
        try:
            reason = await death_of(
                self.head.ask,
                connection,
                self.namespace,
                record.actor_name,
                record.actor_id,
                record.incarnation,
                record.node_id,
                self.ask_timeout,
                self._give_up,
            )
        except ProcessEndsError:
            return
        logger.info("%s: %s", connection.process_name, reason)
        connection.peer_died = True
        connection.break_off(reason)

    def _give_up(self, call: Any) -> None:
        """Ask Ray to cancel a call to an actor, because nobody waits for its answer."""
        if self._closing is None and ray.is_initialized():
            self.head.soon(ray.cancel, call)

    # --- starting and ending others -----------------------------------------------------------

    async def spawn(self, spec: EndpointSpec) -> str:
        if spec.may_take_over:
            if await self._is_running(spec.name):
                raise ProcessExistsError(spec.name)
            address = None if self.transport == "ray" else await self._prestarted.spawn(spec)
            if address is not None:
                if not spec.detached:
                    self._taken_children.add(spec.name)
                    self.watch(address, lambda _: self._taken_children.discard(spec.name))
                return address
        return await self._actors.start(spec, self._is_running)

    def keep_prestarted(
        self,
        number: int,
        imports: tuple[str, ...] = (),
        ahead: tuple[str, ...] = (),
        roles: int = 1,
    ) -> None:
        async def create(name: str) -> None:
            await self._actors.create_prestarted(name, imports, ahead, roles)

        self._keeper_of_prestarted = keeper = PrestartedKeeper(
            self, self._directory, self.head.ask, create, self._end_prestarted, self._actors.exists
        )
        if number:
            self._keeping = self.create_task(keeper.keep(number), "keep prestarted processes")

    async def end_prestarted(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        if self._keeper_of_prestarted is not None:
            await self._keeper_of_prestarted.end_all()

    async def _end_prestarted(self, name: str) -> None:
        """Kill the actor of the prestarted process *name*, which may have its role since. Does
        nothing if that role is over and the actor waits for another one, or has it."""
        mark = uuid.uuid4().hex
        if await self.head.ask_patiently(self._directory.may_end, name, mark):
            actor_name, _ = turn_of(name)
            await self._actors.kill(actor_name)

    async def _is_running(self, process_name: str) -> bool:
        try:
            connection = await self._connection(process_name)
            return await connection.ping(self.ask_timeout)
        except RpcError:
            return False

    async def kill(self, process_name: str, patience: float = 0.0) -> None:
        find = partial(self.head.ask_patiently, self._directory.get, process_name)
        record = await _if_readable(find())
        self._taken_children.discard(process_name)
        if record is not None and record.actor_name != process_name:
            give_up = self.loop.time() + patience
            while self.loop.time() < give_up:
                now = await _if_readable(find())
                if now is None or now.incarnation != record.incarnation:
                    return
                await asyncio.sleep(_LOOK_AGAIN)
        await self._actors.kill(process_name)
        if record is not None and record.actor_name != process_name:
            await self._end_prestarted(record.name_before)
        if record is not None and record.actor_id is not None:
            await self.head.ask_patiently(self._directory.remove, process_name, record.incarnation)

    async def is_dead(self, identity: str) -> bool:
        name = process_of(identity)
        try:
            record = await self.head.ask(self._directory.get, name)
        except (ray.exceptions.RayError, StoredFormatError):
            return False
        if record is None or f"{name}#{record.incarnation}" != identity:
            return True  # the process has signed off, or Ray has started it again
        if await self._is_running(name):
            return False
        if await self._dialler.is_refused(record):
            return True
        return bool(await self.head.ask(is_node_dead, record.node_id))

    async def process_names(self, prefix: str) -> tuple[str, ...]:
        return tuple(await self.head.ask_patiently(self._directory.names, prefix))

    async def stop(self, process_name: str) -> None:
        try:
            connection = await self._connection(process_name)
        except HandshakeError:
            raise
        except RpcConnectionError:
            await self.kill(process_name)  # dead, or about to be restarted
            return
        lost = self.loop.create_future()
        connection.on_lost(lambda: None if lost.done() else lost.set_result(None))
        try:
            await connection.stop_process()
        except RecipientUnreachableError:
            await self.kill(process_name)  # it has just died, and must not be restarted
            return
        await lost
        self._actors.forget(process_name)

    async def _end_children(self) -> None:
        for process_name in (*self._taken_children, *self._actors.children()):
            await self.kill(process_name)  # this removes its record, too

    async def _end_process(self) -> None:
        if self._on_end is not None:
            self._on_end()
        else:
            await self.close()

    async def _release(self) -> None:
        await self._listener.close()
        if self._on_end is None:
            await self.sign_off()
        await super()._release()
        await self.head.close(_CALLS_END_TIMEOUT)

    async def sign_off(self) -> None:
        """Remove the process's record, so that nobody finds the process by its name any more."""
        if ray.is_initialized():
            remove = partial(self._directory.remove, self.process_name, self.incarnation)
            try:
                await within(_CALLS_END_TIMEOUT, self.loop.run_in_executor(None, remove))
            except (ray.exceptions.RayError, asyncio.TimeoutError) as error:
                logger.warning("%s could not sign off at Ray: %r", self.process_name, error)


def _ignore(result: object) -> None:
    """Do nothing; for callbacks whose result is not needed."""


async def _if_readable(record: Awaitable[ProcessRecord | None]) -> ProcessRecord | None:
    """Return the record of a process that is about to be started or ended. None if it cannot be
    read: an old record does not matter then."""
    try:
        return await record
    except StoredFormatError as error:
        logger.warning("%s", error)
        return None
