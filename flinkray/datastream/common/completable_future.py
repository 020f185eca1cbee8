"""PyFlink's ``pyflink.common.completable_future``, which is Python's own future here."""

from __future__ import annotations

from concurrent.futures import Future as CompletableFuture

__all__ = ["CompletableFuture"]
