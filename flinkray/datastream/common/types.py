"""Exports Row and RowKind under the module name of PyFlink's ``pyflink.common.types``."""

from __future__ import annotations

from flinkray.streaming.records.row import Row, RowKind

__all__ = ["Row", "RowKind"]
