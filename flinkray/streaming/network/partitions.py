"""The result partitions of a process, and the consumers that wait for partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from flinkray.streaming.network.result_partition import ResultPartition

Serve = Callable[[ResultPartition], None]


class PartitionRegistry:
    """Keeps the partitions of a process by id, and requests that wait for one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[Any, ResultPartition] = {}
        self._waiting: dict[Any, dict[Hashable, Serve]] = {}

    def add(self, partition: ResultPartition) -> None:
        """Add a partition and serve the consumers that wait for it.
        Raises ValueError: a partition with this id exists."""
        with self._lock:
            if partition.id in self._partitions:
                raise ValueError(f"partition {partition.id} is there already")
            self._partitions[partition.id] = partition
            waiting = self._waiting.pop(partition.id, {})
        for serve in waiting.values():
            serve(partition)

    def remove(self, partition: ResultPartition) -> None:
        with self._lock:
            if self._partitions.get(partition.id) is partition:
                del self._partitions[partition.id]

    def request(self, partition_id: Any, who: Hashable, serve: Serve) -> bool:
        """Call *serve* with the partition: now, or when it is added.
        Return True if it was called now."""
        with self._lock:
            partition = self._partitions.get(partition_id)
            if partition is None:
                self._waiting.setdefault(partition_id, {})[who] = serve
                return False
        serve(partition)
        return True

    def withdraw(self, who: Hashable) -> None:
        """Cancel the pending requests of the consumer *who*, as given to :meth:`request`."""
        self._withdraw(lambda waiting: waiting == who)

    def withdraw_all(self, connection: object) -> None:
        self._withdraw(lambda waiting: isinstance(waiting, tuple) and waiting[0] is connection)

    def _withdraw(self, is_meant: Callable[[Hashable], bool]) -> None:
        with self._lock:
            for partition_id, waiting in tuple(self._waiting.items()):
                for who in [who for who in waiting if is_meant(who)]:
                    del waiting[who]
                if not waiting:
                    del self._waiting[partition_id]

    def all(self) -> list[ResultPartition]:
        with self._lock:
            return list(self._partitions.values())
