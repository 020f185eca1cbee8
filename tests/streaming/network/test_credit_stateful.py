"""Credit is paid for whatever passes a channel: in any order of writing, sending and taking."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.streaming.network import (
    ChannelSource,
    Connection,
    DataAddress,
    FrameReader,
    NetworkEnvironment,
    NetworkInputGate,
    NetworkSettings,
    Part,
    ResultPartition,
    Welcome,
    Wire,
)
from flinkray.streaming.network.buffers import OVERHEAD, QueuedBarrier
from flinkray.streaming.network.input_channels import LocalInputChannel, RemoteInputChannel
from flinkray.streaming.network.views import RemoteView
from flinkray.streaming.records.elements import (
    ACTIVE,
    END_OF_INPUT,
    IDLE,
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    EndOfInput,
    Watermark,
)
from flinkray.testing import ManualClock
from tests.streaming.network.networks import SECRET, numbers

SETTINGS = NetworkSettings(
    segment_size=4096,
    buffers_per_channel=1,
    floating_buffers_per_gate=1,
    max_buffers_per_channel=3,
    request_backoff_initial=0.1,
    shared_memory=2**20,
    connection_idle_timeout=None,
)
NOW = 1_000_000_000
"""Seconds since 1970."""
RECORDS = {"record": 1, "columns": 1000, "shared": 5000}
LARGEST = {1: 280, 1000: 8_528, 5000: 40_528}
"""Bytes of a buffer of so many records, at most."""
CHANNELS = 3
"""The last one is from the process of the consumer."""


class HeldWire(Wire):
    """One end: what was sent waits until :meth:`HeldConnection.deliver` at the other one."""

    is_on_one_node = True

    def __init__(self) -> None:
        self.peer: HeldWire
        self.connection: HeldConnection
        self.arriving: deque[bytes] = deque()
        self._readable = memoryview(b"")

    def make_readable(self) -> None:
        self._readable = memoryview(self.arriving.popleft())

    def recv_into(self, view: memoryview) -> int:
        size = min(len(view), len(self._readable))
        view[:size] = self._readable[:size]
        self._readable = self._readable[size:]
        return size

    def recv_exactly(self, view: memoryview) -> bool:
        return self.recv_into(view) == len(view)

    def send(self, parts: Sequence[Part]) -> None:
        if parts:
            self.peer.arriving.append(b"".join(parts))

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        self.send(parts)
        return []

    def close(self) -> None:
        """What is under way is lost with the connection."""


class HeldConnection(Connection):
    """Neither reads nor writes in threads."""

    most_sent_at_once = 1_000_000

    def start(self) -> None:
        assert isinstance(self._wire, HeldWire)
        self.held = self._wire
        self.held.connection = self
        self._reader = FrameReader(self.held)

    def deliver(self) -> bool:
        """The next message that was sent to this end; whether there was one."""
        if self.lost_reason is not None or not self.held.arriving:
            return False
        self.held.make_readable()
        self.read_frames(self._reader)
        return True


class HeldTransport:
    """Of one process; *listeners* are those of all."""

    connection_type: type[Connection] = HeldConnection
    strangers = 0

    def __init__(self, name: str, listeners: dict[str, Welcome], welcome: Welcome) -> None:
        self.address = DataAddress(name, name, "held", 0, None, "node", False)
        self._listeners = listeners
        self._wires: list[HeldWire] = []
        listeners[name] = welcome

    def dial(self, address: DataAddress, identity: str) -> Wire:
        near, far = HeldWire(), HeldWire()
        near.peer, far.peer = far, near
        self._listeners[address.incarnation](far, identity)
        self._wires += [near, far]
        return near

    @property
    def connections(self) -> list[HeldConnection]:
        """Both ends of each that was dialled here."""
        return [wire.connection for wire in self._wires]

    def close(self) -> None:
        """Nobody connects any more."""


class Credit(RuleBasedStateMachine):
    """A task reads two tasks of other processes and one of its own, which fail and come again."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.clock = ManualClock(epoch=NOW)
        self.transports: list[HeldTransport] = []
        listeners: dict[str, Welcome] = {}
        self.processes = [self._process(name, listeners) for name in ("one", "two", "reader")]
        self.generations = count()
        self.checkpoints = count(1)
        self.partitions: list[ResultPartition] = []

    def _process(self, name: str, listeners: dict[str, Welcome]) -> NetworkEnvironment:
        def transport(welcome: Welcome) -> HeldTransport:
            self.transports.append(HeldTransport(name, listeners, welcome))
            return self.transports[-1]

        process = NetworkEnvironment(
            name,
            SECRET,
            settings=SETTINGS,
            clock=self.clock,
            incarnation=name,
            manual_timers=True,
            transport=transport,
        )
        self.stack.callback(process.close)
        return process

    # --- the tasks --------------------------------------------------------------------------------

    @initialize(
        is_early=st.booleans(), restored=st.integers(0, 3), most=st.sampled_from([*LARGEST])
    )
    def begin(self, is_early: bool, restored: int, most: int) -> None:
        """*is_early*: the reader is there before what it reads.  *restored*: so many records were
        in flight at each end of each channel.  *most*: records in a buffer."""
        self.most = most
        self.generation = next(self.generations)
        self.written: list[list[int]] = [[] for _ in range(CHANNELS)]
        self.read: list[list[int]] = [[] for _ in range(CHANNELS)]
        self.largest = [LARGEST[1]] * CHANNELS
        """Bytes of a buffer that was written."""
        self.barriers: list[set[int]] = [set() for _ in range(CHANNELS)]
        """That were sent and did not come."""
        self.ended: set[int] = set()
        self.closed: set[int] = set()
        self.partitions = []
        self.restored = restored
        reader = self.processes[-1]
        sources = [
            ChannelSource(f"p{self.generation}", 0, process.address) for process in self.processes
        ]
        self.gate = reader.create_gate("Reader", sources)
        self.gate.listen(lambda: None)
        for channel in range(CHANNELS):
            at_reader = [self._record(channel) for _ in range(restored)]
            if at_reader:
                self.gate.restore(channel, at_reader)
        if not is_early:
            self._produce()
        self.gate.request()

    def _produce(self) -> None:
        for channel, process in enumerate(self.processes):
            partition = process.create_partition(
                f"p{self.generation}", "Writer", 1, buffer_timeout=0
            )
            self.partitions.append(partition)
            partition.restore(0, [self._record(channel) for _ in range(self.restored)])

    def _record(self, channel: int, size: int = 1) -> Block | Columns:
        """The next one of a channel; its number is the first value in it."""
        number = len(self.written[channel])
        self.written[channel].append(number)
        self.largest[channel] = max(self.largest[channel], LARGEST[size])
        return Block([number]) if size == 1 else numbers(size, number)

    @precondition(lambda self: not self.partitions)
    @rule()
    def produce(self) -> None:
        self._produce()

    @precondition(lambda self: self.partitions)
    @rule(
        channel=st.integers(0, CHANNELS - 1),
        what=st.sampled_from(["record", "columns", "shared", "watermark", "status"]),
    )
    def write(self, channel: int, what: str) -> None:
        partition = self.partitions[channel]
        if channel in self.ended or not partition.has_room():
            return
        element: Element
        if what in RECORDS:
            element = self._record(channel, min(RECORDS[what], self.most))
        else:
            element = Watermark(next(self.checkpoints)) if what == "watermark" else IDLE
        partition.subpartitions[0].put(element)
        if what == "status":
            partition.subpartitions[0].put(ACTIVE)

    @precondition(lambda self: self.partitions)
    @rule(
        channel=st.integers(0, CHANNELS - 1),
        what=st.sampled_from(["in line", "in time", "overtakes", "cancelled"]),
        times=st.sampled_from([1, 1, 50]),
    )
    def send_barriers(self, channel: int, what: str, times: int) -> None:
        """Room or not."""
        if channel in self.ended:
            return
        partition = self.partitions[channel]
        for _ in range(times):
            checkpoint_id = next(self.checkpoints)
            if what == "cancelled":
                partition.subpartitions[0].put(CancelledBarrier(checkpoint_id))
                continue
            now = int(self.clock.time() * 1000)
            timeout = 300 if what == "in time" else None
            barrier = Barrier(
                checkpoint_id, now, unaligned=what == "overtakes", alignment_timeout=timeout
            )
            self.barriers[channel].add(checkpoint_id)
            partition.barrier(barrier, lambda _: None)

    @precondition(lambda self: self.partitions)
    @rule(channel=st.integers(0, CHANNELS - 1))
    def end(self, channel: int) -> None:
        if channel not in self.ended:
            self.ended.add(channel)
            self.partitions[channel].subpartitions[0].put(END_OF_INPUT)

    @rule(seconds=st.sampled_from([0.05, 0.2, 0.4]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for process in self.processes:
            process.timers.run_due()

    @rule(data=st.data(), times=st.integers(1, 5))
    def deliver(self, data: st.DataObject, times: int) -> None:
        connections = [it for transport in self.transports for it in transport.connections]
        connection = data.draw(st.sampled_from(connections))
        for _ in range(times):
            connection.deliver()

    @rule()
    def deliver_all(self) -> None:
        self._while_something_comes(lambda: None, lambda: None)

    @rule(times=st.integers(1, 60), blocks=st.booleans())
    def take(self, times: int, blocks: bool) -> None:
        """*blocks*: barriers are waited for in the other channels."""
        for _ in range(times):
            polled = self.gate.poll()
            if polled is None:
                return
            self._took(*polled)
            channel, element = polled
            if blocks and isinstance(element, Barrier) and not element.unaligned:
                self.gate.block(channel)

    @rule()
    def take_a_barrier_that_overtakes(self) -> None:
        polled = self.gate.poll_overtaking()
        if polled is not None:
            self._took(*polled)
            self.gate.in_flight(polled[0])

    def _took(self, channel: int, element: Element) -> None:
        if isinstance(element, Block):
            self.read[channel] += element.values
        elif isinstance(element, Columns):
            self.read[channel].append(element.batch.column(0)[0].as_py())
        elif isinstance(element, Barrier):
            self.barriers[channel].remove(element.checkpoint_id)
        elif isinstance(element, EndOfInput):
            self.gate.end(channel)
            self.closed.add(channel)

    @rule()
    def resume(self) -> None:
        self.gate.resume_all()

    @rule(
        breaks=st.booleans(),
        is_early=st.booleans(),
        restored=st.integers(0, 3),
        most=st.sampled_from([*LARGEST]),
    )
    def fail_and_restart(self, breaks: bool, is_early: bool, restored: int, most: int) -> None:
        """The reader, or its connections; then the others, too."""
        if breaks:
            for transport in self.transports:
                for connection in transport.connections:
                    connection.fail("the connection was reset")
        self.gate.close("the task failed")
        for process, partition in zip(self.processes, self.partitions, strict=False):
            process.release_partition(partition)
        self.begin(is_early, restored, most)

    @rule()
    def everything_comes(self) -> None:
        """As soon as the reader takes what there is, whatever was paid before."""
        if not self.partitions:
            self._produce()

        def time_passes() -> None:
            self.time_passes(0.4)
            self.gate.resume_all()

        self._while_something_comes(self.gate.poll, time_passes)
        assert self.read == self.written
        assert self.barriers == [set() for _ in range(CHANNELS)]
        for view, channel in self._remote():
            assert view.credit > OVERHEAD
            assert channel.credit.in_use == 0

    @precondition(lambda self: self.partitions)
    @rule(channel=st.integers(0, CHANNELS - 1))
    def barrier_overtakes_although_nothing_is_taken(self, channel: int) -> None:
        """Nor is there credit for it."""
        partition = self.partitions[channel]
        if channel in self.ended or partition.subpartitions[0].view is None:
            return
        self._while_something_comes(self.gate.poll_overtaking, lambda: None)
        while partition.has_room():
            partition.subpartitions[0].put(self._record(channel))
            self._while_something_comes(self.gate.poll_overtaking, lambda: None)
        known = set(self.barriers[channel])
        self.send_barriers(channel, "overtakes", 20)
        self.deliver_all()
        self.reader_holds_the_window_and_a_buffer_at_most()
        self._while_something_comes(self.gate.poll_overtaking, lambda: None)
        assert self.barriers[channel] <= known

    def _while_something_comes(
        self, poll: Callable[[], tuple[int, Element] | None], then: Callable[[], None]
    ) -> None:
        is_over = False
        while not is_over:
            then()
            is_over = True
            for transport in self.transports:
                for connection in transport.connections:
                    while connection.deliver():
                        is_over = False
            while (polled := poll()) is not None:
                self._took(*polled)
                is_over = False

    # --- what holds at every step -----------------------------------------------------------------

    def _remote(self) -> list[tuple[RemoteView, RemoteInputChannel]]:
        """Both ends of each channel that is served and open."""
        pairs: list[tuple[RemoteView, RemoteInputChannel]] = []
        for number, partition in enumerate(self.partitions):
            channel, view = self.gate.channels[number], partition.subpartitions[0].view
            if isinstance(view, RemoteView) and number not in self.closed:
                assert isinstance(channel, RemoteInputChannel)
                pairs.append((view, channel))
        return pairs

    @invariant()
    def what_is_granted_and_not_paid_fits_the_window(self) -> None:
        for view, channel in self._remote():
            credit = channel.credit
            assert view.credit <= credit.window
            assert view.credit + credit.received <= credit.granted <= credit.taken + credit.window

    @invariant()
    def reader_holds_the_window_and_a_buffer_at_most(self) -> None:
        for channel, size in zip(self.gate.channels, self.largest, strict=True):
            if isinstance(channel, RemoteInputChannel):
                assert channel.metrics().queued_bytes < channel.credit.window + size

    @invariant()
    def floating_credit_is_lent_once(self) -> None:
        gate: NetworkInputGate = self.gate
        channels = [it for it in gate.channels if isinstance(it, RemoteInputChannel)]
        lent = sum(it.credit.window - SETTINGS.exclusive_credit for it in channels)
        free = channels[0].credit.floating.free
        assert lent + free == SETTINGS.floating_credit

    @invariant()
    def barriers_that_the_task_has_take_no_room(self) -> None:
        """But for the last one of a channel, whose place is still asked for."""
        for channel in self.gate.channels:
            if isinstance(channel, RemoteInputChannel):
                queued = [it for it in channel._received if isinstance(it, QueuedBarrier)]
            else:
                assert isinstance(channel, LocalInputChannel)
                queued = [] if channel._view is None else [*channel._view._barriers]
            assert sum(barrier._is_given for barrier in queued) <= 1

    def teardown(self) -> None:
        if hasattr(self, "gate"):
            self.everything_comes()
        self.stack.close()


TestCredit = Credit.TestCase
TestCredit.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
