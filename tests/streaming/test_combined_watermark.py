"""The watermark of an operator's inputs together."""

from __future__ import annotations

from flinkray.streaming.time.combined_watermarks import CombinedWatermark, ValveOutput


def test_watermark_of_an_input_that_is_lower_than_its_last_is_ignored() -> None:
    combined = CombinedWatermark(2)
    assert combined.watermark(0, 10) == ValveOutput()
    assert combined.watermark(0, 5) == ValveOutput()
    assert combined.watermark(1, 20) == ValveOutput(10)


def test_input_that_was_idle_is_active_again_at_its_next_watermark() -> None:
    combined = CombinedWatermark(2)
    combined.watermark(0, 10)
    assert combined.status(0, True) == ValveOutput()
    assert combined.status(1, True) == ValveOutput(None, True)
    assert combined.watermark(0, 12) == ValveOutput(12, False)
    assert combined.watermark(1, 11) == ValveOutput()
    assert combined.watermark(0, 30) == ValveOutput()
    assert combined.watermark(1, 20) == ValveOutput(20)
