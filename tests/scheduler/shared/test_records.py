"""What several domains speak of: slots, tasks, failures and their stories."""

from __future__ import annotations

import pytest

from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionVertexID,
    IntermediateDataSetID,
    ResultPartitionID,
)
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.slots import ResourceRequirement, SameWorkerGroup, missing_slots
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.story import Story
from flinkray.scheduler.shared.tasks import PartitionLocations, TaskExecutionState, pack_numbers
from tests.scheduler.builders import GIB, GRAPH, JOB, LARGE, SMALL, VERTEX, id_of, location

ATTEMPT = ExecutionAttemptID(GRAPH, ExecutionVertexID(VERTEX, 0), 0)
DATA_SET = id_of(IntermediateDataSetID, 1)
WIDE, DEEP = ResourceProfile(2.0, GIB), ResourceProfile(1.0, 4 * GIB)


def partition(number: int, attempt: int = 0) -> ResultPartitionID:
    return ResultPartitionID(GRAPH, DATA_SET, number, attempt)


# --- slots ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("required", "there", "missing"),
    [
        ({SMALL: 2}, {SMALL: 3}, {}),
        ({SMALL: 2}, {}, {SMALL: 2}),
        ({SMALL: 3}, {SMALL: 1, LARGE: 1}, {SMALL: 1}),
        ({SMALL: 2, LARGE: 2}, {LARGE: 3}, {SMALL: 1}),
        ({SMALL: 1, LARGE: 2}, {SMALL: 2, LARGE: 1}, {LARGE: 1}),
        ({WIDE: 1, DEEP: 1}, {ResourceProfile(2.0, 4 * GIB): 1, WIDE: 1}, {}),
        ({WIDE: 1, DEEP: 1}, {ResourceProfile(2.0, 4 * GIB): 1, DEEP: 1}, {}),
    ],
)
def test_required_slots_are_fulfilled_by_the_smallest_slots_that_fit(
    required: dict[ResourceProfile, int],
    there: dict[ResourceProfile, int],
    missing: dict[ResourceProfile, int],
) -> None:
    requirements = [ResourceRequirement(profile, number) for profile, number in required.items()]
    found = missing_slots(requirements, there)
    assert {requirement.profile: requirement.count for requirement in found} == missing


@pytest.mark.parametrize(("name", "size"), [("", 1), ("group", 0), ("", 0)])
def test_worker_group_without_a_name_or_a_bundle_is_refused(name: str, size: int) -> None:
    with pytest.raises(ValueError, match="needs a name and at least one bundle"):
        SameWorkerGroup(name, size)
    assert SameWorkerGroup("group", 1).size == 1


# --- tasks ----------------------------------------------------------------------------------------


def test_partition_locations_list_the_partitions_of_each_location() -> None:
    here, there = location("here"), location("there")
    locations = PartitionLocations(
        GRAPH, DATA_SET, 10, (here, there), pack_numbers([0, 1, 0]), pack_numbers([3, 4, 5])
    )
    assert list(locations.partitions_at(here)) == [partition(10, 3), partition(12, 5)]
    assert list(locations.partitions_at(there)) == [partition(11, 4)]
    assert locations.number_of_partitions == 3
    assert locations.location_of(11) == there
    assert locations.partition_id(12) == partition(12, 5)


def test_shortened_task_report_keeps_the_start_of_its_text_and_one_missing_partition() -> None:
    missing = tuple(partition(number) for number in range(3))
    long = TaskExecutionState(
        JOB,
        ATTEMPT,
        ExecutionState.FAILED,
        "what went wrong " * 1000,
        "a traceback",
        missing_partitions=missing,
    )
    short = long.shortened()
    assert short.failure is not None
    assert short.failure.startswith("what went wrong")
    assert len(short.failure.encode()) <= 1024
    assert (short.traceback, short.missing_partitions) == (None, missing[:1])
    finished = TaskExecutionState(JOB, ATTEMPT, ExecutionState.FINISHED)
    assert finished.shortened() == finished


def test_elapsed_time_of_a_task_is_the_sum_of_its_busy_back_pressured_and_idle_time() -> None:
    assert IOMetrics(None, None, None, None, 5, 20, 100).elapsed_ms == 125


# --- failures -------------------------------------------------------------------------------------


def test_failure_is_unrecoverable_if_one_of_its_causes_suppresses_restarts() -> None:
    """FO-15."""
    again = Failure("no such module", suppress_restarts=True)
    once = Failure("a node died")
    assert again.is_unrecoverable
    assert not once.is_unrecoverable
    assert Failure("a task failed", cause=Failure("its input failed", cause=again)).is_unrecoverable
    assert not Failure("a task failed", cause=once).is_unrecoverable


def test_event_log_drops_its_oldest_lines_and_says_how_many_it_dropped() -> None:
    story = Story("the job", limit=2)
    assert str(story) == "  (nothing has happened yet)"
    for number in range(4):
        story.add(number, f"line {number}")
    assert str(story).splitlines() == [
        "  (2 earlier lines were dropped)",
        "  2.000 s: line 2",
        "  3.000 s: line 3",
    ]
    assert "the job cannot go on" in str(story.illegal("go on"))
