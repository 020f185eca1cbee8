"""Runs a scenario with many seeds inside of one pytest item."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flinkray.testing.simulation.simulation import Simulation

LAST_LINES = 120
"""Of the story, shown when a seed fails."""
_PROGRESS_EVERY = 5.0
"""Seconds."""


@dataclass(frozen=True)
class SeedChoice:
    """Which seeds the command line asks for."""

    only: int | None = None
    count: int | None = None
    first: int = 0
    shard: tuple[int, int] = (0, 1)
    """Every n-th seed, beginning with the i-th: (i, n)."""

    def seeds(self, default_count: int) -> Sequence[int]:
        if self.only is not None:
            return (self.only,)
        count = default_count if self.count is None else self.count
        index, step = self.shard
        return range(self.first + index, self.first + count, step)


@dataclass(frozen=True)
class SeedsRun:
    """What became of the seeds of one item."""

    nodeid: str
    done: int
    seconds: float
    failed_seed: int | None
    text: str = ""
    """The end of the story, and how to replay it."""


def run_seeds(
    item: pytest.Item,
    seeds: Sequence[int],
    make: Callable[[int], Simulation],
    scenario: Callable[[Simulation], Coroutine[Any, Any, None]],
    progress: Callable[[str], None],
) -> SeedsRun:
    """Run one seed after the other; the first that fails is the last.

    Raises:
        BaseException: what that seed failed with; its :class:`SeedsRun` is its ``seeds_run``.
    """
    __tracebackhide__ = True
    begin = last = time.perf_counter()
    for done, seed in enumerate(seeds):
        simulation = make(seed)
        try:
            simulation.run(scenario(simulation))
        except BaseException as error:
            seconds = time.perf_counter() - begin
            text = _explain(item, simulation)
            error.seeds_run = SeedsRun(item.nodeid, done, seconds, seed, text)  # type: ignore[attr-defined]
            raise
        now = time.perf_counter()
        if now - last > _PROGRESS_EVERY:
            last = now
            progress(f"{item.nodeid}: {done + 1} of {len(seeds)} seeds, {now - begin:.0f} s")
    return SeedsRun(item.nodeid, len(seeds), time.perf_counter() - begin, None)


def _explain(item: pytest.Item, simulation: Simulation) -> str:
    return (
        f"{simulation.story.text(LAST_LINES)}\n\n"
        f"seed {simulation.seed} failed at {simulation.now:.6f} s, after "
        f"{simulation.scheduler.steps} steps; trace {simulation.trace_hash}\n"
        f'replay: pytest "{item.nodeid}" --seed {simulation.seed}'
    )
