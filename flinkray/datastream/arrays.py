"""Arithmetic by key for functions of batches: on slots, columns of numbers, and array state."""

from __future__ import annotations

from flinkray.streaming.columnar.grouping import running_sums, sums_by_group

__all__ = ["running_sums", "sums_by_group"]
