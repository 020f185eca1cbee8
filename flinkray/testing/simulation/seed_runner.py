"""Runs a scenario with many seeds inside one pytest item."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flinkray.core.error_text import summary_of
from flinkray.testing.simulation.dead_processes import collected_after_each
from flinkray.testing.simulation.simulation import Simulation

LAST_LINES = 120
"""How many last lines of the story are shown when a seed fails."""
_PROGRESS_EVERY = 5.0
"""Seconds between two progress lines."""


@dataclass(frozen=True)
class SeedChoice:
    """The seeds that the command line asks for."""

    only: int | None = None
    count: int | None = None
    first: int = 0
    shard: tuple[int, int] = (0, 1)
    """(i, n): every n-th seed, beginning with the i-th."""

    def seeds(self, default_count: int) -> Sequence[int]:
        if self.only is not None:
            return (self.only,)
        count = default_count if self.count is None else self.count
        index, step = self.shard
        return range(self.first + index, self.first + count, step)


@dataclass(frozen=True)
class FailedSeed:
    """A seed whose run has failed."""

    seed: int
    text: str
    """The end of the seed's story, its error, and how to replay it."""


@dataclass(frozen=True)
class SeedsRun:
    """The results of the seeds of one pytest item."""

    nodeid: str
    passed: int
    seconds: float
    failures: tuple[FailedSeed, ...] = ()
    """The failures in the order in which they ran; at most one unless the run keeps going."""


def run_seeds(
    item: pytest.Item,
    seeds: Sequence[int],
    make: Callable[[int], Simulation],
    scenario: Callable[[Simulation], Coroutine[Any, Any, None]],
    progress: Callable[[str], None],
    *,
    keep_going: bool = False,
) -> SeedsRun:
    """Run the scenario with one seed after the other; stop at the first failure, unless
    *keep_going*. Raises the error of the first seed that failed, whose attribute ``seeds_run`` is
    the :class:`SeedsRun`."""
    __tracebackhide__ = True
    begin = last = time.perf_counter()
    passed = 0
    failures: list[FailedSeed] = []
    first_error: BaseException | None = None
    with collected_after_each() as collect:
        for done, seed in enumerate(seeds):
            try:
                _run_one(item, make(seed), scenario, failures)
            except BaseException as error:  # noqa: BLE001 - raised when the others have run
                first_error = first_error or error
                may_go_on = isinstance(error, (Exception, pytest.fail.Exception))
                if not (keep_going and may_go_on):
                    break
                progress(f"{item.nodeid}: seed {seed} failed: {summary_of(error)}")
            else:
                passed += 1
            collect()
            now = time.perf_counter()
            if now - last > _PROGRESS_EVERY:
                last = now
                failed = f", {len(failures)} failed" if failures else ""
                progress(
                    f"{item.nodeid}: {done + 1} of {len(seeds)} seeds, {now - begin:.0f} s{failed}"
                )
    run = SeedsRun(item.nodeid, passed, time.perf_counter() - begin, tuple(failures))
    if first_error is not None:
        first_error.seeds_run = run  # type: ignore[attr-defined]
        raise first_error
    return run


def _run_one(
    item: pytest.Item,
    simulation: Simulation,
    scenario: Callable[[Simulation], Coroutine[Any, Any, None]],
    failures: list[FailedSeed],
) -> None:
    __tracebackhide__ = True
    try:
        simulation.run(scenario(simulation))
    except BaseException as error:
        failures.append(FailedSeed(simulation.seed, _explain(item, simulation, error)))
        raise


def _explain(item: pytest.Item, simulation: Simulation, error: BaseException) -> str:
    story = "\n".join(simulation.story.end(LAST_LINES))
    return (
        f"{story}\n\n"
        f"{summary_of(error)}\n"
        f"seed {simulation.seed} failed at {simulation.now:.6f} s, after "
        f"{simulation.scheduler.steps} steps; trace {simulation.trace_hash}\n"
        f'replay: pytest "{item.nodeid}" --seed {simulation.seed}'
    )
