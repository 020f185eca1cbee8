"""The channels of one process: its partitions, its gates, and the connections between them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flinkray.core.clock import Clock
from flinkray.core.errors import FlinkRayError, RpcConnectionError
from flinkray.rpc.wire.tls import Tls
from flinkray.streaming.network.blocking_partition import BlockingPartition
from flinkray.streaming.network.connection import Connection, ReceivingChannel
from flinkray.streaming.network.credit import FloatingCredit
from flinkray.streaming.network.frames import FAILED, NOT_FOUND, head
from flinkray.streaming.network.input_channels import LocalInputChannel, RemoteInputChannel
from flinkray.streaming.network.input_gate import NetworkInputGate
from flinkray.streaming.network.poller import Poller, PollingSignal
from flinkray.streaming.network.result_partition import PartitionRegistry, ResultPartition
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.sockets import DataAddress
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.network.transport import DataTransport, SocketTransport, Welcome
from flinkray.streaming.network.views import RemoteView
from flinkray.streaming.network.wire import Wire
from flinkray.streaming.time.time_service import WaitingSystemClock

_IDLE_LOOKS = 4
"""Number of looks in a row without use after which a connection counts as idle.
The idle timeout is divided by this number."""


@dataclass(frozen=True, slots=True)
class ChannelSource:
    """Says which subpartition a channel of a gate reads, and in which process it is."""

    partition_id: Hashable
    """Id of the producer's partition: any id, message or string that the message codec knows."""
    subpartition: int
    address: DataAddress
    """Address of the process in which the producer runs; perhaps this process."""


