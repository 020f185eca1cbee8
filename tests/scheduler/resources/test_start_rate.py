"""How often the start of workers may fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.scheduler.resources.resource_tracker import INTERVAL, StartWorkerFailureRate


@pytest.mark.parametrize(("last", "delay"), [(59.0, 10.0), (60.0, 0.0), (61.0, 0.0)])
def test_worker_start_failures_beyond_the_allowed_rate_cause_a_pause(
    last: float, delay: float
) -> None:
    rate = StartWorkerFailureRate(2, 10.0)
    for now in (0.0, 30.0, last):
        assert rate.delay(now) == 0.0
        rate.failed(now)
    assert rate.delay(last) == delay
    assert rate.delay(last + 4.0) == max(0.0, delay - 4.0)
    assert rate.delay(last + 11.0) == 0.0


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(0, 4))
def test_pause_of_worker_starts_begins_anew_with_each_failure_beyond_the_rate(
    gaps: list[int], allowed: int
) -> None:
    rate = StartWorkerFailureRate(allowed, 10.0)
    now, failures, until = 0.0, list[float](), 0.0
    for gap in gaps:
        now += gap
        failures.append(now)
        rate.failed(now)
        if sum(at > now - INTERVAL for at in failures) > allowed:
            until = now + 10.0
        assert rate.delay(now) == max(0.0, until - now)
