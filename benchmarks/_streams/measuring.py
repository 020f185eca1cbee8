"""Runs programs with enough records, and takes medians."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from _results import Section

from .programs import Program
from .runners import Runner, Taken, medians


class Rates(NamedTuple):
    """Records per second of each program that ran long enough."""

    by_processor: dict[str, float]
    by_clock: dict[str, float]

    def plus(self, more: Rates) -> Rates:
        return Rates(self.by_processor | more.by_processor, self.by_clock | more.by_clock)


class Benchmark:
    """Runs programs for the wanted time."""

    def __init__(
        self, seconds: float, rounds: int, make: Callable[[int], Any], only: Sequence[str] = ()
    ) -> None:
        """*make* returns data for programs, so many times as much as the least.
        Run only programs whose names contain one of the texts *only*; all if it is empty."""
        self._seconds = seconds
        self._rounds = rounds
        self._make = make
        self._only = only

    def measure(self, programs: Mapping[str, Program], runner: Runner) -> Rates:
        chosen = {
            name: program
            for name, program in programs.items()
            if not self._only or any(text in name for text in self._only)
        }
        data = {name: self._enough(program, runner) for name, program in chosen.items()}
        taken: dict[str, list[Taken]] = {name: [] for name in chosen}
        for _ in range(self._rounds):
            for name, program in chosen.items():
                taken[name].append(self._run(program, data[name], runner))
        rates = Rates({}, {})
        for name, program in chosen.items():
            records, median = program.records(data[name]), medians(taken[name])
            least = min(run.clock for run in taken[name])
            if least < self._seconds:
                print(f"{name}: no figure, one of the runs took only {least:.1f} s")
                continue
            rates.by_processor[name] = records / median.processor
            rates.by_clock[name] = records / median.clock
        return rates

    def _enough(self, program: Program, runner: Runner) -> Any:
        """Return data that take the program a fifth longer than the wanted seconds."""
        times = 1
        wanted = 1.2 * self._seconds
        while True:
            data = self._make(times)
            took = self._run(program, data, runner).clock
            if took >= wanted:
                return data
            # the first runs take longer for a record: they start processes and fill caches
            times = math.ceil(times * min(20.0, max(1.1, 1.1 * wanted / took)))

    @staticmethod
    def _run(program: Program, data: Any, runner: Runner) -> Taken:
        runner.come_to_rest()
        return program.run(data)


def section_of(title: str, rates: Rates) -> Section:
    section = Section(title, ("M records/s", "per processor second", "by the clock"))
    section.raw = rates._asdict()
    for name in rates.by_clock:
        section.add(name, millions(rates.by_processor[name]), millions(rates.by_clock[name]))
    return section


def millions(rate: float) -> str:
    return f"{rate / 1e6:,.3f}" if rate < 1e6 else f"{rate / 1e6:,.2f}"
