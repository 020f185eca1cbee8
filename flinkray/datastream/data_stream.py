"""Exports the stream classes under the module name that PyFlink gives them."""

from __future__ import annotations

from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.datastream.connected_streams import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
)
from flinkray.datastream.joined_streams import CoGroupedStreams, JoinedStreams
from flinkray.datastream.keyed_stream import KeyedStream
from flinkray.datastream.operator_settings import DataStreamSink
from flinkray.datastream.stream import DataStream
from flinkray.datastream.windowed_streams import AllWindowedStream, WindowedStream

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CloseableIterator",
    "CoGroupedStreams",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "JoinedStreams",
    "KeyedStream",
    "WindowedStream",
]
