"""Predicates for calling an asynchronous function again.

Counterpart of PyFlink's ``pyflink.datastream.async_retry_predicates``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["empty_result_predicate", "exception_type_predicate", "has_exception_predicate"]


def empty_result_predicate(result: list[Any] | None) -> bool:
    """Return whether there is no result."""
    return not result


def has_exception_predicate(error: Exception | None) -> bool:
    """Return whether there is an exception of any type."""
    return error is not None


def exception_type_predicate(
    error: Exception | None, expected_error_type: type[BaseException]
) -> bool:
    """Return whether there is an exception of type *expected_error_type*.
    Bind the type with ``functools.partial``."""
    return isinstance(error, expected_error_type)
