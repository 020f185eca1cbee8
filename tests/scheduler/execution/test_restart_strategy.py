"""When an exponential delay ends, begins anew and is at its longest."""

from __future__ import annotations

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.execution.restart_strategy import (
    RestartBackoffTimeStrategy,
    new_restart_strategy,
)
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
)


class Clock:
    """Tells a strategy of failures, each at the first moment that is a new attempt's."""

    def __init__(self, strategy: RestartBackoffTimeStrategy) -> None:
        self.strategy = strategy
        self.now = 0.0

    def fail(self, after_ms: int = 1) -> int:
        """So many milliseconds after the last restart; the back-off in milliseconds."""
        self.now += after_ms / 1000
        assert self.strategy.notify_failure(self.now)
        backoff = self.strategy.backoff_time(self.now)
        self.now += backoff
        return round(backoff * 1000)


def exponential(**settings: float | int) -> ExponentialDelayRestart:
    """All durations in milliseconds, no jitter."""
    seconds = {
        name: value / 1000
        if name in ("initial_backoff", "max_backoff", "reset_backoff_threshold")
        else value
        for name, value in settings.items()
    }
    return ExponentialDelayRestart(**{"jitter_factor": 0.0, **seconds})  # type: ignore[arg-type]


def test_asking_for_an_exponential_delay_before_any_failure_raises_an_error() -> None:
    """FO-10."""
    with pytest.raises(IllegalTransitionError):
        new_restart_strategy(exponential()).backoff_time(0.0)


@pytest.mark.parametrize(("quiet_ms", "delay"), [(99, 8), (100, 4)])
def test_exponential_delay_is_reset_after_no_failure_for_the_reset_threshold(
    quiet_ms: int, delay: int
) -> None:
    """FO-10."""
    settings = exponential(
        initial_backoff=4, max_backoff=8, backoff_multiplier=2, reset_backoff_threshold=100
    )
    clock = Clock(new_restart_strategy(settings))
    assert [clock.fail(), clock.fail()] == [4, 8]
    assert clock.fail(quiet_ms) == delay


def test_failures_during_the_exponential_delay_count_as_one_attempt() -> None:
    """FO-10."""
    strategy = new_restart_strategy(exponential(initial_backoff=4, attempts=1))
    assert strategy.notify_failure(1.0)
    assert not strategy.notify_failure(1.001)
    assert strategy.backoff_time(1.001) == pytest.approx(0.003)
    assert not strategy.notify_failure(1.004)
    assert strategy.can_restart()
    assert strategy.notify_failure(1.005)
    assert not strategy.can_restart()


def test_exponential_delay_stays_at_its_maximum_after_2000_failures() -> None:
    strategy = new_restart_strategy(exponential(jitter_factor=1.0), lambda: 0.999)
    clock = Clock(strategy)
    for _ in range(2000):
        delay = clock.fail()
    assert delay == 60_000
