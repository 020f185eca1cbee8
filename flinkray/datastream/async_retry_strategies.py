"""Strategies for calling an asynchronous function again.

Counterpart of PyFlink's ``pyflink.datastream.async_retry_strategies``.
"""

from __future__ import annotations

from flinkray.streaming.functions.async_functions import (
    NO_RETRY_STRATEGY as NO_RETRY_STRATEGY,
)
from flinkray.streaming.functions.async_functions import (
    ExponentialBackoffDelayRetryStrategy,
    FixedDelayRetryStrategy,
    NoRetryStrategy,
    RetryPredicate,
)

__all__ = [
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
]
