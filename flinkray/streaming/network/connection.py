"""A connection between two task processes: many channels, in both directions, over one wire.

The process's :class:`Poller` says which thread reads. Reading never waits for a channel, because
credit bounds the received data. Writers take turns: a thread with something to send (usually a
task) sends it itself, if no other thread is sending and the system takes the data without blocking.
The connection's writing thread sends the rest. So a small buffer needs no thread switch, which
would wait for Python's GIL, and a large buffer does not block the task. Frames without a body go
first, then barriers and ends of input that are next in their channels. Then every channel that can
send sends one buffer, in turn.

Small frames share a slab. A large body has its own memory, freed with the last batch in it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from flinkray.core.errors import FlinkRayError
from flinkray.rpc.wire import codec
from flinkray.streaming.network.errors import WireFormatError
from flinkray.streaming.network.frames import (
    ACCEPTED,
    CREDIT,
    DATA,
    DROPPED,
    FAILED,
    LEAVE,
    LEFT,
    MAPPED,
    NOT_FOUND,
    OFFERED,
    PREFIX,
    PROCESSED,
    RELEASE,
    REQUEST,
    RETURNED,
    SHARED_DATA,
    Part,
    head,
    parse_head,
)
from flinkray.streaming.network.poller import Poller
from flinkray.streaming.network.shared_memory import IS_AVAILABLE, MappedRegions, OwnedRegions
from flinkray.streaming.network.signal import Signal
from flinkray.streaming.network.views import RemoteView
from flinkray.streaming.network.wire import Wire

logger = logging.getLogger(__name__)

_WRITE_TOGETHER = 131_072
"""Bytes after which no further buffer is added to one write to the system."""

_SHARE_TOGETHER = 262_144
"""Bytes after which no further buffer is added, if bodies go by shared memory; bodies count, too.
A message for a few buffers costs little, and the consumer reads these while the next ones are
copied."""


class ReceivingChannel(Protocol):
    """Interface of a channel's consumer, which a :class:`Connection` calls, in the thread that
    reads, with what arrives from the producer."""

    def accepted(self, producer: str) -> None: ...

    def received(
        self,
        sequence: int,
        backlog: int,
        is_urgent: bool,
        descriptions: Any,
        body: pa.Buffer | None,
    ) -> None: ...

    def not_found(self) -> None: ...

    def fail(self, reason: str) -> None: ...


class Producers(Protocol):
    """Interface with which a :class:`Connection` passes on what consumers in another process
    request from the partitions of this process."""

    def requested(
        self,
        connection: Connection,
        channel: int,
        partition_id: Any,
        subpartition: int,
        credit: int,
        consumer: str,
    ) -> None:
        """Serve a request of the consumer at the other side for a subpartition."""

    def withdrawn(self, connection: Connection, channel: int) -> None:
        """Cancel a request of the consumer at the other side that was not served yet."""


class Connection:
    """Many channels between two task processes. :meth:`start` must be called once."""

    most_sent_at_once: int = 8
    """How often a sending thread writes to the system before the writing thread takes over.
    A task has other work, and the thread that reads has to read."""

    def __init__(
        self,
        wire: Wire,
        peer: str,
        producers: Producers,
        on_closed: Callable[[Connection], None],
        shared_memory: int = 0,
    ) -> None:
        """Make a connection over *wire* to the process *peer* (its name, for errors).
        *shared_memory*: bytes of shared memory for data that is sent. 0 if the processes cannot
        share memory."""
        self.peer = peer
        self.lost_reason: str | None = None
        """Why the connection was lost. None while the connection works."""
        self._wire = wire
        self._reader = FrameReader(wire)
        self._is_polled = False
        self._producers = producers
        self._on_closed = on_closed
        self._channels: dict[int, ReceivingChannel] = {}
        self._views: dict[int, RemoteView] = {}
        self._next_channel = 0
        self.is_leaving = False
        """True from when this side asks whether the connection may end, or agrees to its end.
        No channel is added then. False again if the other side refuses."""
        self.uses = 0
        """Number of channels that were added and views that were served."""
        self._state = threading.Lock()
        self._sending = threading.Lock()
        """Held by the thread that sends. Afterwards this thread looks again for frames to send."""
        self._to_write = Signal()
        """Wakes the writing thread."""
        self._rest: list[Part] = []
        """Parts that the system did not take at once. The writing thread sends them."""
        self._control: deque[bytes] = deque()
        self._ready: deque[RemoteView] = deque()
        self._mapped = MappedRegions()
        self._owned: OwnedRegions | None = None
        self._together = _WRITE_TOGETHER
        if shared_memory and IS_AVAILABLE:
            self._together = _SHARE_TOGETHER
            self._owned = OwnedRegions(
                shared_memory,
                lambda offer: self._control.append(head(OFFERED, offer)),
                lambda regions: self._control.append(head(DROPPED, regions)),
            )
        self._writer: threading.Thread | None = None

    def start(self, poller: Poller | None = None) -> None:
        """Begin to send, and to read when *poller* says so. None: the caller passes on what
        arrives."""
        self._writer = threading.Thread(target=self._write, name=f"write {self.peer}", daemon=True)
        self._writer.start()
        if poller is not None:
            self._is_polled = True
            poller.add(self)

    # --- consuming ----------------------------------------------------------------------------

    def add_channel(self, channel: ReceivingChannel) -> int | None:
        """Register a channel and return its number on this connection. None: the connection is
        lost, or will be closed as unused (:attr:`is_leaving`). In the latter case, use another
        connection."""
        with self._state:
            if self.lost_reason is not None or self.is_leaving:
                return None
            self.uses += 1
            number = self._next_channel
            self._next_channel += 1
            self._channels[number] = channel
            return number

    def remove_channel(self, number: int) -> None:
        """Remove a channel that has ended. Data that still arrives for it is dropped."""
        with self._state:
            self._channels.pop(number, None)

    # --- sending ------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        self._control.append(frame)
        self._send_now()

    def enqueue(self, view: RemoteView, is_first: bool) -> None:
        if is_first:
            self._ready.appendleft(view)
        else:
            self._ready.append(view)
        self._send_now()

    def share(self, parts: Sequence[Part], size: int) -> int | None:
        return None if self._owned is None else self._owned.put(parts, size)

    def forget_view(self, channel: int) -> None:
        self._views.pop(channel, None)

    def begin(self) -> bool:
        if self._ready or self._control or self._mapped.returned:
            return False
        if self._rest or not self._sending.acquire(False):
            return False
        if self._rest:  # the writing thread sends it, and all that is queued from here on
            self._sending.release()
            return False
        return True

    def _send_now(self) -> None:
        if not self._rest and self._sending.acquire(False):
            self.send_begun(None)
        # otherwise the thread that sends looks again

    def send_begun(self, frames: list[Part] | None) -> None:
        try:
            if self._rest or self.lost_reason is not None:
                return
            for _ in range(self.most_sent_at_once):
                self._rest = self._wire.try_send(self._collect() if frames is None else frames)
                frames = None
                if self._rest or not (self._control or self._ready):
                    break
        except OSError as error:
            self.fail(f"the connection broke: {error}")
        finally:
            self._sending.release()
        if self._rest or self._control or self._ready:
            self._to_write.set()

    def _collect(self) -> list[Part]:
        """Remove the frames to send next from the queues, and return them as parts: control frames
        first, then buffers of the channels in turn. Called only by the thread that sends."""
        parts: list[Part] = []
        size = 0
        control, ready = self._control, self._ready
        returned = self._mapped.returned
        if returned:
            control.append(head(RETURNED, [returned.popleft() for _ in range(len(returned))]))
        while control:
            parts.append(control.popleft())
        while ready and size < self._together:
            view = ready.popleft()
            most = 1 if ready else self._together - size  # other views have their turns, too
            frames, taken, again, is_first = view.take(most)
            parts += frames
            size += taken
            if again and is_first:
                ready.appendleft(view)
            elif again:
                ready.append(view)
        return parts

    def _write(self) -> None:
        while self.lost_reason is None:
            self._to_write.wait()
            while self.lost_reason is None and (self._rest or self._control or self._ready):
                with self._sending:
                    try:
                        while parts := self._rest or self._collect():
                            self._wire.send(parts)
                            self._rest = []
                    except OSError as error:
                        self.fail(f"the connection broke: {error}")

    # --- receiving ----------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._wire.fileno()

    def read_available(self) -> bool:
        """Handle all frames that have arrived, without blocking. Returns False if the connection
        has ended; its channels and views have then failed, with the reason."""
        if self.lost_reason is not None:
            return False
        reason = "the connection was closed by the other side"
        reader = self._reader
        try:
            self.read_frames()
            if not reader.has_ended:
                return True
        except OSError as error:
            reason = f"the connection broke: {error}"
        except Exception as error:  # noqa: BLE001 - other connections must go on being read
            reason = f"the connection was given up: {error}"
            logger.warning("%s: %s", self.peer, reason)
        self.fail(reason)
        return False

    def close_socket(self) -> None:
        self._wire.close()

    def read_frames(self) -> None:
        """Handle all complete frames that have arrived.
        Raises the errors of :meth:`FrameReader.next`, and WireFormatError, ValueError, TypeError or
        LookupError for invalid frames."""
        reader, channels = self._reader, self._channels
        while (frame := reader.next()) is not None:
            kind, header, body, _ = frame
            if kind != DATA:
                self._handle(kind, header, body)
                continue
            number, sequence, backlog, is_urgent, descriptions = header
            channel = channels.get(number)
            if channel is not None:
                channel.received(sequence, backlog, is_urgent, descriptions, body)

    def _handle(self, kind: int, header: tuple[Any, ...], body: pa.Buffer | None) -> None:
        if kind == SHARED_DATA:
            number, sequence, backlog, is_urgent, descriptions, region, size = header
            body = self._mapped.body(region, size)
            channel = self._channels.get(number)
            if channel is not None:
                channel.received(sequence, backlog, is_urgent, descriptions, body)
        elif kind == CREDIT:
            for number, size, overtaking in header:
                view = self._views.get(number)
                if view is not None:
                    view.add_credit(size, overtaking)
        elif kind == REQUEST:
            self._requested(*header)
        elif kind == RELEASE:
            number, reason = header
            view = self._views.pop(number, None)
            if view is None:
                self._producers.withdrawn(self, number)
            else:
                view.released(reason)
        elif kind == PROCESSED:
            (number,) = header
            view = self._views.get(number)
            if view is not None:
                view.processed()
        elif kind == ACCEPTED:
            number, producer = header
            channel = self._channels.get(number)
            if channel is not None:
                channel.accepted(producer)
        elif kind == NOT_FOUND:
            (number,) = header
            channel = self._channels.get(number)
            if channel is not None:
                channel.not_found()
        elif kind == FAILED:
            number, reason = header
            with self._state:
                channel = self._channels.pop(number, None)
            if channel is not None:
                channel.fail(reason)
        elif kind == LEAVE:
            with self._state:
                self.is_leaving = self.is_leaving or self._is_unused()
                may_end = self.is_leaving
            self.send(head(LEFT, (may_end,)))
        elif kind == LEFT:
            (may_end,) = header
            if may_end:
                self.fail("nobody used the connection")
            else:
                with self._state:
                    self.is_leaving = False
        else:
            self._handle_memory(kind, header)

    def _handle_memory(self, kind: int, header: tuple[Any, ...]) -> None:
        if kind == OFFERED:
            number, process, file, capacity, count, token = header
            is_mapped = self._mapped.map((number, process, file, capacity, count, token))
            self.send(head(MAPPED, (number, is_mapped)))
        elif kind == DROPPED:
            self._mapped.drop(header)
        elif self._owned is not None:
            if kind == MAPPED:
                self._owned.answered(*header)
            elif kind == RETURNED:
                self._owned.returned(header)

    def _requested(
        self, number: int, partition: bytes, subpartition: int, credit: int, consumer: str
    ) -> None:
        if number in self._views:
            return  # the channel was served in the meantime
        try:
            partition_id = codec.decode(partition)
        except FlinkRayError as error:
            raise WireFormatError(f"a request for an unreadable partition came: {error}") from error
        self._producers.requested(self, number, partition_id, subpartition, credit, consumer)

    def serve(self, number: int, view: RemoteView, producer: str) -> None:
        """Register the view that answers the consumer's request for channel *number*, and tell the
        consumer the producer's name. If the connection is lost already, the view fails."""
        with self._state:
            reason = self.lost_reason
            if reason is None:
                self._views[number] = view
                self.uses += 1
        if reason is not None:
            view.lost(reason)
        self.send(head(ACCEPTED, (number, producer)))

    # --- the end ------------------------------------------------------------------------------

    def leave(self) -> None:
        """If this side does not use the connection, offer the other side to end it; the connection
        ends if the other side does not use it either. Until the answer this side adds no channel. A
        request of the other side that arrives meanwhile is served; the offer is then refused."""
        with self._state:
            if self.is_leaving or self.lost_reason is not None or not self._is_unused():
                return
            self.is_leaving = True
        self.send(head(LEAVE, (self.uses,)))

    def _is_unused(self) -> bool:
        """Return whether no channel or view uses the connection. The lock is held."""
        return not (self._channels or self._views or self._ready or self._rest)

    def close(self, reason: str) -> None:
        """End the connection for this reason and wait for its writing thread."""
        self.fail(reason)
        if self._writer is not None and self._writer is not threading.current_thread():
            self._writer.join()

    def fail(self, reason: str) -> None:
        """Mark the connection as lost and fail all its channels and views.
        Only the first call has an effect."""
        with self._state:
            if self.lost_reason is not None:
                return
            self.lost_reason = reason
            channels, self._channels = self._channels, {}
            views, self._views = self._views, {}
        self._to_write.set()
        self._wire.shut_down()  # wakes the thread that writes; the thread that reads closes it
        if not self._is_polled:
            self._wire.close()
        self._mapped.close()
        if self._owned is not None:
            self._owned.close()
        for channel in channels.values():
            channel.fail(reason)
        for view in views.values():
            view.lost(reason)
        self._on_closed(self)


