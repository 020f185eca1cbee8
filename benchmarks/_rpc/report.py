"""Figures, their goals, and how both are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Rounds = Sequence[dict[str, float]]


@dataclass(frozen=True)
class Goal:
    """A bound on one figure, most often on a ratio of two that one run has measured."""

    what: str
    value: float
    bound: float
    at_least: bool = False
    digits: int = 3

    @property
    def is_met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "met" if self.is_met else "MISSED"
        value, bound = (f"{one:,.{self.digits}f}" for one in (self.value, self.bound))
        return f"{self.what:<64}{value:>12}   {sign} {bound:<10} {verdict}"


@dataclass
class Section:
    """What one part of the benchmark found."""

    title: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """For the JSON file, in seconds, bytes and calls per second."""
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, *cells: str) -> None:
        self.rows.append((name, *cells))

    def show(self) -> None:
        print(f"\n== {self.title}")
        table = [self.columns, *self.rows]
        widths = [max(len(row[index]) for row in table) for index in range(len(self.columns))]
        for row in table:
            name, *cells = row
            padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            print("  ".join([name.ljust(widths[0]), *padded]).rstrip())
        for note in self.notes:
            print(note)
        for goal in self.goals:
            print(f"goal: {goal}")


def medians(rounds: Rounds) -> dict[str, float]:
    """The median of each figure over the rounds."""
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
