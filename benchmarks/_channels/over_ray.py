"""Calls of a Ray actor with the batch as argument."""

from __future__ import annotations

from collections import deque
from typing import Any

import pyarrow as pa
import ray

from _channels.contender import WINDOW, Contender


@ray.remote
class _Other:
    def take(self, batch: Any) -> None:
        """Gone."""

    def echo(self, batch: Any) -> Any:
        return batch


class OverRay(Contender):
    name = "Ray actor call"

    def __init__(self) -> None:
        ray.init(address="local", include_dashboard=False, num_cpus=2, log_to_driver=False)
        other: Any = _Other  # mypy knows nothing of what decorates a class
        self._other: Any = other.remote()
        ray.get(self._other.echo.remote(1))

    def send(self, batch: pa.RecordBatch, count: int) -> None:
        under_way: deque[Any] = deque()
        for _ in range(count):
            if len(under_way) == WINDOW:
                ray.get(under_way.popleft())
            under_way.append(self._other.take.remote(batch))
        ray.get(list(under_way))

    def echo(self, batch: pa.RecordBatch) -> None:
        ray.get(self._other.echo.remote(batch))

    def close(self) -> None:
        ray.shutdown()
