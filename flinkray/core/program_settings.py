"""Defines the keys of Flink's configuration that set up stream programs.

Jobs and clusters do not know these settings, or know only their defaults. They are read by
:mod:`flinkray.datastream.flink_settings`.
"""

from __future__ import annotations

PARALLELISM = "parallelism.default"

PROGRAM_KEYS = frozenset(
    {
        "execution.buffer-timeout",
        "execution.buffer-timeout.interval",
        "execution.checkpointing.unaligned.forced",
        "execution.runtime-mode",
        "execution.shutdown-on-attached-exit",
        "execution.sorted-inputs.memory",
        PARALLELISM,
        "pipeline.auto-generate-uids",
        "pipeline.auto-watermark-interval",
        "pipeline.max-parallelism",
        "pipeline.name",
        "pipeline.object-reuse",
        "pipeline.operator-chaining",
        "pipeline.operator-chaining.enabled",
        "python.archives",
        "python.executable",
        "python.files",
        "python.requirements",
        "state.backend.changelog.enabled",
        "state.changelog.enabled",
    }
)
"""Settings that ``flinkray run -D`` passes on to a program."""
