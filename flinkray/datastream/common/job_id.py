"""Exports JobID under the module name of PyFlink's ``pyflink.common.job_id``."""

from __future__ import annotations

from flinkray.core.ids import JobID

__all__ = ["JobID"]
