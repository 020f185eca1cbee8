"""Exports input and output formats under the module name of PyFlink's ``pyflink.common.io``."""

from __future__ import annotations

from flinkray.streaming.sinks.output_format import (
    CleanupWhenUnsuccessful,
    FinalizeOnMaster,
    InitializeOnMaster,
    OutputFormat,
)
from flinkray.streaming.sources.input_format import InputFormat

__all__ = [
    "CleanupWhenUnsuccessful",
    "FinalizeOnMaster",
    "InitializeOnMaster",
    "InputFormat",
    "OutputFormat",
]
