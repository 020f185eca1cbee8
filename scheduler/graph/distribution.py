"""Computes which partitions of a result a consumer reads, and which part of each partition.

With S producers (partitions) and T consumers:

* ALL_TO_ALL: every consumer reads every partition; consumer i reads subpartition i of each.
* POINTWISE, S >= T: consumer i reads partitions [i*S//T, (i+1)*S//T), which have one subpartition.
* POINTWISE, S < T: consumer i reads partition i*S//T; the partition has one subpartition per
  consumer, and its k-th consumer reads the k-th.

This is the integer form of Flink's VertexInputInfoComputationUtils (since 1.14).  The partitions
and consumers of an edge are divided into *groups*: every consumer of a group reads every partition
of the group and no others of the edge.  A group is stored as two ranges.
"""

from __future__ import annotations

from flinkray.scheduler.graph.job_graph import DistributionPattern

ALL_TO_ALL = DistributionPattern.ALL_TO_ALL


def number_of_groups(pattern: DistributionPattern, producers: int, consumers: int) -> int:
    """Return how many groups (see the module) an edge has."""
    return 1 if pattern is ALL_TO_ALL else min(producers, consumers)


def group_of_consumer(
    pattern: DistributionPattern, producers: int, consumers: int, consumer: int
) -> int:
    """Return the index of the group that the consumer reads."""
    if pattern is ALL_TO_ALL:
        return 0
    return consumer if producers >= consumers else consumer * producers // consumers


def group_of_partition(
    pattern: DistributionPattern, producers: int, consumers: int, partition: int
) -> int:
    """Return the index of the partition's group. The consumers of a group read all partitions of
    the group, and no others of the edge."""
    if pattern is ALL_TO_ALL:
        return 0
    if producers < consumers:
        return partition
    return ((partition + 1) * consumers - 1) // producers


def partitions_of_group(
    pattern: DistributionPattern, producers: int, consumers: int, group: int
) -> range:
    """Return the indices of the partitions that belong to the group."""
    if pattern is ALL_TO_ALL:
        return range(producers)
    if producers < consumers:
        return range(group, group + 1)
    return range(group * producers // consumers, (group + 1) * producers // consumers)


def consumers_of_group(
    pattern: DistributionPattern, producers: int, consumers: int, group: int
) -> range:
    """Return the indices of the consumers that read the group."""
    if pattern is ALL_TO_ALL:
        return range(consumers)
    if producers >= consumers:
        return range(group, group + 1)
    # i*S//T == g  <=>  ceil(g*T/S) <= i < ceil((g+1)*T/S)
    return range(-(-group * consumers // producers), -(-(group + 1) * consumers // producers))


def number_of_subpartitions(
    pattern: DistributionPattern, producers: int, consumers: int, partition: int
) -> int:
    """Return the number of subpartitions of a partition: one for each of its consumers."""
    group = group_of_partition(pattern, producers, consumers, partition)
    return len(consumers_of_group(pattern, producers, consumers, group))


def subpartition_of(
    pattern: DistributionPattern, producers: int, consumers: int, consumer: int
) -> int:
    """Return the index of the subpartition that the consumer reads. The index is the same in every
    partition that the consumer reads."""
    group = group_of_consumer(pattern, producers, consumers, consumer)
    return consumer - consumers_of_group(pattern, producers, consumers, group).start
