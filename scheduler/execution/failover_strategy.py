"""Defines failover strategies, which decide which regions are restarted after a failure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.shared.states import ExecutionState


class FailoverStrategy(ABC):
    """Decides which regions to restart.  Stateless; vertices are ordinals of the graph."""

    def __init__(self, graph: ExecutionGraph, regions: PipelinedRegions) -> None:
        self._graph = graph
        self._regions = regions

    @abstractmethod
    def regions_to_restart(self, failed: Iterable[int]) -> list[int]:
        """Return the regions to restart after these vertices have failed: indices in ascending
        order. *failed* contains ordinals. Before the call, mark as gone the partitions that a
        failed vertex could not read.
        """

    def tasks_to_restart(self, failed: Iterable[int]) -> list[int]:
        """Return the vertices to restart after these vertices have failed: ordinals in ascending
        order. Vertices that are still CREATED are left out, because they have not begun (FO-06)."""
        subtasks = self._graph.subtasks
        return sorted(
            ordinal
            for index in self.regions_to_restart(failed)
            for ordinal in self._regions.regions[index].vertices
            if subtasks[ordinal].current.state is not ExecutionState.CREATED
        )


class RestartAllFailoverStrategy(FailoverStrategy):
    """Restarts all regions after every failure."""

    def regions_to_restart(self, failed: Iterable[int]) -> list[int]:
        return list(range(len(self._regions.regions)))


class RestartPipelinedRegionFailoverStrategy(FailoverStrategy):
    """Restarts the failed regions, and the regions that depend on the restart.  The default.
    With each region it restarts the producers of input partitions that are gone (FO-04, FO-05), and
    all readers of the region's results, because the results may differ the next time (FO-03).

    The time is proportional to the concerned vertices and groups: each group is visited once, no
    matter how many regions read or produce it.
    """

    def regions_to_restart(self, failed: Iterable[int]) -> list[int]:
        regions = self._regions
        wanted = dict.fromkeys(regions.of[ordinal] for ordinal in failed)
        queue = list(wanted)
        inputs_seen: set[int] = set()
        outputs_seen: set[int] = set()

        def want(indices: Iterable[int]) -> None:
            for index in indices:
                if index not in wanted:
                    wanted[index] = None
                    queue.append(index)

        while queue:
            region = regions.regions[queue.pop()]
            for group in region.inputs:
                if id(group) in inputs_seen:
                    continue
                inputs_seen.add(id(group))
                result, first = group.edge.result, group.edge.result.producer.first
                want(
                    regions.of[first + partition]
                    for partition in group.partitions
                    if not result.is_available(partition)
                )
            for group in region.outputs:
                if id(group) not in outputs_seen:
                    outputs_seen.add(id(group))
                    want(regions.consumers(group))
        return sorted(wanted)
