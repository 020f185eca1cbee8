"""Keeps and releases the result partitions of a job."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionVertex
from flinkray.scheduler.execution.partition_tracker import PartitionTracker, PlacedPartition
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.job.transitions import (
    RegionsFinished,
    RegionsUnfinished,
    ResultsFinished,
    ResultsLost,
    ResultsTakenBack,
    SendReleases,
    TaskExecutorLost,
)


class Results:
    """Reports events of regions, attempts and TaskExecutors to the PartitionTracker. Turns its
    decisions into releases and failures."""

    def __init__(
        self, graph: ExecutionGraph, regions: PipelinedRegions, tracker: PartitionTracker
    ) -> None:
        self._graph = graph
        self._regions = regions
        self._tracker = tracker

    def finished(self, transition: ResultsFinished, now: float) -> Steps:
        for execution in transition.executions:
            self._tracker.finished(execution.vertex)
        return ()

    def regions_finished(self, transition: RegionsFinished, now: float) -> Steps:
        """Release the partitions that only these regions still had to read."""
        released: list[PlacedPartition] = []
        for index in transition.regions:
            released += self._tracker.region_finished(index)
        return _releases(released)

    def regions_unfinished(self, transition: RegionsUnfinished, now: float) -> Steps:
        """Note that these regions will read their inputs again."""
        for index in transition.regions:
            self._tracker.region_unfinished(index)
        return ()

    def taken_back(self, transition: ResultsTakenBack, now: float) -> Steps:
        """Release results that will be produced again."""
        released: list[PlacedPartition] = []
        for index in transition.regions:
            for ordinal in self._regions.regions[index].vertices:
                released += self._tracker.reset(self._graph.subtasks[ordinal])
        return _releases(released)

    def task_executor_lost(self, transition: TaskExecutorLost, now: float) -> Steps:
        return _lost(self._tracker.task_executor_lost(transition.resource_id), transition.cause)

    def job_ends(self) -> Steps:
        """Release all results."""
        return _releases(self._tracker.let_go_of_all())


def _releases(partitions: Iterable[PlacedPartition]) -> tuple[SendReleases, ...]:
    partitions = tuple(partitions)
    return (SendReleases(partitions),) if partitions else ()


def _lost(producers: Iterable[ExecutionVertex], cause: str) -> Steps:
    lost = tuple(vertex.current for vertex in producers)
    return (ResultsLost(lost, cause),) if lost else ()
