"""Defines the options of the network between tasks."""

from __future__ import annotations

from flinkray.core.config_option import (
    ConfigOption,
    duration,
    duration_or_never,
    integer,
    memory_size,
)

SEGMENT_SIZE = ConfigOption(
    "taskmanager.memory.segment-size",
    memory_size(minimum=4096),
    128 * 2**10,
    "The unit of credit between tasks. Batches are sent whole and may be larger. Smaller ones "
    "are put together up to this size. (Flink: 32 kb, for buffers that hold single records.)",
)
BUFFERS_PER_CHANNEL = ConfigOption(
    "taskmanager.network.memory.buffers-per-channel",
    integer(minimum=1),
    2,
    "Segments that each channel of a task may be sent before the task has taken any.",
)
FLOATING_BUFFERS_PER_GATE = ConfigOption(
    "taskmanager.network.memory.floating-buffers-per-gate",
    integer(minimum=0),
    8,
    "Additional segments, shared by all channels of one input. They are given to the channels "
    "whose producers have most waiting.",
)
MAX_BUFFERS_PER_CHANNEL = ConfigOption(
    "taskmanager.network.memory.max-buffers-per-channel",
    integer(minimum=1),
    10,
    "A task waits while this many segments that it has written are unsent on one channel.",
)
REQUEST_BACKOFF_INITIAL = ConfigOption(
    "taskmanager.network.request-backoff.initial",
    duration(),
    0.1,
    "Pause before a partition that was not found is requested again. It doubles with each request.",
)
REQUEST_BACKOFF_MAX = ConfigOption(
    "taskmanager.network.request-backoff.max",
    duration(),
    10.0,
    "The longest such pause. The consumer fails if the partition is not found after it.",
)
NETWORK_CONNECT_TIMEOUT = ConfigOption(
    "taskmanager.network.connect-timeout",
    duration(),
    10.0,
    "How long a task process waits for the connection to another one "
    "(Flink: taskmanager.network.netty.client.connectTimeoutSec, 120 s).",
)
NETWORK_IDLE_TIMEOUT = ConfigOption(
    "taskmanager.network.connection.idle-timeout",
    duration_or_never(),
    300.0,
    "A connection between two task processes is closed when no channel has used it for this "
    "long. The next channel opens another one. never: connections stay open.",
)
NETWORK_SHARED_MEMORY = ConfigOption(
    "taskmanager.network.shared-memory",
    memory_size(minimum=0),
    64 * 2**20,
    "Shared memory in which one task process sends batches of 32 kB and more to another one on "
    "its node. It is allocated as needed. 0: batches go through the socket.",
)
BUFFER_TIMEOUT = ConfigOption(
    "execution.buffer-timeout.interval",
    duration_or_never(),
    0.1,
    "The longest time that a record of a program which sets no buffer time-out waits to be sent "
    "together with others. 0: every batch is sent at once. never: only full segments are sent (as "
    "with execution.buffer-timeout.enabled=false in Flink).",
)
