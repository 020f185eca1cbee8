"""Exports Python's own Future as CompletableFuture, like PyFlink's
``pyflink.common.completable_future``.
"""

from __future__ import annotations

from concurrent.futures import Future as CompletableFuture

__all__ = ["CompletableFuture"]
