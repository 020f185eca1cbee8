"""Exports TimeDomain under the module name of PyFlink's ``pyflink.datastream.time_domain``."""

from __future__ import annotations

from flinkray.streaming.functions.functions import TimeDomain

__all__ = ["TimeDomain"]
