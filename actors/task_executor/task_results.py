"""Knows where the results of a TaskExecutor's tasks are, and until when each exists."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flinkray.actors.gateways.task_process import ChannelPlaces, JobPartition, PartitionPlaces
from flinkray.actors.shared.produced_partitions import ProducedPartition
from flinkray.actors.task_executor.task_processes import TaskProcesses, TaskProcessPlace
from flinkray.core.ids import (
    ExecutionGraphID,
    IntermediateDataSetID,
    JobID,
    ResultPartitionID,
)
from flinkray.streaming.network import DataAddress


class TaskResults:
    """Knows which task process has which results of a TaskExecutor's tasks.
    Pipelined results exist while their task runs. Blocking results exist from the end of their task
    until they are released, at the latest with their job. The data itself is in the task processes,
    which delete it later: nothing waits for the deletion (TM-28).
    """

    def __init__(
        self, processes: TaskProcesses, on_no_results: Callable[[TaskProcessPlace], None]
    ) -> None:
        """Create the collection of results, without results.
        *on_no_results* is called when the last result in a process is not needed any more.
        """
        self._processes = processes
        self._on_no_results = on_no_results
        self._places: dict[JobPartition, TaskProcessPlace] = {}
        self._finished: dict[JobID, set[ResultPartitionID]] = {}
        """Job -> its blocking results whose tasks have finished. No job has an empty set."""

    def begun(self, produced: Iterable[ProducedPartition], place: TaskProcessPlace) -> None:
        """Note that a task in the process *place* will produce these results."""
        for one in produced:
            self._places[one.partition_id] = place

    def ended(self, produced: Iterable[ProducedPartition], *, is_finished: bool) -> None:
        """Note the end of a task with its results. Only the blocking results of a finished task
        stay."""
        for one in produced:
            if one.is_pipelined or not is_finished:
                self._places.pop(one.partition_id, None)
            elif one.partition_id in self._places:
                job_id, partition = one.partition_id.job_id, one.partition_id.partition
                self._finished.setdefault(job_id, set()).add(partition)

    def process_died(self, place: TaskProcessPlace) -> None:
        """Remove all results that were in a process that has died."""
        for lost in [p for p, where in self._places.items() if where is place]:
            del self._places[lost]
            self._forget_finished(lost.job_id, (lost.partition,))

    def find(self, job_id: JobID, data_set_id: IntermediateDataSetID) -> PartitionPlaces:
        """Return the partitions of a data set here, with the addresses of the processes that have
        them. Partitions that are still being produced are included."""
        found: dict[str, list[ResultPartitionID]] = {}
        for one, place in self._places.items():
            is_wanted = one.job_id == job_id and one.partition.data_set_id == data_set_id
            if is_wanted and place.gateway is not None:
                found.setdefault(place.gateway.address, []).append(one.partition)
        return PartitionPlaces(tuple(found), tuple(map(tuple, found.values())))

    async def find_channels(
        self, job_id: JobID, data_set_id: IntermediateDataSetID
    ) -> ChannelPlaces:
        """Return the partitions of a data set here, with the addresses of the channels to read
        them. Partitions that are still being produced are included."""
        by_place: dict[TaskProcessPlace, list[ResultPartitionID]] = {}
        for one, place in self._places.items():
            if one.job_id == job_id and one.partition.data_set_id == data_set_id:
                by_place.setdefault(place, []).append(one.partition)
        addresses: list[DataAddress] = []
        partitions: list[tuple[ResultPartitionID, ...]] = []
        for place, here in by_place.items():
            address = await self._processes.data_address_of(place)
            if address is not None:
                addresses.append(address)
                partitions.append(tuple(here))
        return ChannelPlaces(tuple(addresses), tuple(partitions))

    def are_at(self, place: TaskProcessPlace) -> bool:
        """Return whether any result is in the process at *place*, or will be produced there."""
        return place in self._places.values()

    def has_results_of(self, job_id: JobID) -> bool:
        """Return whether any blocking result of the job's finished tasks is here."""
        return job_id in self._finished

    @property
    def is_empty(self) -> bool:
        """Whether no blocking result of any finished task is here."""
        return not self._finished

    def release(self, job_id: JobID, partitions: Iterable[ResultPartitionID]) -> None:
        """Release results that the job does not need any more, even if still being produced."""
        partitions = tuple(partitions)
        self._forget_finished(job_id, partitions)
        self._delete(JobPartition(job_id, partition) for partition in partitions)

    def goes_on(self, job_id: JobID, graph_id: ExecutionGraphID) -> None:
        """Release the results of the job's execution graphs other than *graph_id* (TM-28).
        This includes results that are being produced.
        """
        of_job = [one.partition for one in self._places if one.job_id == job_id]
        self.release(job_id, [one for one in of_job if one.graph_id != graph_id])

    def job_gone(self, job_id: JobID) -> None:
        """Release the results of a job, even those still being produced (TM-28)."""
        self._finished.pop(job_id, None)
        self._delete([one for one in self._places if one.job_id == job_id])

    def _forget_finished(self, job_id: JobID, partitions: Iterable[ResultPartitionID]) -> None:
        finished = self._finished.get(job_id)
        if finished is not None:
            finished.difference_update(partitions)
            if not finished:
                del self._finished[job_id]

    def _delete(self, partitions: Iterable[JobPartition]) -> None:
        by_place: dict[TaskProcessPlace, list[JobPartition]] = {}
        for one in partitions:
            place = self._places.pop(one, None)
            if place is not None:
                by_place.setdefault(place, []).append(one)
        for place, of_place in by_place.items():
            self._processes.release_partitions(place, tuple(of_place))
            if not self.are_at(place):
                self._on_no_results(place)
