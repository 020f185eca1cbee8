"""Errors of channels between two tasks. Channel errors name both tasks."""

from __future__ import annotations

from flinkray.core.errors import FlinkRayError


class ChannelError(FlinkRayError):
    """Base class of errors: a channel between two tasks has broken."""

    retryable = True

    def __init__(self, producer: str, consumer: str, reason: str) -> None:
        super().__init__(producer, consumer, reason)
        self.producer = producer
        """Names of the producing task and its process."""
        self.consumer = consumer
        """Names of the consuming task and its process."""
        self.reason = reason


class ProducerLostError(ChannelError):
    """Raised at a consumer: its input will not be complete.
    The producer failed, was cancelled, or its process died. Restart both."""

    def __str__(self) -> str:
        return f"{self.consumer} has lost its input from {self.producer}: {self.reason}"


class ConsumerLostError(ChannelError):
    """Raised at a producer: its consumer will not read the output.
    The consumer failed, was cancelled, or its process died. Restart both."""

    def __str__(self) -> str:
        return f"{self.producer} has lost its consumer {self.consumer}: {self.reason}"


class PartitionUnavailableError(FlinkRayError):
    """The producer's process runs but does not have the partition.
    All retries that ``taskmanager.network.request-backoff.*`` allows were used. The producer was
    not deployed or has failed, or the partition was released."""

    retryable = True

    def __init__(self, consumer: str, partition: str, process: str) -> None:
        super().__init__(consumer, partition, process)
        self.consumer = consumer
        self.partition = partition
        self.process = process

    def __str__(self) -> str:
        return f"{self.consumer}: partition {self.partition} is not found in {self.process}"


class PartitionReleasedError(FlinkRayError):
    """The partition was released. No more data can be written to it."""

    retryable = True


class WireFormatError(FlinkRayError):
    """The received bytes are not a frame of this protocol. The connection is closed."""

    retryable = True


class BatchTooLargeError(FlinkRayError):
    """One record is larger than a frame may hold. The text has both sizes."""
