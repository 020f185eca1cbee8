"""Cluster data sets while TaskExecutors produce, promote, lose and vanish; releases are lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.core.ids import IntermediateDataSetID, JobID, ResourceID, ResultPartitionID
from flinkray.scheduler.resources.cluster_partitions import (
    ClusterPartitionTracker,
    ReleaseDataSets,
    TaskExecutorPartitions,
)
from tests.scheduler.builders import GRAPH, JOB, OTHER_JOB, id_of

HOSTS = [ResourceID(name) for name in "ab"]
DATA = [id_of(IntermediateDataSetID, number) for number in (1, 2)]
JOB_OF = dict(zip(DATA, (JOB, OTHER_JOB), strict=True))
PARTITIONS = [ResultPartitionID(GRAPH, data, number, 0) for data in DATA for number in (0, 1)]

hosts = st.sampled_from(HOSTS)
partitions = st.sampled_from(PARTITIONS)
totals = st.sampled_from([2, 2, 2, 3])
"""Now and then the job was run with another parallelism."""


class ClusterPartitionsMachine(RuleBasedStateMachine):
    """The model: what each TaskExecutor has, of jobs and of the cluster, and what it told last."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = ClusterPartitionTracker()
        self.real = {host: TaskExecutorPartitions() for host in HOSTS}
        self.of_jobs: dict[ResourceID, set[ResultPartitionID]] = {host: set() for host in HOSTS}
        self.of_cluster: dict[ResourceID, set[ResultPartitionID]] = {host: set() for host in HOSTS}
        self.totals: dict[tuple[ResourceID, ResultPartitionID], int] = {}
        self.told: dict[ResourceID, set[ResultPartitionID]] = {}
        self.told_totals: dict[tuple[ResourceID, ResultPartitionID], int] = {}
        self.releases: list[ReleaseDataSets] = []
        """Under way."""
        self.broken: set[IntermediateDataSetID] = set()
        """Known to be of no use, and not gone yet."""

    # what happens on a TaskExecutor

    @rule(host=hosts, partition=partitions, total=totals)
    def produced(self, host: ResourceID, partition: ResultPartitionID, total: int) -> None:
        if partition not in self.of_cluster[host]:
            self.real[host].produced(JOB_OF[partition.data_set_id], partition, total)
            self.of_jobs[host].add(partition)
            self.totals[host, partition] = total

    @rule(host=hosts, partition=partitions, total=totals)
    def produced_and_promoted(
        self, host: ResourceID, partition: ResultPartitionID, total: int
    ) -> None:
        self.produced(host, partition, total)
        self.promoted(host, {partition}, JOB_OF[partition.data_set_id])
        self.heartbeat(host)

    @rule(host=hosts, chosen=st.sets(partitions), job=st.sampled_from([JOB, OTHER_JOB]))
    def promoted(self, host: ResourceID, chosen: set[ResultPartitionID], job: JobID) -> None:
        self.real[host].promote(job, sorted(chosen, key=str))
        moved = {p for p in chosen & self.of_jobs[host] if JOB_OF[p.data_set_id] == job}
        self.of_jobs[host] -= moved
        self.of_cluster[host] |= moved

    @rule(host=hosts, chosen=st.sets(partitions), job=st.sampled_from([JOB, OTHER_JOB]))
    def released_by_its_job(
        self, host: ResourceID, chosen: set[ResultPartitionID], job: JobID
    ) -> None:
        released = set(self.real[host].release(job, sorted(chosen, key=str)))
        assert released == {p for p in chosen & self.of_jobs[host] if JOB_OF[p.data_set_id] == job}
        self.of_jobs[host] -= released

    @rule(host=hosts, partition=partitions)
    def lost(self, host: ResourceID, partition: ResultPartitionID) -> None:
        self.real[host].lost(JOB_OF[partition.data_set_id], partition)
        self.of_jobs[host].discard(partition)
        self.of_cluster[host].discard(partition)

    @rule(host=hosts, job=st.sampled_from([JOB, OTHER_JOB]))
    def job_gone(self, host: ResourceID, job: JobID) -> None:
        released = set(self.real[host].job_gone(job))
        assert released == {p for p in self.of_jobs[host] if JOB_OF[p.data_set_id] == job}
        self.of_jobs[host] -= released

    # what the ResourceManager hears and says

    @rule(host=hosts)
    def heartbeat(self, host: ResourceID) -> None:
        before, now = self.told.get(host, set()), set(self.of_cluster[host])
        self.broken |= {lost.data_set_id for lost in before - now}
        self.told[host] = now
        self.told_totals.update({(host, p): self.totals[host, p] for p in now})
        self.broken |= {p.data_set_id for p in now if len(self.totals_of(p.data_set_id)) > 1}
        self.send(self.tracker.report(host, self.real[host].report()))

    def totals_of(self, data: IntermediateDataSetID) -> set[int]:
        """Of all that was told."""
        return {
            self.told_totals[host, partition]
            for host, told in self.told.items()
            for partition in told
            if partition.data_set_id == data
        }

    @rule(host=hosts, rare=st.integers(0, 5))
    def task_executor_dies(self, host: ResourceID, rare: int) -> None:
        if rare:
            return
        self.broken |= {lost.data_set_id for lost in self.told.pop(host, set())}
        self.real[host] = TaskExecutorPartitions()
        self.of_jobs[host], self.of_cluster[host] = set(), set()
        self.send(self.tracker.task_executor_lost(host))

    @rule(data=st.sampled_from(DATA))
    def client_releases(self, data: IntermediateDataSetID) -> None:
        self.broken.add(data)
        self.send(self.tracker.release(data))

    def send(self, releases: list[ReleaseDataSets]) -> None:
        self.releases += releases
        hosted = {p.data_set_id for told in self.told.values() for p in told}
        self.broken &= hosted
        for release in releases:
            assert set(release.data_sets) <= self.broken

    @precondition(lambda self: self.releases)
    @rule(arrives=st.booleans())
    def release_is_under_way(self, arrives: bool) -> None:
        release = self.releases.pop(0)
        if arrives:
            self.carry_out(release)

    def carry_out(self, release: ReleaseDataSets) -> None:
        of_cluster = self.of_cluster[release.resource_id]
        released = set(self.real[release.resource_id].release_data_sets(release.data_sets))
        assert released == {p for p in of_cluster if p.data_set_id in release.data_sets}
        of_cluster -= released

    # what holds

    @invariant()
    def what_is_listed_is_what_was_told(self) -> None:
        found = {one.data_set_id: one for one in self.tracker.data_sets()}
        for data in DATA:
            told = {p for told in self.told.values() for p in told if p.data_set_id == data}
            assert (data in found) == bool(told)
            if told:
                assert found[data].number_of_partitions == len(told)
                assert found[data].total_partitions == max(self.totals_of(data))

    @invariant()
    def what_is_reported_is_the_clusters_alone(self) -> None:
        for host, real in self.real.items():
            reported = {(r.data_set_id, n) for r in real.report() for n in r.partitions}
            assert reported == {(p.data_set_id, p.partition) for p in self.of_cluster[host]}
            assert all(report.partitions for report in real.report())
            assert real.is_empty == (not self.of_jobs[host] and not self.of_cluster[host])

    def teardown(self) -> None:
        """Whatever was lost of the messages: what is broken goes."""
        self.releases.clear()
        broken = set(self.broken)
        for _ in range(2):
            for host in list(self.told):
                self.heartbeat(host)
                broken |= self.broken
                for release in self.releases:
                    self.carry_out(release)
                self.releases.clear()
        for host in list(self.told):
            self.heartbeat(host)
        assert not broken & {one.data_set_id for one in self.tracker.data_sets()}


TestClusterPartitions = ClusterPartitionsMachine.TestCase
TestClusterPartitions.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
