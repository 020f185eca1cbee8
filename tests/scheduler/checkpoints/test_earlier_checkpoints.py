"""What happens to checkpoints of earlier JobMasters whose tasks keep running."""

from __future__ import annotations

from dataclasses import replace

from flinkray.scheduler.checkpoints.actions import (
    DiscardDirectory,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.earlier_checkpoints import MOST_GIVEN_UP, EarlierCheckpoints
from flinkray.scheduler.checkpoints.kept_checkpoints import AbortedCheckpoints, KeptCheckpoints
from flinkray.scheduler.checkpoints.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties, savepoint
from tests.scheduler.builders import one, only
from tests.scheduler.checkpoints.checkpointed import metadata
from tests.scheduler.checkpoints.job_with_checkpoints import (
    MANUAL,
    JobWithCheckpoints,
    Order,
    Topology,
    configuration,
    order,
    orders,
)

TOPOLOGY = Topology()
RUNNING = TOPOLOGY.attempts


def left_behind(
    checkpoint_id: int, timestamp: int = 0, properties: CheckpointProperties = MANUAL
) -> CompletedCheckpoint:
    of = replace(metadata(checkpoint_id=checkpoint_id), timestamp=timestamp)
    return CompletedCheckpoint(of, properties, f"chk-{checkpoint_id}/_metadata")


class JobMasters:
    """*complete*: the checkpoints that the earlier JobMasters completed; all are retained."""

    def __init__(self, *complete: CompletedCheckpoint) -> None:
        self.aborted = AbortedCheckpoints()
        self.earlier = EarlierCheckpoints(KeptCheckpoints(3), self.aborted, ("source",))
        self.earlier.recovered(complete)


def test_take_over_notifies_running_tasks_again_of_the_last_complete_checkpoint() -> None:
    earlier = JobMasters(left_behind(2, 20), left_behind(3, 30)).earlier
    told = Order(CheckpointCompleted(3), tuple(RUNNING), ("source",))
    assert orders(earlier.take_over({}, RUNNING, TOPOLOGY), CheckpointCompleted) == [told]


def test_take_over_does_not_notify_running_tasks_of_a_complete_savepoint() -> None:
    earlier = JobMasters(left_behind(3, properties=savepoint())).earlier
    assert earlier.take_over({}, RUNNING, TOPOLOGY) == []


def test_take_over_aborts_the_last_job_masters_checkpoints_and_reuses_no_id() -> None:
    masters = JobMasters(left_behind(3))
    begun = {5: "chk-5", 3: "chk-3", 2: "chk-2", 4: "chk-4"}
    actions = masters.earlier.take_over(begun, RUNNING, TOPOLOGY)
    assert orders(actions, CheckpointAborted) == [
        Order(CheckpointAborted(4, 3), tuple(RUNNING), ("source",)),
        Order(CheckpointAborted(5, 3), tuple(RUNNING), ("source",)),
    ]
    assert masters.earlier.last_id == 5


def test_directory_of_a_checkpoint_aborted_by_a_take_over_is_deleted_after_its_tasks() -> None:
    masters = JobMasters()
    assert not only(masters.earlier.take_over({1: "chk-1"}, RUNNING, TOPOLOGY), DiscardDirectory)
    assert masters.aborted.ended(RUNNING[:1]) == []
    assert masters.aborted.ended(RUNNING[1:]) == ["chk-1"]


def test_take_over_deletes_the_directory_of_an_aborted_checkpoint_if_no_task_runs() -> None:
    actions = JobMasters().earlier.take_over({1: "chk-1"}, (), TOPOLOGY)
    assert one(actions, DiscardDirectory) == DiscardDirectory("chk-1")


def test_take_over_aborts_only_a_bounded_number_of_the_newest_pending_checkpoints() -> None:
    begun = {number: f"chk-{number}" for number in range(1, MOST_GIVEN_UP + 2)}
    aborted = orders(JobMasters().earlier.take_over(begun, RUNNING, TOPOLOGY), CheckpointAborted)
    assert [each.order.checkpoint_id for each in aborted] == list(range(2, MOST_GIVEN_UP + 2))


def test_checkpoint_timestamps_never_decrease_although_the_clock_goes_back() -> None:
    assert JobMasters().earlier.begin_own(1, 0) == 0
    earlier = JobMasters(left_behind(1, 50), left_behind(2, 20)).earlier
    assert [earlier.begin_own(3, 40), earlier.begin_own(4, 60), earlier.begin_own(5, 55)] == [
        *(50, 60, 60)
    ]


def test_only_a_pending_checkpoint_of_this_job_master_is_surely_not_complete() -> None:
    earlier = JobMasters(left_behind(2)).earlier
    assert earlier.may_be_complete(1)
    earlier.begin_own(4, 0)
    earlier.begin_own(5, 0)
    may_be = [number for number in range(1, 7) if earlier.may_be_complete(number)]
    assert may_be == [1, 2, 3, 6]


def test_first_checkpoint_after_a_savepoint_and_a_take_over_is_full_not_incremental() -> None:
    for properties, is_whole in ((savepoint(), True), (MANUAL, False)):
        job = JobWithCheckpoints(configuration(is_incremental=True))
        job.coordinator.recovered([left_behind(1, properties=properties)])
        job.coordinator.take_over(1, {}, job.topology.attempts, 0.0)
        assert order(job.prepare(job.request(), 2), TriggerCheckpoint).order.is_whole is is_whole
