"""What every way of moving batches has to do."""

from __future__ import annotations

import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

import pyarrow as pa

WINDOW = 16
"""Batches that a contender without flow control of its own has under way."""


class Contender(ABC):
    """Moves batches to another process, which it starts."""

    name: str

    @abstractmethod
    def send(self, batch: pa.RecordBatch, count: int) -> None:
        """So many, until the other process has them all."""

    @abstractmethod
    def echo(self, batch: pa.RecordBatch) -> None:
        """There and back."""

    @abstractmethod
    def close(self) -> None:
        """End the other process."""

    def throughput(self, batch: pa.RecordBatch, count: int) -> float:
        """Seconds per batch."""
        begin = time.perf_counter()
        self.send(batch, count)
        return (time.perf_counter() - begin) / count

    def round_trips(self, batch: pa.RecordBatch, count: int) -> tuple[float, float]:
        """p50 and p99, seconds."""
        durations = []
        for _ in range(count):
            begin = time.perf_counter()
            self.echo(batch)
            durations.append(time.perf_counter() - begin)
        durations.sort()
        return durations[count // 2], durations[count * 99 // 100]


class Peer:
    """A process that runs ``main`` of a module here; lines go both ways."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"_channels.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[1],
        )
        self.first = self.line()

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def tell(text: str) -> None:
    """From a peer to who started it."""
    print(text, flush=True)
