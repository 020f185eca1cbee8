"""The error tree.

Every error of flinkray derives from :class:`FlinkRayError`.  It carries the ids it is about as
attributes, survives pickling and the wire (it is rebuilt from ``args``: positional constructor
arguments, all of them types that a message may hold), and says in ``retryable`` whether the same
call may succeed later without anything being changed.
"""

from __future__ import annotations

from typing import ClassVar

from flinkray.core.ids import FencingToken, JobID
from flinkray.core.message import register


class FlinkRayError(Exception):
    """Base of all errors raised by flinkray."""

    retryable: ClassVar[bool] = False
    remote_traceback: str | None = None
    """Where the error arose, when that was in another process."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)


# --- RPC ------------------------------------------------------------------------------------------


class RpcError(FlinkRayError):
    """A call could not be carried out (as opposed to: the handler raised)."""


class RpcConnectionError(RpcError):
    """No endpoint could be reached at an address.  The message contains the address."""

    retryable = True


class HandshakeError(RpcConnectionError):
    """The other side speaks another protocol version, another gateway, or does not know
    the secret."""

    retryable = False


class RecipientUnreachableError(RpcError):
    """The endpoint is dead or stopped; raised at once, never after a timeout."""

    retryable = True


class ProcessExistsError(RpcError):
    """A process of that name runs already; stop or kill it first, or connect to it."""

    def __init__(self, process_name: str) -> None:
        super().__init__(process_name)
        self.process_name = process_name

    def __str__(self) -> str:
        return f"a process named {self.process_name} runs already"


class HandlerCancelledError(RpcError):
    """A handler, ``on_start`` or ``on_stop`` was cancelled, or what it awaited was, and not because
    its endpoint or process ended.

    What it had done by then stays done.
    """

    retryable = True


class EndpointNotStartedError(RpcError):
    """The endpoint exists but its ``start`` has not been called yet; the call was not queued."""

    retryable = True


class RpcTimeoutError(RpcError, TimeoutError):
    """No answer in time.  The message names gateway and method."""

    retryable = True


class RpcSerializationError(RpcError):
    """An argument or a result cannot travel; the message names method and argument."""


class FrameTooLargeError(RpcSerializationError):
    """A message is larger than the frame limit; the message contains the limit."""


class RemoteError(RpcError):
    """A handler raised an exception whose type this process does not know.

    The arguments are the type's name and its message; ``remote_traceback`` has the rest.
    """

    def __init__(self, error_type: str, text: str) -> None:
        super().__init__(error_type, text)
        self.error_type = error_type
        self.text = text

    def __str__(self) -> str:
        return f"{self.error_type}: {self.text}"


class FencingTokenError(RpcError):
    """A call's fencing token is not the endpoint's: its sender follows a leader of the past."""

    def __init__(
        self,
        endpoint: str,
        method: str,
        expected: FencingToken | None,
        received: FencingToken | None,
    ) -> None:
        super().__init__(endpoint, method, expected, received)
        self.endpoint = endpoint
        self.method = method
        self.expected = expected
        self.received = received

    def __str__(self) -> str:
        return (
            f"{self.endpoint} refused {self.method}: fencing token {self.received} "
            f"is not that of its leader session, {self.expected}"
        )


# --- jobs -----------------------------------------------------------------------------------------


class JobError(FlinkRayError):
    """An error about one job; ``job_id`` says which."""

    def __init__(self, job_id: JobID, text: str) -> None:
        super().__init__(job_id, text)
        self.job_id = job_id
        self.text = text

    def __str__(self) -> str:
        return f"job {self.job_id}: {self.text}"


class JobSubmissionError(JobError):
    """The job was refused; nothing was started."""


class DuplicateJobSubmissionError(JobSubmissionError):
    """A job of that id runs or has run on this cluster."""


class JobNotFoundError(JobError):
    """No job of that id is known to this cluster."""

    def __init__(self, job_id: JobID, text: str = "") -> None:
        super().__init__(job_id, text or "not known to this cluster (see: flinkray list)")
        self.args = (job_id, self.text)


class JobExecutionError(JobError):
    """The job failed; the text is the cause, ``remote_traceback`` where it arose."""


class JobCancelledError(JobError):
    """The job was cancelled before it finished."""


class JobNotFinishedError(JobError):
    """The job was suspended: its cluster stopped before it reached an end."""

    retryable = True


class JobStateError(JobError):
    """The operation does not fit the job's present state (cancelling a finished job, …)."""


class SuppressRestartsError(FlinkRayError):
    """For user code to raise: the job fails and is not restarted, as it would only fail again."""


class UnreadableRecordError(JobError):
    """What is stored of a job cannot be read by this flinkray, or was damaged; it stays stored.

    Bring back the flinkray that wrote it, or remove it where it lies.
    """

    def __init__(self, job_id: JobID, location: str, reason: str) -> None:
        super().__init__(job_id, f"its record at {location} cannot be read: {reason}")
        self.args = (job_id, location, reason)
        self.location = location
        self.reason = reason


class StoredFormatError(FlinkRayError, ValueError):
    """A value cannot be stored, or stored bytes cannot be read; the text says why and names the
    type."""


# --- resources ------------------------------------------------------------------------------------


class UnfulfillableSlotRequestError(FlinkRayError):
    """No node of the cluster could ever hold a slot of the wanted profile."""


class NoResourceAvailableError(FlinkRayError):
    """The required slots were not there within the slot request timeout."""

    retryable = True


class SlotAllocationError(FlinkRayError):
    """A TaskExecutor refused to allocate a slot."""

    retryable = True


class UnknownTaskExecutorError(FlinkRayError):
    """The TaskExecutor is not (or no longer) registered."""


class AttemptDisposedError(FlinkRayError):
    """An execution attempt is not (any more) the current one of its subtask, or has ended."""

    def __init__(self, attempt: str) -> None:
        super().__init__(attempt)
        self.attempt = attempt

    def __str__(self) -> str:
        return f"task {self.attempt} is not run by this JobMaster (any more)"


class CoordinatorReplacedError(FlinkRayError):
    """An operator coordinator belongs to another JobMaster of the job than the one that calls it,
    or whose task does."""

    retryable = True


class PartitionProducerDisposedError(FlinkRayError):
    """A partition is of an attempt that has been replaced; the error names the current attempt."""

    def __init__(self, partition: str, current_attempt: str) -> None:
        super().__init__(partition, current_attempt)
        self.partition = partition
        self.current_attempt = current_attempt

    def __str__(self) -> str:
        return f"partition {self.partition}: its producer is at attempt {self.current_attempt} now"


class IllegalTransitionError(FlinkRayError):
    """An illegal transition of a state machine; the text tells its story."""


# --- environment and configuration ----------------------------------------------------------------


class ConfigurationError(FlinkRayError, ValueError):
    """A configuration key is unknown or its value is not acceptable; the text names it."""


class UnsupportedEnvironmentError(FlinkRayError):
    """What this machine needs is missing or of the wrong version; the text says how to mend it."""
