"""Global aggregates: named aggregates to which all tasks of a job add values."""

from __future__ import annotations

import asyncio
import pickle
import threading
from abc import ABC, abstractmethod
from typing import Any, TypeVar

from flinkray.core import cloud_pickle
from flinkray.core.error_text import summary_of, traceback_of
from flinkray.core.errors import FlinkRayError
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.functions.functions import AggregateFunction
from flinkray.streaming.operator_errors import user_frames

IN = TypeVar("IN")
OUT = TypeVar("OUT")


class GlobalAggregateManager(ABC):
    """Gives a function the global aggregates of its job."""

    @abstractmethod
    def update_global_aggregate(
        self, name: str, aggregand: IN, aggregate_function: AggregateFunction[IN, Any, OUT]
    ) -> OUT:
        """Add *aggregand* to the aggregate *name*, and return the aggregate's new result.

        All tasks of the job share the aggregate. Values are added one after the other. The call
        waits for the result, and the task does nothing else meanwhile. *aggregate_function* runs
        in the job's StreamCoordinator; do not change the function between two calls.

        Raises:
            GlobalAggregateError: the function failed. The value was not added.
            GlobalAggregatesLostError: the process with the aggregates has died since this task's
                last call. The value was not added. The next call adds to a new aggregate.
            StreamError: *name* is no text, *aggregate_function* is no AggregateFunction,
                *aggregand* or the function cannot be sent, or the job has no StreamCoordinator.
        """


class GlobalAggregateError(FlinkRayError):
    """The function of a global aggregate failed.
    The text contains the traceback of the function."""

    retryable = True
    is_counted = True

    def __init__(self, name: str, story: str) -> None:
        super().__init__(name, story)
        self.name = name
        """Name of the aggregate."""
        self.story = story
        """The traceback of the function."""

    def __str__(self) -> str:
        return f"the function of the global aggregate {self.name!r} failed:\n{self.story.rstrip()}"


class GlobalAggregatesLostError(FlinkRayError):
    """The values that a job's global aggregates had are lost, because their process has died."""

    retryable = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        """Name of the aggregate that was to be updated."""

    def __str__(self) -> str:
        return (
            f"the value was not added to the global aggregate {self.name!r}: what was added before "
            "is lost with the process that had the job's global aggregates; the next call adds to "
            "a new aggregate"
        )


def global_aggregate_error(name: str, error: BaseException) -> GlobalAggregateError:
    return GlobalAggregateError(name, traceback_of(error, user_frames(error)))


def pickled_aggregand(name: str, value: object) -> bytes:
    """Return *value* pickled, to be added to the global aggregate *name*. Raises StreamError if the
    value cannot be pickled."""
    try:
        return cloud_pickle.dumps(value)
    except Exception as error:
        raise StreamError(
            f"a {type(value).__name__} cannot be sent to the global aggregate {name!r}: "
            f"{summary_of(error)}"
        ) from error


def check_aggregate(name: object, function: object) -> None:
    """Raise StreamError if *name* is no text or *function* is no AggregateFunction."""
    if not isinstance(name, str):
        raise StreamError(f"the name of a global aggregate must be a str, got {text_of(name)}")
    if not isinstance(function, AggregateFunction):
        raise StreamError(
            f"the function of the global aggregate {name!r} must be an AggregateFunction, "
            f"got {text_of(function)}"
        )


class GlobalAggregates:
    """The accumulators of a job's global aggregates.
    Accumulators are kept pickled, so that a function that fails has changed nothing. Two updates of
    one aggregate must not run at the same time."""

    def __init__(self, largest_result: int | None = None) -> None:
        """Start without aggregates. *largest_result*: most bytes of a pickled result; None: any."""
        self._largest_result = largest_result
        self._accumulators: dict[str, bytes] = {}

    def update(self, name: str, value: bytes, function: AggregateFunction[Any, Any, Any]) -> bytes:
        """Add a pickled value to the aggregate *name*, and return the pickled result. Raises the
        exceptions of *function*, and StreamError if the result is larger than allowed. After an
        exception, the value has not been added."""
        known = self._accumulators.get(name)
        before = function.create_accumulator() if known is None else pickle.loads(known)
        added = cloud_pickle.dumps(function.add(pickle.loads(value), before))
        # a value that cannot be loaded must fail this update, not the ones that follow
        result = cloud_pickle.dumps(function.get_result(pickle.loads(added)))
        pickle.loads(result)
        if self._largest_result is not None and len(result) > self._largest_result:
            raise StreamError(
                f"a result of {len(result)} bytes cannot be sent; the largest may have "
                f"{self._largest_result} bytes (rpc.frame-size)"
            )
        self._accumulators[name] = added
        return result


class LocalGlobalAggregateManager(GlobalAggregateManager):
    """Keeps the global aggregates of a job whose tasks all run in this process."""

    def __init__(self) -> None:
        self._aggregates = GlobalAggregates()
        self._turn = threading.Lock()

    def update_global_aggregate(
        self, name: str, aggregand: IN, aggregate_function: AggregateFunction[IN, Any, OUT]
    ) -> OUT:
        check_aggregate(name, aggregate_function)
        value = pickled_aggregand(name, aggregand)
        with self._turn:
            try:
                result = self._aggregates.update(name, value, aggregate_function)
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                raise global_aggregate_error(name, error) from error
        loaded: OUT = pickle.loads(result)
        return loaded
