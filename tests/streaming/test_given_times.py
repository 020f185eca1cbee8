"""Times that user code gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flinkray.streaming.errors import StreamError
from flinkray.streaming.time.given_times import first_wrong, timer_time


@pytest.mark.parametrize("given", [7, np.int64(7), np.uint8(7)])
def test_timer_time_is_converted_to_a_python_int(given: Any) -> None:
    time = timer_time(given)
    assert (type(time), time) == (int, 7)


def test_timer_time_may_be_later_than_all_timestamps() -> None:
    assert timer_time(1 << 64) == 1 << 64


@pytest.mark.parametrize("given", [7.0, "7", None, np.float64(7)])
def test_timer_time_must_be_an_integer(given: Any) -> None:
    with pytest.raises(StreamError, match=r"a timer was set to .*: a time is a whole number"):
        timer_time(given)


@pytest.mark.parametrize(
    ("timestamps", "place"),
    [
        ([], None),
        ([1, np.int64(2), -(1 << 63), (1 << 63) - 1], None),
        ([1.0], 0),
        ([1, None, "x"], 1),
        ([1, 2, 1 << 63], 2),
        ([-(1 << 63) - 1, 2], 0),
    ],
)
def test_index_of_the_first_timestamp_that_is_no_64_bit_integer_is_found(
    timestamps: list[Any], place: int | None
) -> None:
    assert first_wrong(timestamps) == place