class NetworkEnvironment:
    """Keeps the partitions, input gates and connections of one process.
    All methods may be called from any thread.

    Args:
        process_name: used in errors; other processes must ask for it and *incarnation*.
        secret: the secret of the cluster, which peers have to prove that they know.
        host: address to listen on.
        node_id: processes with the same id use a unix socket between them.
        tls: encrypts connections between nodes. None: they are not encrypted.
        manual_timers: no thread runs timers; the owner of *clock* calls ``timers.run_due()``.
        timers: replaces the timers that a thread calls when they are due.
        transport: replaces the sockets to other processes.
    """

    def __init__(
        self,
        process_name: str,
        secret: bytes,
        *,
        host: str = "127.0.0.1",
        node_id: str | None = None,
        tls: Tls | None = None,
        settings: NetworkSettings | None = None,
        clock: Clock | None = None,
        incarnation: str | None = None,
        manual_timers: bool = False,
        timers: Timers | None = None,
        transport: Callable[[Welcome], DataTransport] | None = None,
    ) -> None:
        self.process_name = process_name
        self.settings = settings or NetworkSettings()
        self.timers = timers or Timers(clock or WaitingSystemClock())
        self._incarnation = incarnation or uuid.uuid4().hex
        self._poller = Poller(process_name)
        self._registry = PartitionRegistry()
        self._lock = threading.Lock()
        self._connections: dict[str, Connection] = {}
        """Connections by the incarnation of the process at the other end."""
        self._others: set[Connection] = set()
        """Second connections to the same process, and connections that are about to end.
        There are two if both sides connected at the same time."""
        self._dialling: dict[str, threading.Lock] = {}
        self._is_closed = False
        self._idle_looks: dict[Connection, tuple[int, int]] = {}
        """Use of each connection: (uses at the last look, looks in a row without use since)."""
        self._is_look_due = False
        self._timer_thread: threading.Thread | None = None
        if not manual_timers and timers is None:
            self._timer_thread = threading.Thread(
                target=self.timers.run, name=f"timers {process_name}", daemon=True
            )
            self._timer_thread.start()
        self._transport: DataTransport = (
            SocketTransport(
                process_name,
                self._incarnation,
                secret,
                host,
                node_id,
                tls,
                self.settings.connect_timeout,
                self._welcome,
            )
            if transport is None
            else transport(self._welcome)
        )
        self.address: DataAddress = self._transport.address
        """Address by which consumers in other processes find this process."""

    # --- producing ----------------------------------------------------------------------------

    def create_partition(
        self,
        partition_id: Any,
        producer: str,
        subpartitions: int,
        *,
        buffer_timeout: float | None = 0.1,
        is_blocking: bool = False,
    ) -> ResultPartition:
        """Create a partition. Its ``subpartitions`` are the channels to write to. *buffer_timeout*:
        seconds until an incomplete buffer is sent. 0: every batch is sent at once. None: only full
        segments are sent. *is_blocking*: consumers read the complete partition, which lies on disk
        until its release. Raises ValueError: a partition with this id exists."""
        name = self._name(producer)
        settings, timers = self.settings, self.timers
        partition: ResultPartition
        if is_blocking:
            partition = BlockingPartition(partition_id, name, subpartitions, settings, timers)
        else:
            partition = ResultPartition(
                partition_id, name, subpartitions, settings, timers, buffer_timeout
            )
        self._registry.add(partition)
        return partition

    def release_partition(self, partition: ResultPartition) -> None:
        """Remove a partition and free its data. Consumers that have not read it to its end fail."""
        self._registry.remove(partition)
        partition.release()

    def fail_partition(self, partition: ResultPartition, reason: str) -> None:
        """Remove a partition whose task has failed. Its consumers fail with this reason."""
        self._registry.remove(partition)
        partition.fail(reason)

    # --- consuming ----------------------------------------------------------------------------

    def create_gate(self, consumer: str, sources: Sequence[ChannelSource]) -> NetworkInputGate:
        """Create the input gate of a task, with one channel per source, in the order of *sources*.
        The task's thread has to call ``listen`` and then ``request`` on the gate."""
        gate = NetworkInputGate(self._name(consumer), self.timers)
        floating = FloatingCredit(self.settings.floating_credit)
        for source in sources:
            if source.address.incarnation == self._incarnation:
                LocalInputChannel(
                    gate,
                    source.partition_id,
                    source.subpartition,
                    self._registry,
                    self.settings,
                    self.timers,
                )
            else:
                RemoteInputChannel(
                    gate,
                    source.partition_id,
                    source.subpartition,
                    source.address.process_name,
                    self._connector(source.address),
                    self.settings,
                    floating,
                    self.timers,
                )
        return gate

    def signal(self) -> PollingSignal:
        """Return a signal for a task's thread, which reads from other processes while it waits."""
        return PollingSignal(self._poller)

    # --- connections --------------------------------------------------------------------------

    def _name(self, task: str) -> str:
        return f"task {task} in {self.process_name}"

    def _connector(
        self, address: DataAddress
    ) -> Callable[[ReceivingChannel], tuple[Connection, int | None]]:
        def connect(channel: ReceivingChannel) -> tuple[Connection, int | None]:
            while True:
                connection = self._connection_to(address)
                number = connection.add_channel(channel)
                if number is not None or not connection.is_leaving:
                    return connection, number
                self._retire(address.incarnation, connection)

        return connect

    def _retire(self, incarnation: str, leaving: Connection) -> None:
        with self._lock:
            if self._connections.get(incarnation) is leaving:
                del self._connections[incarnation]
                self._others.add(leaving)

    def _look_for_idle(self) -> None:
        """Offer to end the connections that were not used for ``connection_idle_timeout`` seconds;
        each ends if the other side does not use it either."""
        with self._lock:
            connections = [*self._connections.values(), *self._others]
            known, self._idle_looks = self._idle_looks, {}
            self._is_look_due = False
            self._look_later()
        for connection in connections:
            uses, idle = known.get(connection, (-1, 0))
            idle = idle + 1 if connection.uses == uses else 0
            if idle >= _IDLE_LOOKS:
                connection.leave()
            self._idle_looks[connection] = connection.uses, idle

    def _look_later(self) -> None:
        """Schedule the next look for idle connections. The lock is held."""
        timeout = self.settings.connection_idle_timeout
        if timeout is None or self._is_look_due or self._is_closed:
            return
        if self._connections or self._others:
            self._is_look_due = True
            when = self.timers.clock.monotonic() + timeout / _IDLE_LOOKS
            self.timers.call_at(when, self._look_for_idle)

    def _connection_to(self, address: DataAddress) -> Connection:
        with self._lock:
            known = self._connections.get(address.incarnation)
            if known is not None:
                return known
            dialling = self._dialling.setdefault(address.incarnation, threading.Lock())
        with dialling:
            with self._lock:
                known = self._connections.get(address.incarnation)
            if known is not None:
                return known
            identity = f"{self._incarnation} {self.process_name}"
            wire = self._transport.dial(address, identity)
            return self._keep(wire, address.incarnation, address.process_name)

    def _welcome(self, wire: Wire, identity: str) -> None:
        incarnation, _, process_name = identity.partition(" ")
        with suppress(RpcConnectionError):  # environment and wire were closed in the meantime
            self._keep(wire, incarnation, process_name)

    def _keep(self, wire: Wire, incarnation: str, process_name: str) -> Connection:
        connection = self._transport.connection_type(
            wire,
            process_name,
            self,
            lambda lost: self._forget(incarnation, lost),
            self.settings.shared_memory if wire.is_on_one_node else 0,
        )
        with self._lock:
            if not self._is_closed:
                if incarnation in self._connections:
                    self._others.add(connection)
                else:
                    self._connections[incarnation] = connection
                connection.start(self._poller)
                self._look_later()
                return connection
        wire.close()
        raise RpcConnectionError(f"{self.process_name} is closed")

    def _forget(self, incarnation: str, lost: Connection) -> None:
        with self._lock:
            if self._connections.get(incarnation) is lost:
                del self._connections[incarnation]
            self._others.discard(lost)
            self._dialling.pop(incarnation, None)
        self._registry.withdraw_all(lost)

    # --- requests of connections --------------------------------------------------------------

    def requested(
        self,
        connection: Connection,
        channel: int,
        partition_id: Any,
        subpartition: int,
        credit: int,
        consumer: str,
    ) -> None:
        """Serve a consumer's request for a subpartition. Called by connections. If the partition
        does not exist yet, send NOT_FOUND to the consumer, and serve the request later."""

        def serve(partition: ResultPartition) -> None:
            try:
                if not 0 <= subpartition < len(partition.subpartitions):
                    raise ValueError(f"partition {partition_id} has no subpartition {subpartition}")
                view = RemoteView(
                    partition.subpartitions[subpartition], connection, channel, credit, consumer
                )
                is_ready = partition.attach(view, subpartition)
            except (FlinkRayError, ValueError) as error:
                connection.send(head(FAILED, (channel, str(error))))
                return
            connection.serve(channel, view, partition.producer)
            if is_ready:
                view.notify()

        if not self._registry.request(partition_id, (connection, channel), serve):
            connection.send(head(NOT_FOUND, (channel,)))

    def withdrawn(self, connection: Connection, channel: int) -> None:
        self._registry.withdraw((connection, channel))

    # --- the whole ----------------------------------------------------------------------------

    @property
    def number_of_connections(self) -> int:
        with self._lock:
            return len(self._connections) + len(self._others)

    @property
    def strangers(self) -> int:
        return self._transport.strangers

    def close(self) -> None:
        """Close all connections. All partitions fail, and so do their producers and consumers."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            connections = [*self._connections.values(), *self._others]
        self._transport.close()
        self.timers.close()
        for partition in self._registry.all():
            self.fail_partition(partition, "its process ends")
        for connection in connections:
            connection.close("this process ends")
        self._poller.close()
        if self._timer_thread is not None:
            self._timer_thread.join()
