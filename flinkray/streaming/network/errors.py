"""What can go wrong between two tasks; every error names both."""

from __future__ import annotations

from flinkray.core.errors import FlinkRayError


class ChannelError(FlinkRayError):
    """A channel between two tasks has broken."""

    retryable = True

    def __init__(self, producer: str, consumer: str, reason: str) -> None:
        super().__init__(producer, consumer, reason)
        self.producer = producer
        """Task and process."""
        self.consumer = consumer
        """Task and process."""
        self.reason = reason


class ProducerLostError(ChannelError):
    """For a consumer: what it reads will not be complete.  The producer failed, was cancelled, or
    its process died; restart both."""

    def __str__(self) -> str:
        return f"{self.consumer} has lost its input from {self.producer}: {self.reason}"


class ConsumerLostError(ChannelError):
    """For a producer: nobody will read what it writes.  The consumer failed, was cancelled, or its
    process died; restart both."""

    def __str__(self) -> str:
        return f"{self.producer} has lost its consumer {self.consumer}: {self.reason}"


class PartitionUnavailableError(FlinkRayError):
    """The producer's process is there and does not have the partition, not even after all
    requests that ``taskmanager.network.request-backoff.*`` allows: its producer has not been
    deployed, has failed, or the partition was released."""

    retryable = True

    def __init__(self, consumer: str, partition: str, process: str) -> None:
        super().__init__(consumer, partition, process)
        self.consumer = consumer
        self.partition = partition
        self.process = process

    def __str__(self) -> str:
        return f"{self.consumer}: partition {self.partition} is not found in {self.process}"


class PartitionReleasedError(FlinkRayError):
    """The partition was released; nothing can be written to it any more."""


class WireFormatError(FlinkRayError):
    """What came is not a frame of this protocol: the connection is given up."""


class BatchTooLargeError(FlinkRayError):
    """One record is larger than what a frame may hold; the text has both sizes."""
