"""Restart strategies."""

from __future__ import annotations

from functools import partial

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.execution.restarts import (
    RestartBackoffTimeStrategy,
    new_restart_strategy,
)
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
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


def test_no_restart_strategy_never_restarts() -> None:
    """FO-14."""
    strategy = new_restart_strategy(NoRestart())
    strategy.notify_failure(0.0)
    assert not strategy.can_restart()


def test_fixed_delay_allows_as_many_restarts_as_configured_however_often_asked() -> None:
    """FO-08."""
    strategy = new_restart_strategy(FixedDelayRestart(3, 2.5))
    answers = []
    for now in range(4):
        strategy.notify_failure(now)
        assert strategy.can_restart() == strategy.can_restart()
        assert strategy.backoff_time(now) == 2.5
        answers.append(strategy.can_restart())
    assert answers == [True, True, True, False]


def test_failure_rate_allows_the_configured_number_of_failures_per_interval() -> None:
    """FO-09."""
    strategy = new_restart_strategy(FailureRateRestart(3, interval=10.0, delay=1.0))
    answers = []
    for now in (0.0, 1.0, 2.0, 3.0):
        strategy.notify_failure(now)
        answers.append(strategy.can_restart())
    assert answers == [True, True, True, False]


def test_failure_rate_is_never_exhausted_by_failures_far_apart() -> None:
    """FO-09."""
    strategy = new_restart_strategy(FailureRateRestart(1, interval=10.0))
    for number in range(20):
        strategy.notify_failure(number * 10.1)
        assert strategy.can_restart()


def test_asking_for_an_exponential_delay_before_any_failure_raises_an_error() -> None:
    """FO-10."""
    with pytest.raises(IllegalTransitionError):
        new_restart_strategy(exponential()).backoff_time(0.0)


def test_exponential_delay_grows_truncated_to_milliseconds_up_to_its_maximum() -> None:
    """FO-10."""
    strategy = new_restart_strategy(
        exponential(initial_backoff=4, max_backoff=40, backoff_multiplier=2.3)
    )
    clock = Clock(strategy)
    assert [clock.fail() for _ in range(5)] == [4, 9, 21, 40, 40]


@pytest.mark.parametrize(("quiet_ms", "delay"), [(99, 8), (100, 4)])
def test_exponential_delay_is_reset_after_threshold_and_backoff_and_not_before(
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


def test_exponential_jitter_stays_in_its_range_and_below_the_maximum() -> None:
    """FO-11."""
    seen: list[set[int]] = [set(), set(), set(), set()]
    for step in range(100):
        settings = exponential(
            initial_backoff=2, max_backoff=7, backoff_multiplier=2, jitter_factor=0.25
        )
        clock = Clock(new_restart_strategy(settings, partial(float, step / 100)))
        for delays in seen:
            delays.add(clock.fail())
    assert seen == [{2}, {3, 4, 5}, {6, 7}, {7}]


def test_exponential_delay_allows_no_restart_beyond_its_attempts() -> None:
    """FO-13."""
    strategy = new_restart_strategy(exponential(attempts=13))
    clock = Clock(strategy)
    for _ in range(13):
        clock.fail()
        assert strategy.can_restart()
    clock.fail()
    assert not strategy.can_restart()


def test_exponential_delay_stays_at_its_maximum_after_2000_failures() -> None:
    strategy = new_restart_strategy(exponential(jitter_factor=1.0), lambda: 0.999)
    clock = Clock(strategy)
    for _ in range(2000):
        delay = clock.fail()
    assert delay == 60_000
