"""Exports InputFormat under the module name of PyFlink's ``pyflink.common.io``."""

from __future__ import annotations

from flinkray.streaming.sources.input_format import InputFormat

__all__ = ["InputFormat"]
