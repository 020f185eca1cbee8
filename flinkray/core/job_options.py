"""Options that a job may set for itself, over those of its cluster; part of the table in
:mod:`flinkray.core.options`."""

from __future__ import annotations

from typing import Any

from flinkray.core.config_option import ConfigOption, duration, integer, number, optional_choice

ENDLESS = 2**31 - 1
"""Flink's largest integer: what it takes for no end."""

CHECKPOINTING_INTERVAL = ConfigOption(
    "execution.checkpointing.interval",
    duration(positive=False),
    0.0,
    "Time between two checkpoints. 0: none are taken. Checkpoints are still to come; already "
    "now the option decides whether a job is restarted by default.",
)
RESTART_STRATEGY = ConfigOption(
    "restart-strategy.type",
    optional_choice(
        "none",
        "fixed-delay",
        "failure-rate",
        "exponential-delay",
        off="none",
        disable="none",
        fixeddelay="fixed-delay",
        failurerate="failure-rate",
        exponentialdelay="exponential-delay",
    ),
    None,
    "What happens after a task has failed. When not set: exponential-delay for jobs with "
    "checkpoints (execution.checkpointing.interval), none for others.",
)
RESTART_FIXED_DELAY_ATTEMPTS = ConfigOption(
    "restart-strategy.fixed-delay.attempts",
    integer(minimum=0),
    1,
    "How often a job is restarted before it fails.",
)
RESTART_FIXED_DELAY_DELAY = ConfigOption(
    "restart-strategy.fixed-delay.delay",
    duration(positive=False),
    1.0,
    "Pause before a restart.",
)
RESTART_FAILURE_RATE_MAX_FAILURES = ConfigOption(
    "restart-strategy.failure-rate.max-failures-per-interval",
    integer(minimum=1),
    1,
    "A job fails when it has more failures than this in one interval.",
)
RESTART_FAILURE_RATE_INTERVAL = ConfigOption(
    "restart-strategy.failure-rate.failure-rate-interval",
    duration(),
    60.0,
    "The interval over which failures are counted.",
)
RESTART_FAILURE_RATE_DELAY = ConfigOption(
    "restart-strategy.failure-rate.delay",
    duration(positive=False),
    1.0,
    "Pause before a restart.",
)
RESTART_EXPONENTIAL_INITIAL_BACKOFF = ConfigOption(
    "restart-strategy.exponential-delay.initial-backoff",
    duration(),
    1.0,
    "Pause before the first restart.",
)
RESTART_EXPONENTIAL_MAX_BACKOFF = ConfigOption(
    "restart-strategy.exponential-delay.max-backoff",
    duration(),
    60.0,
    "The longest pause before a restart. Must be at least "
    "restart-strategy.exponential-delay.initial-backoff.",
)
RESTART_EXPONENTIAL_MULTIPLIER = ConfigOption(
    "restart-strategy.exponential-delay.backoff-multiplier",
    number(minimum=1),
    1.5,
    "The factor by which the pause grows from failure to failure.",
)
RESTART_EXPONENTIAL_RESET_THRESHOLD = ConfigOption(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    duration(positive=False),
    3600.0,
    "When a job has run for this long without a failure, the pause is the initial one again, "
    "and the attempts are counted anew.",
)
RESTART_EXPONENTIAL_JITTER = ConfigOption(
    "restart-strategy.exponential-delay.jitter-factor",
    number(minimum=0, maximum=1),
    0.1,
    "The fraction by which the pause is made longer or shorter at random, so that jobs do not "
    "restart at the same moment.",
)
RESTART_EXPONENTIAL_ATTEMPTS = ConfigOption(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    integer(minimum=0),
    ENDLESS,
    "How often a job is restarted before it fails, unless the pause was reset in between.",
)
TASK_CANCELLATION_INTERVAL = ConfigOption(
    "task.cancellation.interval",
    duration(),
    1.0,
    "A Python task that is cancelled and does not end is interrupted after this time, and again"
    " each time it has passed. (Flink: 30 s.)",
)
TASK_CANCELLATION_TIMEOUT = ConfigOption(
    "task.cancellation.timeout",
    duration(),
    30.0,
    "When a Python task has not ended this long after it was cancelled, its process is killed "
    "and replaced, and all other tasks in that process fail. (Flink: 180 s, and its TaskManager"
    " ends.)",
)

JOB_OPTIONS: dict[str, ConfigOption[Any]] = {
    option.key: option for option in globals().copy().values() if isinstance(option, ConfigOption)
}
"""By key."""
