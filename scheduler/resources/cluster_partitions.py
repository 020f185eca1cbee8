"""Tracks partitions that outlive their job, until their data set is released (RM-11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flinkray.core.ids import IntermediateDataSetID, JobID, ResourceID, ResultPartitionID
from flinkray.core.message import message


@message
class ClusterPartitionReport:
    """A TaskExecutor's report about its partitions of one cluster data set."""

    data_set_id: IntermediateDataSetID
    partitions: tuple[int, ...]
    """Indices of the partitions, ascending."""
    total_partitions: int
    """Number of partitions of the whole data set, on all TaskExecutors."""


@message
class ClusterDataSet:
    """A result that has outlived its job, with the number of its partitions that exist."""

    data_set_id: IntermediateDataSetID
    number_of_partitions: int
    """Number of different partitions that TaskExecutors have reported."""
    total_partitions: int
    """Number of partitions that the job has produced."""

    @property
    def is_complete(self) -> bool:
        return self.number_of_partitions == self.total_partitions


@dataclass(frozen=True, slots=True)
class ReleaseDataSets:
    """Ask a TaskExecutor to release all its partitions of these data sets."""

    resource_id: ResourceID
    data_sets: tuple[IntermediateDataSetID, ...]


@dataclass(slots=True)
class _Hosted:
    """Partitions of one data set on a TaskExecutor."""

    partitions: set[int] = field(default_factory=set)
    totals: set[int] = field(default_factory=set)
    """Reported total numbers of partitions.
    More than one if the job was run again with another parallelism."""


class ClusterPartitionTracker:
    """Tracks for the ResourceManager which cluster partitions exist on which TaskExecutors. A data
    set with a lost partition is useless and is released everywhere.  So is a data set with
    partitions from runs of its job with different parallelisms (Flink's ResourceManager fails in
    this case)."""

    def __init__(self) -> None:
        self._hosted: dict[ResourceID, dict[IntermediateDataSetID, _Hosted]] = {}
        self._hosts: dict[IntermediateDataSetID, dict[ResourceID, None]] = {}
        self._releasing: set[IntermediateDataSetID] = set()
        """Data sets being released that TaskExecutors still have.
        A TaskExecutor that reports such a data set is asked again."""

    def report(
        self, resource_id: ResourceID, reports: Iterable[ClusterPartitionReport]
    ) -> list[ReleaseDataSets]:
        """Handle a TaskExecutor's heartbeat, which reports all its cluster partitions."""
        before = self._hosted.get(resource_id, {})
        now: dict[IntermediateDataSetID, _Hosted] = {}
        for report in reports:
            hosted = now.setdefault(report.data_set_id, _Hosted())
            hosted.partitions.update(report.partitions)
            hosted.totals.add(report.total_partitions)
        broken = [
            data_set
            for data_set, held in before.items()
            if data_set not in now or not held.partitions <= now[data_set].partitions
        ]
        self._forget(resource_id)
        if now:
            self._hosted[resource_id] = now
        for data_set in now:
            self._hosts.setdefault(data_set, {})[resource_id] = None
        broken += [one for one in now if one not in broken and len(self._totals_of(one)) > 1]
        asked_again = [data_set for data_set in now if data_set in self._releasing]
        releases = self._release(broken)
        if asked_again and not any(r.resource_id == resource_id for r in releases):
            releases.append(ReleaseDataSets(resource_id, tuple(asked_again)))
        return releases

    def task_executor_lost(self, resource_id: ResourceID) -> list[ReleaseDataSets]:
        """Release all data sets of which the lost TaskExecutor had a part."""
        broken = tuple(self._hosted.get(resource_id, ()))
        self._forget(resource_id)
        return self._release(broken)

    def release(self, data_set_id: IntermediateDataSetID) -> list[ReleaseDataSets]:
        """Release a data set that a client no longer wants."""
        return self._release((data_set_id,))

    def data_sets(self) -> tuple[ClusterDataSet, ...]:
        """Return all data sets, each with the number of different partitions that exist."""
        return tuple(
            ClusterDataSet(
                data_set,
                len({p for host in hosts for p in self._hosted[host][data_set].partitions}),
                max(self._totals_of(data_set)),
            )
            for data_set, hosts in self._hosts.items()
        )

    def _totals_of(self, data_set: IntermediateDataSetID) -> set[int]:
        return {n for host in self._hosts[data_set] for n in self._hosted[host][data_set].totals}

    def _forget(self, resource_id: ResourceID) -> None:
        for data_set in self._hosted.pop(resource_id, ()):
            hosts = self._hosts[data_set]
            del hosts[resource_id]
            if not hosts:
                del self._hosts[data_set]

    def _release(self, broken: Sequence[IntermediateDataSetID]) -> list[ReleaseDataSets]:
        """Release data sets, which stay tracked until TaskExecutors report that they are gone."""
        self._releasing.update(broken)
        self._releasing &= self._hosts.keys()
        to_release: dict[ResourceID, list[IntermediateDataSetID]] = {}
        for data_set in broken:
            for resource_id in self._hosts.get(data_set, ()):
                to_release.setdefault(resource_id, []).append(data_set)
        return [ReleaseDataSets(where, tuple(sets)) for where, sets in to_release.items()]


