"""What user code has failed with, as a value: its exceptions stay in its own thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from flinkray.actors.gateways.task_process import ResultPartitionNotFoundError
from flinkray.core.error_text import message_of, summary_of, traceback_of
from flinkray.core.errors import RpcError, SuppressRestartsError
from flinkray.core.ids import ResultPartitionID
from flinkray.spark.user_code import UserCodeError
from flinkray.streaming.errors import OperatorError
from flinkray.streaming.network import ChannelError, PartitionReleasedError

T = TypeVar("T")


class TaskCancelledError(BaseException):
    """Raised in the code of a task that is being cancelled.

    Not an Exception, so that ``except Exception`` does not hold it up.
    """


_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)

_CONSEQUENCES = (
    *_CANCELLED,
    TaskCancelledError,
    ChannelError,
    ResultPartitionNotFoundError,
    PartitionReleasedError,
    RpcError,
)
"""What a cancelled task fails with although nothing is wrong with its code."""


@dataclass(frozen=True, slots=True)
class CodeFailure:
    """Made in the thread in which it was raised: the class of an exception may do anything when it
    is asked for its text."""

    text: str
    traceback: str | None = None
    suppress_restarts: bool = False
    """It would happen again."""
    missing_partitions: tuple[ResultPartitionID, ...] = ()
    is_consequence: bool = False
    """Nothing is wrong with the code, if the task is being cancelled."""

    @classmethod
    def of(cls, error: BaseException) -> CodeFailure:
        """Never raises."""
        if isinstance(error, _CANCELLED):
            return cls("its code has cancelled itself", is_consequence=True)
        # the text of an OperatorError begins with the user's traceback
        return cls(
            message_of(error) if isinstance(error, OperatorError) else summary_of(error),
            traceback_of(error, error.__traceback__),
            any(isinstance(one, (SuppressRestartsError, UserCodeError)) for one in _causes(error)),
            error.missing if isinstance(error, ResultPartitionNotFoundError) else (),
            isinstance(error, _CONSEQUENCES),
        )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


class CodeFailedError(Exception):
    """User code has failed in its own thread; told here without anything that is the user's."""

    def __init__(self, failure: CodeFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def outcome_of(function: Callable[..., T], *args: Any) -> T | CodeFailure:
    """Call user code in its own thread: its result, or its failure."""
    try:
        return function(*args)
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raised
        return CodeFailure.of(error)
