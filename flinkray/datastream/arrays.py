"""Sums by key for functions of batches: by slot of array state, or running within a batch."""

from __future__ import annotations

from flinkray.streaming.columnar.grouping import running_sums, sums_by_group

__all__ = ["running_sums", "sums_by_group"]