SLAB: Final = 65_536
"""Bytes that are read at once, if so many have arrived."""

ALONE_FROM: Final = 16_384
"""Bytes. A larger body is read into its own memory, not into the rest of a slab."""

COPIED_BELOW: Final = 2_048
"""Bytes. A smaller body is copied, so that it does not keep a whole slab alive."""

_PEEK: Final = 512
"""Bytes that are read first when large bodies follow one another. Enough for a head and little of
the body, because that part has to be copied into the body's own memory."""


class ByteSource(Protocol):
    """Interface from which a :class:`FrameReader` receives bytes, such as a
    :class:`~flinkray.streaming.network.wire.Wire`."""

    is_empty: bool

    def try_recv_into(self, view: memoryview) -> int:
        """Write the data that has arrived to *view*, and return the number of bytes. 0: the source
        has ended. -1: no data has arrived."""


class FrameReader:
    """Reads one frame after the other. For use by one thread at a time."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.has_ended = False
        """Whether the source has ended."""
        self._new_slab()
        self._begin = self._end = 0
        self._read_limit = SLAB
        self._frame: tuple[int, tuple[Any, ...], int, int] | None = None
        """The frame whose body is being received: (kind, header, bytes of body, bytes of frame)."""
        self._body: tuple[pa.Buffer, memoryview] | None = None
        """The large body that is being received, and its part that is missing."""

    def _new_slab(self) -> None:
        self._slab = pa.allocate_buffer(SLAB)
        self._view = memoryview(self._slab).cast("B")

    def _has(self, count: int) -> bool:
        """Receive until *count* unread bytes are in memory. Returns False if they have not
        arrived."""
        while self._end - self._begin < count:
            if self._begin + count > SLAB:
                kept = self._view[self._begin : self._end]
                self._new_slab()
                self._view[: len(kept)] = kept
                self._begin, self._end = 0, len(kept)
            until = SLAB if self._read_limit >= SLAB else min(SLAB, self._end + self._read_limit)
            received = self._source.try_recv_into(self._view[self._end : until])
            if received <= 0:
                self.has_ended = received == 0
                return False
            self._end += received
        return True

    def next(self) -> tuple[int, tuple[Any, ...], pa.Buffer | None, int] | None:
        """Return (kind, header, body, size) of the next frame. None: no complete frame has arrived;
        what has arrived of it is kept. Raises WireFormatError: the data is not a frame. OSError:
        the connection broke."""
        if self._frame is None:
            if self._begin == self._end:
                if self._source.is_empty:
                    self._source.is_empty = False
                    return None
                if not self._has(PREFIX.size):
                    return None
            while isinstance(found := parse_head(self._view, self._begin, self._end), int):
                if not self._has(found):
                    return None
            kind, header, body_size, begin = found
            size = begin - self._begin + body_size
            self._begin = begin
            if body_size == 0:
                return kind, header, None, size
            self._read_limit = SLAB
        else:
            kind, header, body_size, size = self._frame
        begin = self._begin
        if COPIED_BELOW <= body_size <= self._end - begin and self._body is None:
            body = self._slab.slice(begin, body_size)
            self._begin = begin + body_size
        else:
            body = self._receive_body(body_size)
        if body is None:
            self._frame = kind, header, body_size, size
            return None
        self._frame = None
        return kind, header, body, size

    def _receive_body(self, size: int) -> pa.Buffer | None:
        if self._body is not None:
            return self._large_body(*self._body)
        there = self._end - self._begin
        if size <= ALONE_FROM or there >= size:
            return self._small_body(size)
        body = pa.allocate_buffer(size)
        view = memoryview(body).cast("B")
        view[:there] = self._view[self._begin : self._end]
        # nothing is left in the slab; batches may lie in its first part
        self._begin = self._end = (self._end + 7) & ~7
        return self._large_body(body, view[there:])

    def _small_body(self, size: int) -> pa.Buffer | None:
        if self._end - self._begin < size and not self._has(size):
            return None
        begin = self._begin
        self._begin += size
        if size < COPIED_BELOW:
            return pa.py_buffer(self._view[begin : self._begin].tobytes())
        return self._slab.slice(begin, size)

    def _large_body(self, body: pa.Buffer, missing: memoryview) -> pa.Buffer | None:
        while missing:
            received = self._source.try_recv_into(missing)
            if received <= 0:
                self.has_ended = received == 0
                self._body = body, missing
                return None
            missing = missing[received:]
        self._body = None
        self._read_limit = _PEEK
        return body
