"""The progress of a source, as its coordinator asks others to keep it."""

from __future__ import annotations

from flinkray.streaming.sources.collection import NumberSequenceSource
from flinkray.streaming.sources.coordinator import SourceCoordinator
from flinkray.streaming.sources.source_progress import SourceProgress
from flinkray.testing.manual_clock import ManualClock


def progress_after_reset(*, has_called: bool) -> SourceProgress:
    """Attempt 1 of the only reader begins from checkpoint 0, and perhaps has called."""
    coordinator = SourceCoordinator(ManualClock(), lambda split: b"a split")
    coordinator.reset_subtask(0, 1, 0)
    if has_called:
        coordinator.start(NumberSequenceSource(1, 2), 1)
        coordinator.heard(0, 1, 0)
    return coordinator.progress()
