"""Functions that wait for others, such as a database or a web service, without holding up the
records behind: what users implement, and when a call is made again.

All calls of one function's copy come from one thread, that of an event loop which runs all the
time: also those of ``open`` and ``close``, which may therefore be ``async def``, and may make or
close what belongs to the loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic

from flinkray.core.durations import Span
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.functions.functions import IN, OUT, Function

if TYPE_CHECKING:
    from flinkray.streaming.functions.runtime_context import RuntimeContext

ResultPredicate = Callable[[list[Any]], bool]
ExceptionPredicate = Callable[[Exception], bool]


class AsyncTimeoutError(StreamError, TimeoutError):
    """There was no result in time."""


class AsyncFunction(Function, ABC, Generic[IN, OUT]):
    """Any number of results for each value, in a coroutine: many run at the same time.

    A coroutine must not block: what does belongs into ``asyncio.to_thread``.
    """

    def open(self, runtime_context: RuntimeContext) -> Awaitable[None] | None:  # type: ignore[override]
        """Called once before the first record; may be ``async def``.  There is no state."""
        return None

    def close(self) -> Awaitable[None] | None:  # type: ignore[override]
        """Called once when no coroutine runs any more; may be ``async def``."""
        return None

    @abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """The results; an empty list where there are none."""

    def timeout(self, value: IN) -> list[OUT]:
        """The results where the time is over; the coroutine has been cancelled.

        Raises:
            TimeoutError: unless it is overridden.
        """
        raise AsyncTimeoutError(f"Async function call has timed out for input: {text_of(value)}")


class AsyncRetryPredicate(ABC, Generic[OUT]):
    """Which outcomes are reasons to call once more."""

    @abstractmethod
    def result_predicate(self) -> Callable[[list[OUT]], bool] | None:
        """Whether a result is; None: none is."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """Whether what was raised is; None: nothing is."""


class AsyncRetryStrategy(ABC, Generic[OUT]):
    """Whether, when and why a function is called once more for a record."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Whether there may be one more attempt after so many."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """How long to wait after so many attempts."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        """What an outcome must be like."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy[Any]:
        """The first outcome holds."""
        return NO_RETRY_STRATEGY

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> FixedDelayRetryStrategy[Any]:
        """Up to so many times, always after the same time."""
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
        """Up to so many times, each time after a longer time, in milliseconds."""
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts,
            initial_delay,
            max_retry_delay,
            multiplier,
            result_predicate,
            exception_predicate,
        )


class RetryPredicate(AsyncRetryPredicate[OUT]):
    """Two functions; None of them: never."""

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
    """See :meth:`AsyncRetryStrategy.no_restart`."""

    def can_retry(self, current_attempts: int) -> bool:
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        return RetryPredicate(None, None)


NO_RETRY_STRATEGY: AsyncRetryStrategy[Any] = NoRetryStrategy()


class _LimitedRetryStrategy(AsyncRetryStrategy[OUT]):
    """So many attempts, of what the predicates say."""

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
    """See :meth:`AsyncRetryStrategy.fixed_delay`.

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
    """See :meth:`AsyncRetryStrategy.exponential_backoff`.

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
        # Many records share the strategy: nothing is remembered of the attempts before.
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
    """An asynchronous function, and how it is called."""

    class OutputMode(Enum):
        """In which order results go on."""

        ORDERED = 0
        """That of the records."""
        UNORDERED = 1
        """As they come, but not across a watermark."""

    async_function: AsyncFunction[Any, Any]
    timeout: Span
    """For a record, with all attempts; 0: for ever."""
    capacity: int
    """Records that are on their way at once."""
    async_retry_strategy: AsyncRetryStrategy[Any]
    output_mode: OutputMode
