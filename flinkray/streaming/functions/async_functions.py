"""Asynchronous functions and their retry strategies, which users implement.

An asynchronous function waits for another system, such as a database, without blocking later
records. One thread with an event loop calls all methods of a function's copy, also ``open`` and
``close``. So these may be ``async def``, and may create and close objects that belong to the event
loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic

from flinkray.core.durations import Span
from flinkray.streaming.errors import UnavailableError, text_of
from flinkray.streaming.functions.functions import IN, OUT, Function

if TYPE_CHECKING:
    from flinkray.streaming.functions.runtime_context import RuntimeContext

ResultPredicate = Callable[[list[Any]], bool]
ExceptionPredicate = Callable[[Exception], bool]


class AsyncTimeoutError(UnavailableError, TimeoutError):
    """An asynchronous function has not returned its results in time."""


class AsyncFunction(Function, ABC, Generic[IN, OUT]):
    """Base of asynchronous functions: a coroutine returns any number of results for each value.
    Many coroutines run at the same time. A coroutine must not block; run blocking calls with
    ``asyncio.to_thread``."""

    def open(self, runtime_context: RuntimeContext) -> Awaitable[None] | None:
        """Called once before the first record; may be ``async def``. On a keyed stream,
        *runtime_context* gives keyed state. Only the coroutine itself can use it, not tasks that it
        starts."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Called once when no coroutine runs any more; may be ``async def``."""
        return None

    @abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """Return the results for a value: a list, which may be empty."""

    def timeout(self, value: IN) -> list[OUT]:
        """Return the results for a value for which :meth:`async_invoke` took too long.

        The coroutine has been cancelled. Override this method to avoid the error.

        Raises:
            AsyncTimeoutError: always, unless a subclass overrides the method.
        """
        raise AsyncTimeoutError(f"Async function call has timed out for input: {text_of(value)}")


class AsyncRetryPredicate(ABC, Generic[OUT]):
    """Decides after which outcomes a function is called again."""

    @abstractmethod
    def result_predicate(self) -> Callable[[list[OUT]], bool] | None:
        """Return the function that says whether to retry after a result; None: never."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """Return the function that says whether to retry after an exception; None: never."""


class AsyncRetryStrategy(ABC, Generic[OUT]):
    """Decides whether, when and why a function is called again for a record."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Return whether another attempt may follow after *current_attempts* attempts."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Return the time to wait after *current_attempts* attempts, in milliseconds."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        """Return the predicates that say which outcomes are retried."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy[Any]:
        """Return a strategy that never retries."""
        return NO_RETRY_STRATEGY

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> FixedDelayRetryStrategy[Any]:
        """Return a strategy with up to *max_attempts* retries and equal delays (milliseconds)."""
        return FixedDelayRetryStrategy(
            max_attempts, backoff_time_millis, result_predicate, exception_predicate
        )

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> ExponentialBackoffDelayRetryStrategy[Any]:
        """Return a strategy with up to *max_attempts* retries and growing delays (milliseconds)."""
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts,
            initial_delay,
            max_retry_delay,
            multiplier,
            result_predicate,
            exception_predicate,
        )


class RetryPredicate(AsyncRetryPredicate[OUT]):
    """A retry predicate of two given functions. None in place of a function: never retry."""

    def __init__(
        self,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> None:
        self._result_predicate = result_predicate
        self._exception_predicate = exception_predicate

    def result_predicate(self) -> ResultPredicate | None:
        return self._result_predicate

    def exception_predicate(self) -> ExceptionPredicate | None:
        return self._exception_predicate


class NoRetryStrategy(AsyncRetryStrategy[OUT]):
    """The retry strategy that never calls the function again."""

    def can_retry(self, current_attempts: int) -> bool:
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        return RetryPredicate(None, None)


NO_RETRY_STRATEGY: AsyncRetryStrategy[Any] = NoRetryStrategy()


class _LimitedRetryStrategy(AsyncRetryStrategy[OUT]):
    """Base class of retry strategies with a limited number of retries."""

    def __init__(
        self,
        max_attempts: int,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> None:
        self._max_attempts = max_attempts
        self._predicate: RetryPredicate[OUT] = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._max_attempts

    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        return self._predicate


class FixedDelayRetryStrategy(_LimitedRetryStrategy[OUT]):
    """Up to *max_attempts* retries, each after *backoff_time_millis* milliseconds.

    Raises:
        ValueError: a number is not greater than zero.
    """

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> None:
        _expect_positive(max_attempts=max_attempts, backoff_time_millis=backoff_time_millis)
        super().__init__(max_attempts, result_predicate, exception_predicate)
        self._backoff_time_millis = backoff_time_millis

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return self._backoff_time_millis


class ExponentialBackoffDelayRetryStrategy(_LimitedRetryStrategy[OUT]):
    """Up to *max_attempts* retries, with a delay that grows up to *max_retry_delay* milliseconds.

    >>> strategy = ExponentialBackoffDelayRetryStrategy(5, 100, 500, 2.0, None, None)
    >>> [strategy.get_backoff_time_millis(attempts) for attempts in (1, 2, 3, 4)]
    [100, 200, 400, 500]

    Raises:
        ValueError: a number is not greater than zero.
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> None:
        _expect_positive(
            max_attempts=max_attempts,
            initial_delay=initial_delay,
            max_retry_delay=max_retry_delay,
            multiplier=multiplier,
        )
        super().__init__(max_attempts, result_predicate, exception_predicate)
        self._initial_delay = initial_delay
        self._max_retry_delay = max_retry_delay
        self._multiplier = multiplier

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        # Many records share the strategy, so it does not remember earlier attempts.
        delay = self._initial_delay
        for _ in range(1, current_attempts):
            delay = int(min(delay * self._multiplier, self._max_retry_delay))
        return delay


def _expect_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if number <= 0:
            raise ValueError(f"{name} should be greater than zero, got {number!r}")


@dataclass(frozen=True)
class AsyncFunctionDescriptor:
    """Describes an asynchronous operator: its function, and the options of the calls."""

    class OutputMode(Enum):
        """The order in which an asynchronous operator puts results out."""

        ORDERED = 0
        """The order of the records."""
        UNORDERED = 1
        """The order in which results arrive, but never across a watermark."""

    async_function: AsyncFunction[Any, Any]
    timeout: Span
    """Time limit for one record with all its attempts; 0: no limit."""
    capacity: int
    """Most records that are in progress at once."""
    async_retry_strategy: AsyncRetryStrategy[Any]
    output_mode: OutputMode
