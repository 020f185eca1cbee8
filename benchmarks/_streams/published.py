"""Figures of other projects with two cores or slots of the kind of machine this is built on, in
records a second: medians of several runs of Flink 2.3.0 and Bytewax 0.21.1 in November 2026."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """One kind of work; None where there is no figure."""

    flink_java: float
    flink_sql: float | None
    pyflink: float
    """The best of process and thread mode, with bundles of 100,000."""
    bytewax: str


PUBLISHED = {
    "map": Published(30.1e6, None, 169e3, "10 to 15 M, batched"),
    "keyed sum": Published(7.27e6, 1.6e6, 38e3, "0.5 M"),
    "tumbling window": Published(5.64e6, 1.9e6, 15e3, "0.06 to 0.09 M"),
}

BYTEWAX_KEYED = 0.5e6
"""Where it is not measured in the same run."""

NEXMARK_SQL = {
    "q0": 832_000,
    "q1": 909_000,
    "q2": 944_000,
    "q5": 522_000,
    "q7": 208_000,
    "q8": 821_000,
}
"""Events a second through Flink's SQL on two cores."""
