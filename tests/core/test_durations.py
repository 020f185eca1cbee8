"""Durations as text, for example ``"10 s"``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500 ms", 0.5),
        ("500ms", 0.5),
        ("10 s", 10.0),
        ("1.5min", 90.0),
        ("2 h", 7200.0),
        ("1 d", 86400.0),
        ("0", 0.0),
        (" 3 Seconds ", 3.0),
    ],
)
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.floats(min_value=0, max_value=1e9))
def test_any_duration_is_read_back_after_it_is_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds
