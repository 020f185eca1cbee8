"""Failures of user code as values. The exceptions themselves stay in the thread of the code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flinkray.actors.gateways.task_process import ResultPartitionNotFoundError
from flinkray.core.error_text import message_of, summary_of, traceback_of
from flinkray.core.errors import RpcError
from flinkray.core.ids import ResultPartitionID
from flinkray.core.recurring_errors import ProgramError, outlook_of
from flinkray.streaming.network import ChannelError, PartitionReleasedError
from flinkray.streaming.operator_errors import OperatorError

T = TypeVar("T")


class TaskCancelledError(BaseException):
    """Raised in the code of a task that is being cancelled.

    It is not an Exception, so that ``except Exception`` does not catch it.
    """


class Cancellation:
    """Tells the code of one task, in whatever thread, that the task is cancelled."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._listeners: list[Callable[[], object]] = []

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    def request(self) -> None:
        """Tell the task's code that the task is cancelled. Called on the process's main thread."""
        self._requested.set()
        for listener in self._listeners:
            listener()

    def listen(self, callback: Callable[[], object]) -> None:
        """Call *callback* when the cancellation is requested, at once if it already is. Called on
        the main thread, like the callback."""
        self._listeners.append(callback)
        if self.is_requested:
            callback()

    def check(self) -> None:
        """Raise TaskCancelledError if the cancellation is requested. Called from any thread."""
        if self.is_requested:
            raise TaskCancelledError


_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)

_CONSEQUENCES = (
    *_CANCELLED,
    TaskCancelledError,
    ChannelError,
    ResultPartitionNotFoundError,
    PartitionReleasedError,
    RpcError,
)
"""Errors that the code of a cancelled task may raise only because of the cancellation."""


@dataclass(frozen=True, slots=True)
class CodeFailure:
    """Description of an exception that user code has raised, without the exception itself.
    Created in the thread of the code, because the class of an exception may do anything when its
    text is requested.
    """

    text: str
    traceback: str | None = None
    suppress_restarts: bool = False
    """Whether a restart would fail in the same way, so that the job must not restart."""
    missing_partitions: tuple[ResultPartitionID, ...] = ()
    is_consequence: bool = False
    """Whether the failure can be a consequence of a cancellation.
    It is none if nothing is cancelled.
    """
    program_error: ProgramError | None = None
    """Identity of the failure, to recognise whether the next attempt fails with the same one."""

    @classmethod
    def of(cls, error: BaseException) -> CodeFailure:
        """Return the description of *error*. Never raises, whatever its class does."""
        if isinstance(error, _CANCELLED):
            return cls("its code has cancelled itself", is_consequence=True)
        outlook = outlook_of(error, _record_of(error))
        # the text of an OperatorError begins with the user's traceback
        return cls(
            message_of(error) if isinstance(error, OperatorError) else summary_of(error),
            traceback_of(error, error.__traceback__),
            outlook.will_recur,
            error.missing if isinstance(error, ResultPartitionNotFoundError) else (),
            isinstance(error, _CONSEQUENCES),
            outlook.program_error,
        )


def _record_of(error: BaseException) -> str:
    """Return a text that names the record on which the code failed, and its origin. Empty if
    unknown."""
    if not isinstance(error, OperatorError) or not error.record or not error.origin:
        return ""
    return f"{error.record} from {error.origin}"


class CodeFailedError(Exception):
    """Raised on the event loop when user code in another thread has failed.
    Holds no user objects.
    """

    def __init__(self, failure: CodeFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def outcome_of(function: Callable[..., T], *args: Any) -> T | CodeFailure:
    """Call *function* in the present thread. Returns its result, or a CodeFailure if it raises."""
    try:
        return function(*args)
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raised
        return CodeFailure.of(error)
