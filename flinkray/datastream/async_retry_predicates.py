"""Predicates for calling an asynchronous function again.

Counterpart of PyFlink's ``pyflink.datastream.async_retry_predicates``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["empty_result_predicate", "exception_type_predicate", "has_exception_predicate"]


def empty_result_predicate(result: list[Any] | None) -> bool:
    """Return whether *result* is None or an empty list."""
    return not result


def has_exception_predicate(error: Exception | None) -> bool:
    """Return True if the call raised an exception of any type."""
    return error is not None


def exception_type_predicate(
    error: Exception | None, expected_error_type: type[BaseException]
) -> bool:
    """Return whether *error* is an *expected_error_type*. Use it as a predicate of one argument,
    with the type bound by ``functools.partial``."""
    return isinstance(error, expected_error_type)
