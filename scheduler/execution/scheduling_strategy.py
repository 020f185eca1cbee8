"""Defines scheduling strategies, which decide when each region is scheduled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from flinkray.scheduler.execution.execution_graph import PartitionGroup
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import JobGraph, JobType


class SchedulingStrategy(ABC):
    """Decides which regions to schedule, and when. Methods return indices of regions, in the order
    in which to schedule them."""

    def __init__(self, regions: PipelinedRegions) -> None:
        self._regions = regions

    @abstractmethod
    def start(self) -> list[int]:
        """Return the regions to schedule when the job begins."""

    @abstractmethod
    def restart(self, regions: Iterable[int]) -> list[int]:
        """Return those of the given regions that can be scheduled now.  The regions were reset for
        a restart."""

    @abstractmethod
    def groups_finished(self, groups: Iterable[PartitionGroup]) -> list[int]:
        """Return the regions to schedule now that all partitions of these groups are finished. The
        caller must skip regions that run already."""

    @abstractmethod
    def groups_unfinished(self, groups: Iterable[PartitionGroup]) -> None:
        """Note that partitions of these groups, which were finished, will be produced again."""


class EagerSchedulingStrategy(SchedulingStrategy):
    """Schedules all regions at once, for streaming jobs."""

    def start(self) -> list[int]:
        return list(range(len(self._regions.regions)))

    def restart(self, regions: Iterable[int]) -> list[int]:
        return sorted(regions)

    def groups_finished(self, groups: Iterable[PartitionGroup]) -> list[int]:
        return []

    def groups_unfinished(self, groups: Iterable[PartitionGroup]) -> None:
        pass


class PipelinedRegionSchedulingStrategy(SchedulingStrategy):
    """Schedules a region when all blocking partitions that it reads are finished."""

    def __init__(self, regions: PipelinedRegions) -> None:
        super().__init__(regions)
        self._unfinished = [len(region.inputs) for region in regions.regions]
        """Region -> number of its input groups that are not finished."""

    def start(self) -> list[int]:
        return self.restart(range(len(self._unfinished)))

    def restart(self, regions: Iterable[int]) -> list[int]:
        return [index for index in sorted(regions) if not self._unfinished[index]]

    def groups_finished(self, groups: Iterable[PartitionGroup]) -> list[int]:
        ready = []
        for group in groups:
            for index in self._regions.consumers(group):
                self._unfinished[index] -= 1
                if not self._unfinished[index]:
                    ready.append(index)
        return sorted(ready)

    def groups_unfinished(self, groups: Iterable[PartitionGroup]) -> None:
        for group in groups:
            for index in self._regions.consumers(group):
                self._unfinished[index] += 1


def new_scheduling_strategy(job_graph: JobGraph, regions: PipelinedRegions) -> SchedulingStrategy:
    """Create the scheduling strategy for the type of the job."""
    if job_graph.job_type is JobType.STREAMING and not job_graph.has_coordinated_vertices:
        return EagerSchedulingStrategy(regions)
    return PipelinedRegionSchedulingStrategy(regions)
