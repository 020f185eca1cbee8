"""Tags of side outputs (PyFlink's ``pyflink.datastream.output_tag``)."""

from __future__ import annotations

from flinkray.streaming.output_tag import OutputTag

__all__ = ["OutputTag"]
