"""Bare blocking sockets, with nothing that a channel does besides: the batch as Arrow's message,
its length before it, an acknowledgement for each; ``main`` is the other process."""

from __future__ import annotations

import socket
import sys
from struct import Struct

import pyarrow as pa

from _channels.contender import WINDOW, Contender, Peer, tell

_LENGTH = Struct("<q")
_ECHO = -1


class OverSockets(Contender):
    name = "blocking unix socket, bare"

    def __init__(self) -> None:
        self._peer = Peer("over_sockets")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(f"\0{self._peer.first}")

    def send(self, batch: pa.RecordBatch, count: int) -> None:
        self._begin(batch, 0)
        under_way = 0
        for _ in range(count):
            _send(self._socket, batch)
            under_way += 1
            if under_way == WINDOW:
                under_way -= len(self._socket.recv(WINDOW))
        while under_way:
            under_way -= len(self._socket.recv(WINDOW))

    def echo(self, batch: pa.RecordBatch) -> None:
        self._begin(batch, _ECHO)
        _send(self._socket, batch)
        data = _receive(self._socket)
        assert data is not None
        pa.ipc.read_record_batch(data, batch.schema)

    def _begin(self, batch: pa.RecordBatch, mode: int) -> None:
        schema = batch.schema.serialize()
        self._socket.sendall(_LENGTH.pack(mode) + _LENGTH.pack(len(schema)))
        self._socket.sendall(schema)

    def close(self) -> None:
        self._socket.close()
        self._peer.close()


def _send(sock: socket.socket, batch: pa.RecordBatch) -> None:
    data = memoryview(batch.serialize())
    sent = sock.sendmsg([_LENGTH.pack(len(data)), data])
    if sent < len(data) + 8:
        sock.sendall(data[sent - 8 :])


def _receive(sock: socket.socket) -> pa.Buffer | None:
    head = sock.recv(8, socket.MSG_WAITALL)
    if len(head) < 8:
        return None
    (length,) = _LENGTH.unpack(head)
    if length <= 0:
        return None
    data = pa.allocate_buffer(length)
    view = memoryview(data)
    done = 0
    while done < length:
        done += sock.recv_into(view[done:], length - done, socket.MSG_WAITALL)
    return data


def main() -> None:
    """Read, and acknowledge or send back."""
    listening = socket.socket(socket.AF_UNIX)
    name = f"flinkray-benchmark-{id(listening)}"
    listening.bind(f"\0{name}")
    listening.listen()
    tell(name)
    sock, _ = listening.accept()
    mode, schema = 0, None
    while True:
        head = sock.recv(8, socket.MSG_WAITALL)
        if len(head) < 8:
            return
        (length,) = _LENGTH.unpack(head)
        if length <= 0:  # what follows is of another kind
            mode = length
            described = _receive(sock)
            schema = pa.ipc.read_schema(described)
            continue
        data = pa.allocate_buffer(length)
        view = memoryview(data)
        done = 0
        while done < length:
            done += sock.recv_into(view[done:], length - done, socket.MSG_WAITALL)
        batch = pa.ipc.read_record_batch(data, schema)
        if mode == _ECHO:
            _send(sock, batch)
        else:
            sock.send(b"a")


if __name__ == "__main__":
    main(*sys.argv[1:])
