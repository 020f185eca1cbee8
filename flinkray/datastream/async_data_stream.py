"""Streams through asynchronous functions (PyFlink's ``pyflink.datastream.async_data_stream``)."""

from __future__ import annotations

import inspect

from flinkray.core.durations import Span, milliseconds
from flinkray.datastream.keyed_stream import KeyedStream
from flinkray.datastream.stream import Collected, DataStream
from flinkray.datastream.type_variables import R, U
from flinkray.streaming.functions.async_functions import (
    NO_RETRY_STRATEGY,
    AsyncFunction,
    AsyncFunctionDescriptor,
    AsyncRetryStrategy,
)
from flinkray.streaming.functions.signatures import refuse_coroutines
from flinkray.streaming.operators.async_wait import AsyncWaitOperator, KeyedAsyncWaitOperator
from flinkray.streaming.records.typeinfo import TypeInformation

__all__ = ["AsyncDataStream"]


_MODES = AsyncFunctionDescriptor.OutputMode


class AsyncDataStream:
    """Methods that apply an :class:`AsyncFunction` to a stream.

    Each subtask has up to *capacity* open calls. As in PyFlink, the records of a keyed stream are
    passed as rows of key and value.

    >>> import asyncio
    >>> from flinkray.datastream import AsyncFunction, StreamExecutionEnvironment, Time
    >>> class Slowly(AsyncFunction):
    ...     async def async_invoke(self, value):
    ...         await asyncio.sleep(value / 100)
    ...         return [value]
    >>> numbers = StreamExecutionEnvironment.get_execution_environment().from_collection([3, 1])
    >>> AsyncDataStream.ordered_wait(numbers, Slowly(), Time.seconds(10)).execute_and_collect(2)
    [3, 1]
    """

    @staticmethod
    def unordered_wait(
        data_stream: Collected[U],
        async_function: AsyncFunction[U, R],
        timeout: Span,
        capacity: int = 100,
        output_type: TypeInformation[R] | None = None,
    ) -> DataStream[R]:
        """Apply an asynchronous function; results come in the order in which they are complete.

        Results and watermarks keep their order: the result of a record comes after every watermark
        that came before the record, and before every watermark that came after the record.

        Args:
            timeout: most time for the results of a record. After that time the function's method
                ``timeout`` is called, and returns the results or raises an error. 0: no limit.
            capacity: most records of a subtask with open calls; further records wait.
        """
        return AsyncDataStream.unordered_wait_with_retry(
            data_stream, async_function, timeout, NO_RETRY_STRATEGY, capacity, output_type
        )

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: Collected[U],
        async_function: AsyncFunction[U, R],
        timeout: Span,
        async_retry_strategy: AsyncRetryStrategy[R],
        capacity: int = 100,
        output_type: TypeInformation[R] | None = None,
    ) -> DataStream[R]:
        """Apply an asynchronous function with retries; results come in the order in which they are
        complete. After a result or an error of a record, the strategy decides whether the function
        is called again. *timeout* limits all calls for one record together."""
        descriptor = AsyncFunctionDescriptor(
            async_function, timeout, capacity, async_retry_strategy, _MODES.UNORDERED
        )
        return _then(data_stream, descriptor, output_type)

    @staticmethod
    def ordered_wait(
        data_stream: Collected[U],
        async_function: AsyncFunction[U, R],
        timeout: Span,
        capacity: int = 100,
        output_type: TypeInformation[R] | None = None,
    ) -> DataStream[R]:
        """Apply an asynchronous function; results keep the order of their records: a late result
        delays the results of later records."""
        return AsyncDataStream.ordered_wait_with_retry(
            data_stream, async_function, timeout, NO_RETRY_STRATEGY, capacity, output_type
        )

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: Collected[U],
        async_function: AsyncFunction[U, R],
        timeout: Span,
        async_retry_strategy: AsyncRetryStrategy[R],
        capacity: int = 100,
        output_type: TypeInformation[R] | None = None,
    ) -> DataStream[R]:
        """Apply an asynchronous function with retries; results come in the order of the records.
        After a result or an error of a record, the strategy decides whether the function is called
        again. *timeout* limits all calls for one record together."""
        descriptor = AsyncFunctionDescriptor(
            async_function, timeout, capacity, async_retry_strategy, _MODES.ORDERED
        )
        return _then(data_stream, descriptor, output_type)


def _then(
    stream: Collected[U],
    descriptor: AsyncFunctionDescriptor,
    output_type: TypeInformation | None,
) -> DataStream:
    _check(descriptor)
    name = "async wait operator"
    if isinstance(stream, KeyedStream):
        keyed = KeyedAsyncWaitOperator(descriptor, stream._keys)
        return stream._then_keyed(name, keyed, output_type)
    operator = AsyncWaitOperator(descriptor)
    return stream._collected()._then(name, operator, output_type)


def _check(descriptor: AsyncFunctionDescriptor) -> None:
    function, strategy = descriptor.async_function, descriptor.async_retry_strategy
    if not isinstance(function, AsyncFunction):
        raise TypeError(f"an AsyncFunction is needed, got {function!r}")
    name = type(function).__qualname__
    if not inspect.iscoroutinefunction(function.async_invoke):
        raise TypeError(
            f"Method 'async_invoke' of class {name!r} should be declared as 'async def', and "
            "return a list of results, not yield them"
        )
    refuse_coroutines(function.timeout)
    if not isinstance(strategy, AsyncRetryStrategy):
        raise TypeError(f"an AsyncRetryStrategy is needed, got {strategy!r}")
    if strategy.get_retry_predicate() is None:
        raise TypeError(
            f"Retry predicate of the async retry strategy {type(strategy).__qualname__!r} is None."
        )
    if strategy is not NO_RETRY_STRATEGY and milliseconds(descriptor.timeout) <= 0:
        raise ValueError("Timeout should be configured when do async with retry.")
    capacity = descriptor.capacity
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
        raise ValueError(f"capacity is a number of records, at least 1, got {capacity!r}")
