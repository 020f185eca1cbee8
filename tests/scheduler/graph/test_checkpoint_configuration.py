"""A job's checkpoints, as options say them."""

from __future__ import annotations

import pytest

from flinkray.core.config import ReadableConfig
from flinkray.core.job_options import JOB_OPTIONS
from flinkray.scheduler.graph.checkpoint_configuration import (
    CheckpointConfiguration,
    CheckpointRetentionPolicy,
    checkpoints_of,
)

PREFIX = "execution.checkpointing."
OF_STORAGE = {f"{PREFIX}{name}" for name in ("dir", "savepoint-dir", "data-inline-threshold")}


def of(**options: str) -> CheckpointConfiguration:
    values = {PREFIX + key.replace("__", ".").replace("_", "-"): v for key, v in options.items()}
    return checkpoints_of(ReadableConfig(values))


def test_checkpoint_configuration_without_options_equals_the_documented_defaults() -> None:
    defaults = {
        key: option.type.format(option.default)
        for key, option in JOB_OPTIONS.items()
        if key.startswith(PREFIX) and key not in OF_STORAGE
    }
    assert len(defaults) == 12
    assert checkpoints_of(ReadableConfig(defaults)) == CheckpointConfiguration() == of()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"interval": "1.5 s"}, CheckpointConfiguration(interval=1.5)),
        ({"timeout": "5 s"}, CheckpointConfiguration(timeout=5.0)),
        ({"min_pause": "2 s"}, CheckpointConfiguration(min_pause=2.0)),
        ({"max_concurrent_checkpoints": "3"}, CheckpointConfiguration(max_concurrent=3)),
        ({"num_retained": "4"}, CheckpointConfiguration(max_retained=4)),
        ({"tolerable_failed_checkpoints": "-1"}, CheckpointConfiguration(tolerable_failures=-1)),
        ({"mode": "at-least-once"}, CheckpointConfiguration(is_exactly_once=False)),
        ({"unaligned__enabled": "true"}, CheckpointConfiguration(is_unaligned=True)),
        ({"aligned_checkpoint_timeout": "3 s"}, CheckpointConfiguration(alignment_timeout=3.0)),
        ({"incremental": "false"}, CheckpointConfiguration(is_incremental=False)),
        (
            {"checkpoints_after_tasks_finish__enabled": "false"},
            CheckpointConfiguration(allows_finished_tasks=False),
        ),
        *(
            ({"externalized_checkpoint_retention": name}, CheckpointConfiguration(retention=policy))
            for name, policy in (
                ("DELETE_ON_CANCELLATION", CheckpointRetentionPolicy.RETAIN_ON_FAILURE),
                ("RETAIN_ON_CANCELLATION", CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION),
            )
        ),
    ],
)
def test_each_checkpoint_option_sets_its_field(
    options: dict[str, str], expected: CheckpointConfiguration
) -> None:
    assert of(**options) == expected


def test_unset_checkpoint_option_keeps_the_previous_value() -> None:
    before = CheckpointConfiguration(interval=1.0, max_retained=7)
    changed = checkpoints_of(ReadableConfig({f"{PREFIX}timeout": "5 s"}), before)
    assert changed == CheckpointConfiguration(interval=1.0, timeout=5.0, max_retained=7)
    assert checkpoints_of(ReadableConfig({f"{PREFIX}interval": "0"}), before).interval is None


def test_unaligned_checkpoints_are_ignored_in_at_least_once_mode() -> None:
    """As in Flink. Also if the cluster sets one option and the job the other."""
    assert not of(mode="AT_LEAST_ONCE", unaligned__enabled="true").is_unaligned
    unaligned = CheckpointConfiguration(is_unaligned=True)
    at_least_once = ReadableConfig({f"{PREFIX}mode": "AT_LEAST_ONCE"})
    assert not checkpoints_of(at_least_once, unaligned).is_unaligned
    before = CheckpointConfiguration(is_exactly_once=False)
    assert not checkpoints_of(
        ReadableConfig({f"{PREFIX}unaligned.enabled": "true"}), before
    ).is_unaligned
