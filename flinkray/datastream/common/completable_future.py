"""PyFlink's ``pyflink.common.completable_future``; Python's own future takes its place here."""

from __future__ import annotations

from concurrent.futures import Future as CompletableFuture

__all__ = ["CompletableFuture"]
