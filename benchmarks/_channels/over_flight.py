"""Arrow Flight over a unix socket; ``main`` is the other process."""

from __future__ import annotations

import os
import sys
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from _channels.contender import Contender, Peer, tell


class OverFlight(Contender):
    name = "Arrow Flight"

    def __init__(self, folder: str) -> None:
        self._peer = Peer("over_flight", f"grpc+unix://{folder}/flight-{os.getpid()}")
        self._client = flight.connect(self._peer.first)
        self._exchange: tuple[Any, Any] | None = None

    def send(self, batch: pa.RecordBatch, count: int) -> None:
        writer, _ = self._client.do_put(flight.FlightDescriptor.for_path("x"), batch.schema)
        for _ in range(count):
            writer.write_batch(batch)
        writer.close()

    def echo(self, batch: pa.RecordBatch) -> None:
        if self._exchange is None:
            writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_path("x"))
            writer.begin(batch.schema)
            self._exchange = writer, reader
        writer, reader = self._exchange
        writer.write_batch(batch)
        reader.read_chunk()

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange[0].close()
        self._client.close()
        self._peer.close()


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            pass

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(reader.schema)
        for chunk in reader:
            writer.write_batch(chunk.data)


def main(location: str) -> None:
    """Serve until killed."""
    server = _Server(location)
    tell(location)
    server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
