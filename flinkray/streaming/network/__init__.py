"""Channels between task processes: ordered, bounded by credit, and closed at both ends on failure.

A process has one :class:`NetworkEnvironment`. Its tasks write to the subpartitions of a
:class:`ResultPartition` and read from a :class:`NetworkInputGate`. The code of a task is the same
whether the other end is in this process or in another one.

Names are imported when they are first used, so a module that needs only addresses does not load
Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.lazy_door import lazy_door

if TYPE_CHECKING:
    from flinkray.streaming.network.connection import Connection
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
    from flinkray.streaming.network.frames import Part
    from flinkray.streaming.network.in_flight_format import decode_elements, encode_elements
    from flinkray.streaming.network.input_gate import NetworkInputGate
    from flinkray.streaming.network.metrics import ChannelMetrics, register_input, register_output
    from flinkray.streaming.network.poller import Poller, PollingSignal
    from flinkray.streaming.network.result_partition import PartitionWriter, ResultPartition
    from flinkray.streaming.network.settings import NetworkSettings
    from flinkray.streaming.network.signal import Signal
    from flinkray.streaming.network.sockets import DataAddress
    from flinkray.streaming.network.subpartition import Subpartition
    from flinkray.streaming.network.timers import Timers
    from flinkray.streaming.network.transport import Welcome
    from flinkray.streaming.network.wire import Wire
else:  # not for type checkers, which would take each misspelt name for an object
    __getattr__ = lazy_door(__name__)

__all__ = [
    "BatchTooLargeError",
    "ChannelError",
    "ChannelMetrics",
    "ChannelSource",
    "Connection",
    "ConsumerLostError",
    "DataAddress",
    "NetworkEnvironment",
    "NetworkInputGate",
    "NetworkSettings",
    "Part",
    "PartitionReleasedError",
    "PartitionUnavailableError",
    "PartitionWriter",
    "Poller",
    "PollingSignal",
    "ProducerLostError",
    "ResultPartition",
    "Signal",
    "Subpartition",
    "Timers",
    "Welcome",
    "Wire",
    "WireFormatError",
    "decode_elements",
    "encode_elements",
    "register_input",
    "register_output",
]
