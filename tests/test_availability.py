"""How a run is judged."""

from __future__ import annotations

from flinkray.scheduler.shared.states import JobStatus
from tests.availability import (
    CLUSTER_IS_NOT_RUNNING,
    JOB_IS_NOT_RUNNING,
    NEVER_RUNNING,
    NOT_SETTLED,
    RUNNING_AFTER_CANCELLATION,
    Cancelled,
    Event,
    FaultBegan,
    FaultEnded,
    Seen,
    is_healthy,
    violations,
)

RUNNING, RESTARTING = JobStatus.RUNNING, JobStatus.RESTARTING


def seen(status: JobStatus | None, *times: float) -> list[Event]:
    return [Seen(at, status) for at in times]


def whats(*history: Event) -> list[str]:
    return [it.what for it in violations(history)]


WELL = seen(RUNNING, 5, 10, 15, 20, 25)


def test_job_that_always_runs_has_no_availability_violations() -> None:
    assert whats(*WELL) == []


def test_availability_check_counts_a_job_as_running_after_five_sightings_in_a_row() -> None:
    """E2E-07."""
    assert whats(*WELL[:4]) == [NEVER_RUNNING]
    interrupted: list[Event] = [*WELL[:4], *seen(RESTARTING, 21), *seen(RUNNING, 25)]
    assert whats(*interrupted) == [NEVER_RUNNING]


def test_no_violation_is_reported_during_a_fault_and_its_grace_period() -> None:
    """E2E-07."""
    fault: list[Event] = [FaultBegan(30, "kill"), *seen(None, 300, 305), FaultEnded(310, "kill")]
    grace: list[Event] = [*seen(RESTARTING, 315), *seen(None, 490)]
    assert whats(*WELL, *fault, *grace, *seen(RUNNING, 495, 500, 505, 510, 515)) == []


def test_job_or_cluster_that_does_not_run_after_the_grace_period_is_a_violation() -> None:
    """E2E-07."""
    fault: list[Event] = [FaultBegan(30, "kill"), FaultEnded(40, "kill")]
    again = seen(RUNNING, 230, 235, 240, 245, 250)
    assert whats(*WELL, *fault, *seen(RESTARTING, 220), *seen(None, 220), *again) == []
    late: list[Event] = [*seen(RESTARTING, 221), *seen(None, 226)]
    assert whats(*WELL, *fault, *late, *again) == [JOB_IS_NOT_RUNNING, CLUSTER_IS_NOT_RUNNING]


def test_grace_period_after_overlapping_faults_starts_when_all_are_over() -> None:
    faults: list[Event] = [
        FaultBegan(30, "a"),
        FaultBegan(31, "b"),
        FaultEnded(32, "a"),
        *seen(None, 500),
    ]
    assert whats(*WELL, *faults, FaultEnded(501, "b"), *seen(RUNNING, 505)) == [NOT_SETTLED]


def test_availability_check_ignores_sightings_from_before_the_end_of_a_fault() -> None:
    """E2E-07."""
    fault: list[Event] = [
        FaultBegan(30, "kill"),
        *seen(RUNNING, 31, 36, 41, 46, 51),
        FaultEnded(52, "kill"),
    ]
    assert whats(*WELL, *fault, *seen(RUNNING, 56, 61, 66, 71)) == [NOT_SETTLED]
    assert whats(*WELL, *fault, *seen(RUNNING, 56, 61, 66, 71, 76)) == []


def test_cancelled_job_that_does_not_end_in_time_is_a_violation() -> None:
    """E2E-07."""
    ended: list[Event] = [Cancelled(30), *seen(RUNNING, 35, 40), *seen(JobStatus.CANCELED, 45)]
    assert whats(*WELL, *ended) == []
    late: list[Event] = [
        Cancelled(30),
        *seen(JobStatus.CANCELLING, 40.5),
        *seen(JobStatus.CANCELED, 45),
    ]
    assert whats(*WELL, *late) == [RUNNING_AFTER_CANCELLATION]
    assert whats(*WELL, Cancelled(30), *seen(None, 60)) == []


def test_job_is_healthy_only_after_enough_sightings_since_a_given_one() -> None:
    assert is_healthy(WELL, 0)
    assert not is_healthy(WELL, 1)
    assert not is_healthy([*WELL, *seen(RESTARTING, 30)], 0)
    assert is_healthy([*seen(None, 1), *WELL], 1)
