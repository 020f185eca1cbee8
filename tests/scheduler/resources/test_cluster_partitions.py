"""Cluster partitions: both sides of who keeps them and when they go."""

from __future__ import annotations

from flinkray.core.ids import IntermediateDataSetID, ResourceID, ResultPartitionID
from flinkray.scheduler.resources.cluster_partitions import (
    ClusterDataSet,
    ClusterPartitionReport,
    ClusterPartitionTracker,
    ReleaseDataSets,
    TaskExecutorPartitions,
)
from tests.scheduler.builders import GRAPH, JOB, OTHER_GRAPH, OTHER_JOB, id_of

DATA = id_of(IntermediateDataSetID, 1)
OTHER_DATA = id_of(IntermediateDataSetID, 2)
TOTALS = {DATA: 3, OTHER_DATA: 2}
A, B, C = (ResourceID(name) for name in "abc")


def has(
    data_set: IntermediateDataSetID, *partitions: int, total: int | None = None
) -> ClusterPartitionReport:
    return ClusterPartitionReport(data_set, partitions, total or TOTALS[data_set])


def tracker() -> ClusterPartitionTracker:
    """A and B share a data set, C has another."""
    partitions = ClusterPartitionTracker()
    assert partitions.report(A, [has(DATA, 0, 1)]) == []
    assert partitions.report(B, [has(DATA, 2)]) == []
    assert partitions.report(C, [has(OTHER_DATA, 0)]) == []
    return partitions


def test_heartbeat_that_lacks_a_partition_releases_the_data_set_on_every_worker() -> None:
    """RM-11."""
    partitions = tracker()
    assert partitions.report(A, [has(DATA, 1)]) == [
        ReleaseDataSets(B, (DATA,)),
        ReleaseDataSets(A, (DATA,)),
    ]


def test_loss_of_a_task_executor_releases_its_data_sets_on_the_other_task_executors() -> None:
    """RM-11."""
    partitions = tracker()
    assert partitions.task_executor_lost(A) == [ReleaseDataSets(B, (DATA,))]
    assert partitions.task_executor_lost(A) == []
    assert partitions.task_executor_lost(C) == []


def test_data_set_is_forgotten_once_all_task_executors_have_released_it() -> None:
    """RM-11."""
    partitions = tracker()
    assert partitions.data_sets() == (ClusterDataSet(DATA, 3, 3), ClusterDataSet(OTHER_DATA, 1, 2))
    assert len(partitions.release(DATA)) == 2
    assert partitions.report(A, []) == [ReleaseDataSets(B, (DATA,))]
    assert partitions.report(B, []) == []
    assert partitions.data_sets() == (ClusterDataSet(OTHER_DATA, 1, 2),)


def test_heartbeat_with_additional_partitions_releases_no_data_set() -> None:
    """RM-11."""
    partitions = tracker()
    assert partitions.report(A, [has(DATA, 0, 1, 2), has(OTHER_DATA, 1)]) == []


def test_data_set_is_complete_once_all_its_partitions_are_reported() -> None:
    """RM-11: two TaskExecutors may have the same partition
    (ResourceManagerPartitionTrackerImplTest)."""
    partitions = ClusterPartitionTracker()
    steps = [(A, has(DATA, 0, 1), 2), (B, has(DATA, 1), 2), (C, has(DATA, 2), 3)]
    for host, report, found in steps:
        partitions.report(host, [report])
        (data_set,) = partitions.data_sets()
        assert data_set == ClusterDataSet(DATA, found, 3)
        assert data_set.is_complete == (found == 3)


def test_partitions_of_runs_with_different_parallelisms_form_no_complete_data_set() -> None:
    """RM-11"""
    partitions = tracker()
    assert partitions.report(C, [has(DATA, 0, total=1), has(OTHER_DATA, 0)]) == [
        ReleaseDataSets(A, (DATA,)),
        ReleaseDataSets(B, (DATA,)),
        ReleaseDataSets(C, (DATA,)),
    ]


