"""Functions that compute sums by key in batches: ``sums_by_group`` and ``running_sums``."""

from __future__ import annotations

from flinkray.kernels.aggregates import running_sums, sums_by_group

__all__ = ["running_sums", "sums_by_group"]
