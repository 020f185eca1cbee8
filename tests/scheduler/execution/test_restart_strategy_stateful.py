"""Restart strategies beside models that keep all failures, with failures at any times."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from flinkray.scheduler.execution.restart_strategy import new_restart_strategy
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)

delays = st.sampled_from([0.0, 0.5, 2.0])
strategies = st.one_of(
    st.just(NoRestart()),
    st.builds(FixedDelayRestart, attempts=st.integers(0, 5), delay=delays),
    st.builds(
        FailureRateRestart,
        max_failures_per_interval=st.integers(1, 4),
        interval=st.sampled_from([1.0, 5.0]),
        delay=delays,
    ),
    st.builds(
        ExponentialDelayRestart,
        initial_backoff=st.sampled_from([0.5, 1.0]),
        max_backoff=st.sampled_from([2.0, 60.0]),
        backoff_multiplier=st.sampled_from([1.5, 2.0]),
        reset_backoff_threshold=st.sampled_from([3.0, 100.0]),
        jitter_factor=st.sampled_from([0.0, 0.1]),
        attempts=st.one_of(st.none(), st.integers(1, 4)),
    ),
)


class RestartStrategyMachine(RuleBasedStateMachine):
    """FO-08, FO-09, FO-10, FO-11, FO-13, FO-14: the model has the times of all failures that count,
    and the restart due after the last one."""

    @initialize(strategy=strategies, random=st.sampled_from([0.0, 0.5, 0.999]))
    def make(self, strategy: RestartStrategy, random: float) -> None:
        self.settings = strategy
        self.strategy = new_restart_strategy(strategy, lambda: random)
        self.now = 0.0
        self.failures: list[float] = []
        self.restart_at: float | None = None

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 4.0, 6.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def fails(self) -> None:
        """FO-08: asking changes nothing, so all is asked twice."""
        is_new = self.strategy.notify_failure(self.now)
        settings = self.settings
        if isinstance(settings, ExponentialDelayRestart):
            assert is_new == (self.restart_at is None or self.now > self.restart_at)
            quiet = 0.0 if self.restart_at is None else self.now - self.restart_at
            if quiet >= settings.reset_backoff_threshold:
                self.failures.clear()
        else:
            assert is_new
        if is_new:
            self.failures.append(self.now)
        for _ in range(2):
            assert self.strategy.can_restart() == self.may_restart()
        for _ in range(2):
            self.check_backoff(self.strategy.backoff_time(self.now), is_new)

    def may_restart(self) -> bool:
        settings = self.settings
        if isinstance(settings, NoRestart):
            return False
        if isinstance(settings, FixedDelayRestart):
            return len(self.failures) <= settings.attempts
        if isinstance(settings, FailureRateRestart):
            recent = [at for at in self.failures if self.now - at <= settings.interval]
            return len(recent) <= settings.max_failures_per_interval
        return settings.attempts is None or len(self.failures) <= settings.attempts

    def check_backoff(self, backoff: float, is_new: bool) -> None:
        settings = self.settings
        if isinstance(settings, ExponentialDelayRestart):
            if is_new:
                grown = settings.backoff_multiplier ** (len(self.failures) - 1)
                base = settings.initial_backoff * grown
                spread = base * settings.jitter_factor + 0.0015  # whole milliseconds
                lowest = min(base - spread, settings.max_backoff)
                assert lowest <= backoff <= min(base + spread, settings.max_backoff)
                self.restart_at = self.now + backoff
            else:
                assert self.restart_at is not None
                assert abs(backoff - (self.restart_at - self.now)) < 1e-6
        elif not isinstance(settings, NoRestart):
            assert backoff == settings.delay


TestRestartStrategy = RestartStrategyMachine.TestCase
TestRestartStrategy.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
