"""Defines the error classes of flinkray, all derived from :class:`FlinkRayError`.

An error has the ids that it is about as attributes. In messages and pickles, an error is rebuilt
from ``args``, the positional constructor arguments, whose types must be allowed in messages.
``retryable`` says whether the same call may succeed later without any change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flinkray.core.ids import FencingToken, JobID
from flinkray.core.message import register

if TYPE_CHECKING:
    from flinkray.core.recurring_errors import Outlook


class FlinkRayError(Exception):
    """Base of all errors raised by flinkray."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later. False for a failed task: the job fails at once."""
    is_counted: ClassVar[bool] = False
    """Whether a job fails after several attempts that end with this same error.
    Has an effect only on retryable failures of tasks; the program's own errors count, too."""
    only_says_where: ClassVar[bool] = False
    """Whether this error only says where ``__cause__`` occurred.
    If so, ``__cause__`` is the real error and decides whether a retry can help."""
    outlook: Outlook | None = None
    """Whether a restart helps, as determined in the process that raised the error.
    None: derive the outlook from the error."""
    remote_traceback: str | None = None
    """Traceback in the process where the error was raised; None: raised in this process."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)


# --- RPC ------------------------------------------------------------------------------------------


class RpcError(FlinkRayError):
    """A call could not be carried out. Errors that the handler raised are not RpcErrors."""


class RpcConnectionError(RpcError):
    """No endpoint could be reached at an address.  The message contains the address."""

    retryable = True


class HandshakeError(RpcConnectionError):
    """The other side speaks another protocol version or gateway, or does not know the secret."""

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
    """A handler, ``on_start`` or ``on_stop`` was cancelled, although its endpoint still runs.
    The method, or a coroutine that it awaited, was cancelled. Effects before the cancellation
    remain."""

    retryable = True


class EndpointNotStartedError(RpcError):
    """The endpoint exists but its ``start`` has not been called yet; the call was not queued."""

    retryable = True


class RpcTimeoutError(RpcError, TimeoutError):
    """No answer arrived in time. The message names gateway and method."""

    retryable = True


class RpcSerializationError(RpcError):
    """An argument or a result cannot be serialised; the message names method and argument."""


class FrameTooLargeError(RpcSerializationError):
    """A message is larger than the frame limit; the message contains the limit."""


class RemoteError(RpcError):
    """A handler raised an exception whose type this process does not know.
    The arguments are the type's name and its message; ``remote_traceback`` has the traceback."""

    def __init__(self, error_type: str, text: str) -> None:
        super().__init__(error_type, text)
        self.error_type = error_type
        self.text = text

    def __str__(self) -> str:
        return f"{self.error_type}: {self.text}"


class FencingTokenError(RpcError):
    """A call's fencing token is not that of the endpoint, because the sender knows another leader
    session than the endpoint's (mostly an earlier one)."""

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
    """An error about one job; ``job_id`` names the job."""

    def __init__(self, job_id: JobID, text: str) -> None:
        super().__init__(job_id, text)
        self.job_id = job_id
        self.text = text

    def __str__(self) -> str:
        return f"job {self.job_id}: {self.text}"


class JobSubmissionError(JobError):
    """The job was refused; nothing was started."""


class DuplicateJobSubmissionError(JobSubmissionError):
    """A job with that id runs or has run on this cluster."""


class JobNotFoundError(JobError):
    """This cluster knows no job with that id."""

    def __init__(self, job_id: JobID, text: str = "") -> None:
        super().__init__(job_id, text or "not known to this cluster (see: flinkray list)")
        self.args = (job_id, self.text)


class JobExecutionError(JobError):
    """The job failed. The text gives the cause, ``remote_traceback`` the traceback."""


class JobCancelledError(JobError):
    """The job was cancelled before it finished."""


class JobNotFinishedError(JobError):
    """The job was suspended: its cluster stopped before it reached an end."""

    retryable = True


class JobStateError(JobError):
    """The operation is not possible in the job's present state (cancelling a finished job, …)."""


class SuppressRestartsError(FlinkRayError):
    """Raised by user code: the job fails and is not restarted, since a restart would fail again."""


class UnreadableRecordError(JobError):
    """The stored record of a job is damaged or unreadable for this flinkray; it stays stored.
    Use the version of flinkray that wrote the record, or delete the record."""

    def __init__(self, job_id: JobID, location: str, reason: str) -> None:
        super().__init__(job_id, f"its record at {location} cannot be read: {reason}")
        self.args = (job_id, location, reason)
        self.location = location
        self.reason = reason


class StoredFormatError(FlinkRayError, ValueError):
    """A value cannot be stored, or stored bytes cannot be read; the text names cause and type."""


# --- resources ------------------------------------------------------------------------------------


class UnfulfillableSlotRequestError(FlinkRayError):
    """No node of the cluster could ever hold a slot with the requested profile."""


class NoResourceAvailableError(FlinkRayError):
    """The required slots were not available within the slot request timeout."""

    retryable = True


class SlotAllocationError(FlinkRayError):
    """A TaskExecutor refused to allocate a slot."""

    retryable = True


class UnknownTaskExecutorError(FlinkRayError):
    """The TaskExecutor is not registered, or not any more."""


class AttemptDisposedError(FlinkRayError):
    """An execution attempt is not the current attempt of its subtask (any more), or has ended."""

    retryable = True

    def __init__(self, attempt: str) -> None:
        super().__init__(attempt)
        self.attempt = attempt

    def __str__(self) -> str:
        return f"task {self.attempt} is not run by this JobMaster (any more)"


class CoordinatorReplacedError(FlinkRayError):
    """A call reached an operator coordinator that works for another JobMaster of the job.
    The caller is a JobMaster, or a task of a JobMaster."""

    retryable = True


class PartitionProducerDisposedError(FlinkRayError):
    """A partition belongs to an attempt that was replaced; the error names the current attempt."""

    retryable = True

    def __init__(self, partition: str, current_attempt: str) -> None:
        super().__init__(partition, current_attempt)
        self.partition = partition
        self.current_attempt = current_attempt

    def __str__(self) -> str:
        return f"partition {self.partition}: its producer is at attempt {self.current_attempt} now"


class IllegalTransitionError(FlinkRayError):
    """An illegal transition of a state machine; the text lists the transitions so far."""

    retryable = True


# --- environment and configuration ----------------------------------------------------------------


class ConfigurationError(FlinkRayError, ValueError):
    """A configuration key is unknown, or its value is not accepted; the text names key or value."""


class UnsupportedEnvironmentError(FlinkRayError):
    """A dependency is missing on this machine or has the wrong version; the text has a solution."""