class TaskExecutorPartitions:
    """Tracks for a TaskExecutor to whom each partition belongs: its job or, once promoted, the
    cluster. Every method that releases partitions returns the partitions whose data must be
    deleted."""

    def __init__(self) -> None:
        self._of_job: dict[JobID, dict[ResultPartitionID, int]] = {}
        """Job -> partition -> total number of partitions of the data set."""
        self._of_cluster: dict[IntermediateDataSetID, dict[ResultPartitionID, int]] = {}

    def produced(self, job_id: JobID, partition: ResultPartitionID, total: int) -> None:
        """Add a partition that a task of the job has produced and that stays after the task's end.
        *total*: number of partitions of the data set."""
        self._of_job.setdefault(job_id, {})[partition] = total

    def promote(self, job_id: JobID, partitions: Iterable[ResultPartitionID]) -> None:
        """Hand over partitions from the job to the cluster, so that they outlive the job.
        Partitions that do not belong to the job are ignored."""
        of_job = self._of_job.get(job_id, {})
        for partition in partitions:
            if (total := of_job.pop(partition, None)) is not None:
                self._of_cluster.setdefault(partition.data_set_id, {})[partition] = total
        self._drop_if_empty(job_id)

    def is_promoted(self, partition: ResultPartitionID) -> bool:
        """Return whether the partition belongs to the cluster."""
        return partition in self._of_cluster.get(partition.data_set_id, ())

    def superseded_by(
        self, partitions: Iterable[ResultPartitionID]
    ) -> tuple[ResultPartitionID, ...]:
        """Release the cluster partitions that these new partitions of the same job replace. This
        happens if the job's JobMaster died after the promotion, and another execution graph
        produces the partitions again.  Returns the released partitions."""
        released: list[ResultPartitionID] = []
        for partition in partitions:
            of_cluster = self._of_cluster.get(partition.data_set_id, {})
            for old in [one for one in of_cluster if one.partition == partition.partition]:
                released.append(old)
                del of_cluster[old]
            if not of_cluster:
                self._of_cluster.pop(partition.data_set_id, None)
        return tuple(released)

    def release(
        self, job_id: JobID, partitions: Iterable[ResultPartitionID]
    ) -> tuple[ResultPartitionID, ...]:
        """Release partitions of the job.  Partitions that do not belong to the job are ignored."""
        of_job = self._of_job.get(job_id, {})
        released = tuple(p for p in partitions if of_job.pop(p, None) is not None)
        self._drop_if_empty(job_id)
        return released

    def lost(self, job_id: JobID, partition: ResultPartitionID) -> None:
        """Forget a partition whose data is gone, whether it belonged to a job or to the cluster."""
        self.release(job_id, (partition,))
        of_cluster = self._of_cluster.get(partition.data_set_id, {})
        if of_cluster.pop(partition, None) is not None and not of_cluster:
            del self._of_cluster[partition.data_set_id]

    def job_gone(self, job_id: JobID) -> tuple[ResultPartitionID, ...]:
        """Release the job's unpromoted partitions, because its JobMaster is gone (TM-28)."""
        return tuple(self._of_job.pop(job_id, ()))

    def release_data_sets(
        self, data_sets: Iterable[IntermediateDataSetID]
    ) -> tuple[ResultPartitionID, ...]:
        """Release all partitions of data sets that the cluster no longer needs."""
        return tuple(p for data_set in data_sets for p in self._of_cluster.pop(data_set, ()))

    def report(self) -> tuple[ClusterPartitionReport, ...]:
        """Return the report for the ResourceManager about cluster partitions (TM-28). Partitions of
        jobs are not included."""
        found: dict[tuple[IntermediateDataSetID, int], list[int]] = {}
        for data_set, partitions in self._of_cluster.items():
            for partition, total in partitions.items():
                found.setdefault((data_set, total), []).append(partition.partition)
        return tuple(
            ClusterPartitionReport(data_set, tuple(sorted(indexes)), total)
            for (data_set, total), indexes in found.items()
        )

    def has_partitions_of(self, job_id: JobID) -> bool:
        """Return whether partitions of the job are here, so that it needs the TaskExecutor
        (JM-15).
        """
        return job_id in self._of_job

    @property
    def is_empty(self) -> bool:
        return not (self._of_job or self._of_cluster)

    def _drop_if_empty(self, job_id: JobID) -> None:
        if not self._of_job.get(job_id, True):
            del self._of_job[job_id]
