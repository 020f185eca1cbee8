"""When which regions are scheduled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from flinkray.scheduler.execution.execution_graph import PartitionGroup
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import JobGraph, JobType


class SchedulingStrategy(ABC):
    """Regions are indices; what is returned is to be scheduled now, in that order."""

    def __init__(self, regions: PipelinedRegions) -> None:
        self._regions = regions

    @abstractmethod
    def start(self) -> list[int]:
        """The job begins."""

    @abstractmethod
    def restart(self, regions: Iterable[int]) -> list[int]:
        """These were reset, with their results, and are to run again when they can."""

    @abstractmethod
    def groups_finished(self, groups: Iterable[PartitionGroup]) -> list[int]:
        """All partitions of these groups are finished; who runs already is to be skipped."""

    @abstractmethod
    def groups_unfinished(self, groups: Iterable[PartitionGroup]) -> None:
        """Partitions of these groups, which were finished, are to be produced again."""


class EagerSchedulingStrategy(SchedulingStrategy):
    """All at once: for streams, where everything runs at the same time."""

    def start(self) -> list[int]:
        return list(range(len(self._regions.regions)))

    def restart(self, regions: Iterable[int]) -> list[int]:
        return sorted(regions)

    def groups_finished(self, groups: Iterable[PartitionGroup]) -> list[int]:
        return []

    def groups_unfinished(self, groups: Iterable[PartitionGroup]) -> None:
        pass


class PipelinedRegionSchedulingStrategy(SchedulingStrategy):
    """A region when all blocking partitions that it reads are finished."""

    def __init__(self, regions: PipelinedRegions) -> None:
        super().__init__(regions)
        self._unfinished = [len(region.inputs) for region in regions.regions]
        """Region -> how many of its input groups are not finished."""

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
    """The strategy for a job of its type."""
    if job_graph.job_type is JobType.STREAMING and not job_graph.has_coordinated_vertices:
        return EagerSchedulingStrategy(regions)
    return PipelinedRegionSchedulingStrategy(regions)
