"""Lines from a socket."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources.generated import SocketSource
from flinkray.streaming.sources.source import END_OF_INPUT, NOTHING_NOW, Boundedness, ReaderContext
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.waiting import wait_until


def test_socket_source_reads_lines_until_the_server_closes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"one\ntw")
                connection.sendall(b"o\nlast")

        thread = threading.Thread(target=serve)
        thread.start()
        env = StreamExecutionEnvironment.get_execution_environment()
        stream = env.socket_text_stream("127.0.0.1", server.getsockname()[1])
        assert list(stream.execute_and_collect()) == ["one", "two", "last"]
        thread.join(300)


def test_socket_reader_without_a_connection_ends_when_no_split_follows() -> None:
    source = SocketSource("127.0.0.1", 1)
    assert source.get_boundedness() is Boundedness.CONTINUOUS_UNBOUNDED
    context = ReaderContext(1, 2, ManualClock())
    reader = source.create_reader(context)
    reader.start()
    assert context.split_requested
    assert reader.poll(10) is NOTHING_NOW
    reader.notify_no_more_splits()
    assert reader.poll(10) is END_OF_INPUT
    assert reader.snapshot_state(1) == []


def test_socket_lines_are_divided_by_the_given_delimiter() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = SocketSource("127.0.0.1", server.getsockname()[1], ";")
        reader = source.create_reader(ReaderContext(0, 1, ManualClock()))
        reader.add_splits(["connection"])
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"one;t\nwo;last")
        lines: list[str] = []
        while (polled := reader.poll(10)) is not END_OF_INPUT:
            lines += [] if polled is NOTHING_NOW else polled.values  # type: ignore[union-attr]
        assert lines == ["one", "t\nwo", "last"]


def test_socket_snapshot_has_a_split_until_the_server_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = socket_reader(server.getsockname()[1])
        with server.accept()[0]:
            (split,) = reader.snapshot_state(1)
            restored = SocketSource(*server.getsockname()).create_reader(
                ReaderContext(0, 1, ManualClock())
            )
            restored.add_splits([split])
            with server.accept()[0] as again:
                again.sendall(b"more\n")
                assert polled(restored).values == ["more"]
            restored.close()
        assert polled(reader) is END_OF_INPUT
        assert reader.snapshot_state(2) == []


def socket_reader(port: int) -> Any:
    source = SocketSource("127.0.0.1", port)
    reader = source.create_reader(ReaderContext(0, 1, ManualClock()))
    reader.add_splits(["connection"])
    return reader


def polled(reader: Any) -> Any:
    """What comes first."""
    found = NOTHING_NOW

    def came() -> bool:
        nonlocal found
        found = reader.poll(10)
        return found is not NOTHING_NOW

    wait_until(came, 150, "lines")
    return found


def test_errors_of_a_socket_source_name_the_address_of_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reader = socket_reader(port)
        with server.accept()[0] as connection:
            connection.sendall(b"one\n\xff\n")
            with pytest.raises(
                StreamError, match=rf":{port} sent a line that is not UTF-8: b'\\xff'"
            ):
                polled(reader)
        reader.close()

        reader = socket_reader(port)
        connection, _ = server.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # by a reset
        with pytest.raises(StreamError, match=f"the connection to 127.0.0.1:{port} broke: "):
            polled(reader)
        reader.close()
    with pytest.raises(StreamError, match=f"cannot connect to 127.0.0.1:{port}: .*must listen"):
        socket_reader(port)
