"""How often the start of workers may fail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flinkray.scheduler.resources.resource_tracker import INTERVAL, StartWorkerFailureRate


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(0, 4))
def test_pause_of_worker_starts_begins_anew_with_each_failure_above_the_failure_rate(
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
