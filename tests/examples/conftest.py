"""The examples run on a plain local Spark, too."""

from __future__ import annotations

from tests.local_spark import spark

__all__ = ["spark"]