def test_partitions_of_runs_with_different_parallelism_are_reported_separately() -> None:
    """TM-28, RM-11."""
    executor, partitions = TaskExecutorPartitions(), ClusterPartitionTracker()
    for number, total in ((0, 1), (2, 3), (1, 3)):
        executor.produced(JOB, partition(number), total)
    executor.promote(JOB, [partition(number) for number in range(3)])
    reports = executor.report()
    assert set(reports) == {has(DATA, 0, total=1), has(DATA, 1, 2, total=3)}
    assert partitions.report(A, reports) == [ReleaseDataSets(A, (DATA,))]
    assert partitions.data_sets() == (ClusterDataSet(DATA, 3, 3),), "until it is gone"


def partition(number: int, data_set: IntermediateDataSetID = DATA) -> ResultPartitionID:
    return ResultPartitionID(GRAPH, data_set, number, 0)


def test_promoted_partitions_are_reported_and_outlive_their_job() -> None:
    """TM-28: the other partitions are deleted with the job and never reported."""
    partitions = TaskExecutorPartitions()
    for number in range(3):
        partitions.produced(JOB, partition(number), 3)
    assert partitions.report() == ()
    partitions.promote(JOB, [partition(2), partition(0)])
    assert partitions.job_gone(JOB) == (partition(1),)
    assert partitions.report() == (has(DATA, 0, 2),)
    assert not partitions.is_empty
    assert partitions.release_data_sets([DATA]) == (partition(2), partition(0))
    assert partitions.is_empty


def test_job_can_neither_promote_nor_release_partitions_of_another_job() -> None:
    """TM-28."""
    partitions = TaskExecutorPartitions()
    partitions.produced(JOB, partition(0), 3)
    partitions.promote(OTHER_JOB, [partition(0)])
    assert partitions.release(OTHER_JOB, [partition(0)]) == ()
    assert partitions.has_partitions_of(JOB)
    assert partitions.release(JOB, [partition(0), partition(9)]) == (partition(0),)
    assert not partitions.has_partitions_of(JOB)
    assert partitions.is_empty


def promoted(*numbers: int) -> TaskExecutorPartitions:
    partitions = TaskExecutorPartitions()
    for number in numbers:
        partitions.produced(JOB, partition(number), 3)
    partitions.promote(JOB, [partition(number) for number in numbers])
    return partitions


def test_only_promoted_partitions_count_as_cluster_partitions() -> None:
    partitions = promoted(0)
    partitions.produced(JOB, partition(1), 3)
    assert partitions.is_promoted(partition(0))
    assert not partitions.is_promoted(partition(1))
    assert not partitions.is_promoted(partition(0, OTHER_DATA))


def test_partitions_produced_again_replace_only_partitions_with_the_same_number() -> None:
    """The JobMaster died after it had promoted the earlier partitions."""
    partitions = promoted(0, 1)
    anew = [ResultPartitionID(OTHER_GRAPH, DATA, number, 0) for number in (1, 2)]
    assert partitions.superseded_by(anew) == (partition(1),)
    assert partitions.superseded_by(anew) == ()
    assert partitions.report() == (has(DATA, 0),)
    assert partitions.superseded_by([ResultPartitionID(OTHER_GRAPH, DATA, 0, 0)]) == (partition(0),)
    assert partitions.is_empty


def test_partition_with_lost_data_is_forgotten() -> None:
    partitions = promoted(0, 1)
    partitions.produced(OTHER_JOB, partition(2), 3)
    partitions.lost(OTHER_JOB, partition(2))
    assert not partitions.has_partitions_of(OTHER_JOB)
    partitions.lost(JOB, partition(0))
    assert partitions.report() == (has(DATA, 1),)
    partitions.lost(JOB, partition(1))
    partitions.lost(JOB, partition(1))
    assert partitions.is_empty


def test_data_set_with_a_lost_partition_and_partitions_of_two_runs_is_released_once() -> None:
    """RM-11"""
    partitions = tracker()
    assert partitions.report(A, [has(DATA, 0, total=1)]) == [
        ReleaseDataSets(B, (DATA,)),
        ReleaseDataSets(A, (DATA,)),
    ]
