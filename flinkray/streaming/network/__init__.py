"""Channels between task processes: ordered, bounded by credit, failing at both ends.

A process has one :class:`NetworkEnvironment`.  Its tasks write to the subpartitions of a
:class:`ResultPartition` and read from a :class:`NetworkInputGate`; where the other end is makes no
difference to them.
"""

from flinkray.streaming.network.environment import ChannelSource, NetworkEnvironment
from flinkray.streaming.network.errors import (
    BatchTooLargeError,
    ChannelError,
    ConsumerLostError,
    PartitionReleasedError,
    PartitionUnavailableError,
    ProducerLostError,
    WireFormatError,
)
from flinkray.streaming.network.in_flight_format import decode_elements, encode_elements
from flinkray.streaming.network.input_gate import NetworkInputGate
from flinkray.streaming.network.metrics import ChannelMetrics, register_input, register_output
from flinkray.streaming.network.record_writer import PartitionWriter
from flinkray.streaming.network.result_partition import ResultPartition, Subpartition
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.signal import Signal
from flinkray.streaming.network.sockets import DataAddress

__all__ = [
    "BatchTooLargeError",
    "ChannelError",
    "ChannelMetrics",
    "ChannelSource",
    "ConsumerLostError",
    "DataAddress",
    "NetworkEnvironment",
    "NetworkInputGate",
    "NetworkSettings",
    "PartitionReleasedError",
    "PartitionUnavailableError",
    "PartitionWriter",
    "ProducerLostError",
    "ResultPartition",
    "Signal",
    "Subpartition",
    "WireFormatError",
    "decode_elements",
    "encode_elements",
    "register_input",
    "register_output",
]
