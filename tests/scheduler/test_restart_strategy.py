"""Restart strategies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.job_graph import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
)
from flinkray.scheduler.restart_strategy import RestartBackoffTimeStrategy, new_restart_strategy


def milliseconds(strategy: RestartBackoffTimeStrategy) -> int:
    return round(strategy.backoff_time() * 1000)


def exponential(**settings: float | int) -> ExponentialDelayRestart:
    """All durations in milliseconds, no jitter."""
    seconds = {
        name: value / 1000
        if name in ("initial_backoff", "max_backoff", "reset_backoff_threshold")
        else value
        for name, value in settings.items()
    }
    return ExponentialDelayRestart(**{"jitter_factor": 0.0, **seconds})  # type: ignore[arg-type]


def test_no_restart_never_restarts() -> None:
    """FO-14."""
    strategy = new_restart_strategy(NoRestart())
    strategy.notify_failure(0.0)
    assert not strategy.can_restart()


def test_fixed_delay_allows_its_attempts_and_asking_changes_nothing() -> None:
    """FO-08."""
    strategy = new_restart_strategy(FixedDelayRestart(3, 2.5))
    answers = []
    for now in range(4):
        strategy.notify_failure(now)
        assert strategy.can_restart() == strategy.can_restart()
        assert strategy.backoff_time() == 2.5
        answers.append(strategy.can_restart())
    assert answers == [True, True, True, False]


def test_failure_rate_allows_so_many_failures_in_an_interval() -> None:
    """FO-09."""
    strategy = new_restart_strategy(FailureRateRestart(3, interval=10.0, delay=1.0))
    answers = []
    for now in (0.0, 1.0, 2.0, 3.0):
        strategy.notify_failure(now)
        answers.append(strategy.can_restart())
    assert answers == [True, True, True, False]


def test_failure_rate_is_never_exhausted_by_failures_that_are_far_apart() -> None:
    """FO-09."""
    strategy = new_restart_strategy(FailureRateRestart(1, interval=10.0))
    for number in range(20):
        strategy.notify_failure(number * 10.1)
        assert strategy.can_restart()


def test_exponential_delay_before_a_failure_is_an_error() -> None:
    """FO-10."""
    with pytest.raises(IllegalTransitionError):
        new_restart_strategy(exponential()).backoff_time()


def test_exponential_delay_grows_truncated_to_milliseconds_up_to_its_maximum() -> None:
    """FO-10."""
    strategy = new_restart_strategy(
        exponential(initial_backoff=4, max_backoff=40, backoff_multiplier=2.3)
    )
    delays = []
    for _ in range(5):
        strategy.notify_failure(0.0)
        delays.append(milliseconds(strategy))
    assert delays == [4, 9, 21, 40, 40]


@pytest.mark.parametrize(("quiet_ms", "delay"), [(107, 8), (108, 4)])
def test_exponential_delay_is_reset_after_threshold_and_backoff_and_not_before(
    quiet_ms: int, delay: int
) -> None:
    """FO-10."""
    settings = exponential(
        initial_backoff=4, max_backoff=8, backoff_multiplier=2, reset_backoff_threshold=100
    )
    strategy = new_restart_strategy(settings)
    strategy.notify_failure(0.0)
    strategy.notify_failure(0.0)
    strategy.notify_failure(quiet_ms / 1000)
    assert milliseconds(strategy) == delay


def test_exponential_jitter_stays_in_its_range_and_below_the_maximum() -> None:
    """FO-11."""
    seen: list[set[int]] = [set(), set(), set(), set()]
    for step in range(100):
        settings = exponential(
            initial_backoff=2, max_backoff=7, backoff_multiplier=2, jitter_factor=0.25
        )
        strategy = new_restart_strategy(settings, lambda number=step / 100: number)
        for delays in seen:
            strategy.notify_failure(0.0)
            delays.add(milliseconds(strategy))
    assert seen == [{2}, {3, 4, 5}, {6, 7}, {7}]


def test_exponential_delay_ends_after_its_attempts() -> None:
    """FO-13."""
    strategy = new_restart_strategy(exponential(attempts=13))
    for _ in range(13):
        strategy.notify_failure(0.0)
        assert strategy.can_restart()
    strategy.notify_failure(0.0)
    assert not strategy.can_restart()


def test_exponential_delay_survives_any_number_of_failures() -> None:
    strategy = new_restart_strategy(exponential(jitter_factor=1.0), lambda: 0.999)
    for _ in range(2000):
        strategy.notify_failure(0.0)
    assert strategy.backoff_time() == 60.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedDelayRestart(-1),
        lambda: FailureRateRestart(0),
        lambda: FailureRateRestart(1, interval=0.0),
        lambda: ExponentialDelayRestart(initial_backoff=0.0),
        lambda: ExponentialDelayRestart(initial_backoff=2.0, max_backoff=1.0),
        lambda: ExponentialDelayRestart(jitter_factor=1.5),
        lambda: ExponentialDelayRestart(attempts=-1),
    ],
)
def test_settings_without_sense_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must|please"):
        make()
