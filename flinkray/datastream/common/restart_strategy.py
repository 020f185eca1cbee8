"""Restart strategies in the form that programs for older versions of Flink use."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RestartStrategyConfiguration:
    """A restart strategy, as the values of its options in the configuration
    (``restart-strategy.*``)."""

    description: str
    options: dict[str, str] = field(default_factory=dict)

    def get_description(self) -> str:
        return self.description


class RestartStrategies:
    """Factory of restart strategies; times are milliseconds.

    Options ``restart-strategy.*`` of the configuration have the same effect.

    >>> RestartStrategies.fixed_delay_restart(3, 10_000).options["restart-strategy.type"]
    'fixed-delay'
    """

    @staticmethod
    def no_restart() -> RestartStrategyConfiguration:
        """Return the strategy that ends the program with its first failure."""
        return RestartStrategyConfiguration(
            "Restart deactivated.", {"restart-strategy.type": "none"}
        )

    @staticmethod
    def fall_back_restart() -> RestartStrategyConfiguration:
        """Return the strategy that the cluster's configuration names."""
        return RestartStrategyConfiguration("Cluster level default restart strategy")

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: int
    ) -> RestartStrategyConfiguration:
        """Return the strategy that restarts a program at most *restart_attempts* times, each time
        after *delay_between_attempts* milliseconds."""
        return RestartStrategyConfiguration(
            f"Restart with fixed delay ({delay_between_attempts} ms). "
            f"#{restart_attempts} restart attempts.",
            {
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": str(restart_attempts),
                "restart-strategy.fixed-delay.delay": f"{delay_between_attempts} ms",
            },
        )

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: int, delay_interval: int
    ) -> RestartStrategyConfiguration:
        """Return the strategy that restarts a program *delay_interval* milliseconds after a
        failure. The program ends if more than *failure_rate* failures come within
        *failure_interval* milliseconds."""
        return RestartStrategyConfiguration(
            f"Failure rate restart with maximum of {failure_rate} failures within interval "
            f"{failure_interval} ms and fixed delay {delay_interval} ms.",
            {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": str(failure_rate),
                "restart-strategy.failure-rate.failure-rate-interval": f"{failure_interval} ms",
                "restart-strategy.failure-rate.delay": f"{delay_interval} ms",
            },
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: int,
        max_backoff: int,
        backoff_multiplier: float,
        reset_backoff_threshold: int,
        jitter_factor: float,
    ) -> RestartStrategyConfiguration:
        """Return the strategy that restarts a program without limit. The pause before a restart is
        first *initial_backoff* milliseconds and grows with each failure, up to *max_backoff*. After
        *reset_backoff_threshold* milliseconds without a failure it is *initial_backoff* again."""
        prefix = "restart-strategy.exponential-delay"
        return RestartStrategyConfiguration(
            f"Restart with exponential delay: starting at {initial_backoff} ms, increasing by "
            f"{backoff_multiplier:g}, with maximum {max_backoff} ms.",
            {
                "restart-strategy.type": "exponential-delay",
                f"{prefix}.initial-backoff": f"{initial_backoff} ms",
                f"{prefix}.max-backoff": f"{max_backoff} ms",
                f"{prefix}.backoff-multiplier": repr(float(backoff_multiplier)),
                f"{prefix}.reset-backoff-threshold": f"{reset_backoff_threshold} ms",
                f"{prefix}.jitter-factor": repr(float(jitter_factor)),
            },
        )
