"""Settings of channels between task processes."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field

from flinkray.core import network_options
from flinkray.core.config import ReadableConfig


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Network settings with the names of Flink's options. Sizes in bytes, times in seconds."""

    segment_size: int = network_options.SEGMENT_SIZE.default
    buffers_per_channel: int = network_options.BUFFERS_PER_CHANNEL.default
    floating_buffers_per_gate: int = network_options.FLOATING_BUFFERS_PER_GATE.default
    max_buffers_per_channel: int = network_options.MAX_BUFFERS_PER_CHANNEL.default
    request_backoff_initial: float = network_options.REQUEST_BACKOFF_INITIAL.default
    request_backoff_max: float = network_options.REQUEST_BACKOFF_MAX.default
    connect_timeout: float = network_options.NETWORK_CONNECT_TIMEOUT.default
    shared_memory: int = network_options.NETWORK_SHARED_MEMORY.default
    connection_idle_timeout: float | None = network_options.NETWORK_IDLE_TIMEOUT.default
    """Seconds after which idle connections are closed. None: they stay open."""
    directory: str = field(default_factory=tempfile.gettempdir)
    """Directory in which results of batch jobs are spilled."""

    @classmethod
    def of(cls, configuration: ReadableConfig, directory: str | None = None) -> NetworkSettings:
        get = configuration.get
        return cls(
            get(network_options.SEGMENT_SIZE),
            get(network_options.BUFFERS_PER_CHANNEL),
            get(network_options.FLOATING_BUFFERS_PER_GATE),
            get(network_options.MAX_BUFFERS_PER_CHANNEL),
            get(network_options.REQUEST_BACKOFF_INITIAL),
            get(network_options.REQUEST_BACKOFF_MAX),
            get(network_options.NETWORK_CONNECT_TIMEOUT),
            get(network_options.NETWORK_SHARED_MEMORY),
            get(network_options.NETWORK_IDLE_TIMEOUT),
            directory or tempfile.gettempdir(),
        )

    @property
    def exclusive_credit(self) -> int:
        return self.buffers_per_channel * self.segment_size

    @property
    def floating_credit(self) -> int:
        return self.floating_buffers_per_gate * self.segment_size

    @property
    def most_queued(self) -> int:
        """Bytes that may wait in one subpartition before its writer has to wait."""
        return self.max_buffers_per_channel * self.segment_size
