"""Attempts that end with the same error of the program."""

from __future__ import annotations

from flinkray.core.recurring_errors import ProgramError
from flinkray.scheduler.execution.repeated_errors import RepeatedErrors, RepetitionLimits

ERROR = ProgramError("KeyError at a.py:1: 'x'")


def test_error_limit_is_reached_when_the_third_attempt_fails_with_the_same_error() -> None:
    errors = RepeatedErrors(RepetitionLimits(3))
    found = [errors.notify_failure(ERROR, "map", now - 1.0, 0, now) for now in (10.0, 20.0, 30.0)]
    assert found == [False, False, True]


def test_same_error_of_several_subtasks_of_an_attempt_counts_once() -> None:
    errors = RepeatedErrors(RepetitionLimits(2))
    found = [errors.notify_failure(ERROR, "map", 1.0, 0, now) for now in (10.0, 10.5, 11.0)]
    assert found == [False, False, False]
    assert errors.notify_failure(ERROR, "map", 12.0, 0, 13.0)


def test_repeated_errors_are_counted_for_each_error_and_vertex_separately() -> None:
    errors = RepeatedErrors(RepetitionLimits(2))
    other = ProgramError("KeyError at a.py:2: 'x'")
    assert not errors.notify_failure(ERROR, "map", None, 0, 1.0)
    assert not errors.notify_failure(other, "map", None, 0, 2.0)
    assert not errors.notify_failure(ERROR, "filter", None, 0, 3.0)
    assert errors.notify_failure(ERROR, "map", None, 0, 4.0)


def test_completed_checkpoint_resets_the_count_of_a_repeated_error() -> None:
    errors = RepeatedErrors(RepetitionLimits(2))
    found = [errors.notify_failure(ERROR, "map", None, number, 1.0 + number) for number in range(5)]
    assert not any(found)


def test_repeated_error_on_the_same_record_counts_across_a_completed_checkpoint() -> None:
    errors = RepeatedErrors(RepetitionLimits(2))
    on_record = ProgramError(ERROR.kind, "{'a': 1} from lines.txt, line 3")
    assert not errors.notify_failure(on_record, "map", None, 0, 1.0)
    assert errors.notify_failure(on_record, "map", None, 1, 2.0)


def test_repeated_errors_never_fail_the_job_if_no_limit_is_set() -> None:
    errors = RepeatedErrors(RepetitionLimits(0))
    assert not any(errors.notify_failure(ERROR, "map", None, 0, float(n)) for n in range(99))


def test_alternating_errors_are_each_counted_to_the_limit() -> None:
    """Which of the two errors comes first may be chance, and the job fails with either."""
    errors = RepeatedErrors(RepetitionLimits(3))
    other = ProgramError("KeyError at a.py:2: 'x'")
    told = [errors.notify_failure(e, "map", None, 0, 1.0) for e in (ERROR, other) * 3]
    assert told == [False] * 4 + [True] * 2


def test_file_error_reaches_its_limit_only_after_enough_attempts_and_enough_time() -> None:
    errors = RepeatedErrors(RepetitionLimits(3, patience_with_files=30.0))
    missing = ProgramError("FileNotFoundError at a.py:1: 'x'", may_pass=True)
    times = (1.0, 2.0, 3.0, 30.9, 31.0)
    told = [errors.notify_failure(missing, "map", None, 0, now) for now in times]
    assert told == [False, False, False, False, True]
    assert errors.attempts(missing, "map") == 5
    assert not errors.notify_failure(missing, "map", None, 1, 99.0), "a checkpoint lies between"
    assert not errors.notify_failure(missing, "map", None, 1, 100.0)
    assert not errors.notify_failure(missing, "map", None, 1, 128.9), "timed from the first on"
    assert errors.notify_failure(missing, "map", None, 1, 129.0)


def test_file_error_does_not_reach_its_limit_after_a_long_time_but_few_attempts() -> None:
    errors = RepeatedErrors(RepetitionLimits(3, patience_with_files=30.0))
    missing = ProgramError("FileNotFoundError at a.py:1: 'x'", may_pass=True)
    assert not any(errors.notify_failure(missing, "map", None, 0, now) for now in (1.0, 99.0))


def test_repeated_error_counts_drop_the_oldest_errors_and_those_before_a_checkpoint() -> None:
    errors = RepeatedErrors(RepetitionLimits(3))
    for number in range(1000):
        errors.notify_failure(ProgramError(f"KeyError: {number}"), "map", None, 0, float(number))
    assert len(errors._seen) == 256
    on_record = ProgramError(ERROR.kind, "{'a': 1} from lines.txt, line 3")
    errors.notify_failure(on_record, "map", None, 0, 1001.0)
    errors.notify_failure(ProgramError("KeyError: 'x'"), "map", None, 1, 1002.0)
    assert [kind for _, kind in errors._seen] == [ERROR.kind, "KeyError: 'x'"]
