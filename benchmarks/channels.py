"""Batches from one process to another on one node: flinkray's channels beside bare blocking
sockets, Arrow Flight and calls of a Ray actor, in one run.

Medians of several rounds; the contenders take turns within a round, so that what else the machine
does hits all of them.  Compare ratios: a figure of one run says little about another run's.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

HERE = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
)
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from _channels import blocks  # noqa: E402
from _channels.contender import Contender  # noqa: E402
from _channels.over_channels import OverChannels  # noqa: E402
from _channels.over_flight import OverFlight  # noqa: E402
from _channels.over_ray import OverRay  # noqa: E402
from _channels.over_sockets import OverSockets  # noqa: E402
from _results import Figure, Results, Section, microseconds, parse  # noqa: E402

UNIX, TCP = "channels, unix socket", "channels, TCP"
SIZES = {"4 KB": 4_096, "64 KB": 65_536, "1 MB": 2**20, "8 MB": 2**23}
BYTES_PER_MEASUREMENT = 256 * 2**20
MOST_BATCHES = 8_000
ROUND_TRIPS = 1_000

Figures = dict[str, dict[str, dict[str, float]]]
"""Size -> contender -> figure."""


def batch_of(size: int) -> pa.RecordBatch:
    """Four columns of numbers."""
    rows = size // 32
    return pa.record_batch(
        {name: np.arange(first, first + rows) for first, name in enumerate("abcd")}
    )


def measure(contenders: list[Contender], rounds: int, share: float) -> Figures:
    """*share*: of the usual number of batches."""
    taken: dict[tuple[str, str, str], list[float]] = {}
    for number in range(rounds + 1):  # the first warms up
        for size, length in SIZES.items():
            batch = batch_of(length)
            count = max(4, int(share * min(MOST_BATCHES, BYTES_PER_MEASUREMENT // length)))
            for contender in contenders:
                is_ray = isinstance(contender, OverRay)
                few = count // 8 if is_ray else count
                seconds = contender.throughput(batch, max(4, few))
                trips = max(20, int(share * ROUND_TRIPS) // (1 if length < 2**20 else 10))
                p50, p99 = contender.round_trips(batch, trips // 4 if is_ray else trips)
                if number:
                    for what, value in (("seconds", seconds), ("p50", p50), ("p99", p99)):
                        taken.setdefault((size, contender.name, what), []).append(value)
    found: Figures = {}
    for (size, name, what), values in taken.items():
        found.setdefault(size, {}).setdefault(name, {})[what] = median(values)
    return found


def section(size: str, figures: dict[str, dict[str, float]]) -> Section:
    shown = Section(
        f"batches of {size}", ("", "batches/s", "MB/s", "round trip p50, us", "p99, us")
    )
    for name, one in figures.items():
        shown.add(
            name,
            f"{1 / one['seconds']:,.0f}",
            f"{SIZES[size] / one['seconds'] / 1e6:,.0f}",
            microseconds(one["p50"]),
            microseconds(one["p99"]),
        )
    shown.raw = figures
    return shown


def goals(found: Figures) -> Iterator[Figure]:
    """Ratios within this run."""
    flight, ray = OverFlight.name, OverRay.name
    for size, other, bound in (
        ("64 KB", flight, 1.0),
        ("1 MB", flight, 1.0),
        ("8 MB", flight, 1.0),
        ("4 KB", ray, 10.0),
    ):
        if other in found[size]:
            mine, theirs = (1 / found[size][name]["seconds"] for name in (UNIX, other))
            what = f"channels between processes, batches of {size}: over {other}"
            shown, peer = f"{mine:,.0f} batches/s, {{}}", f"{other}: {theirs:,.0f} batches/s"
            ratio = mine / theirs
            yield Figure(size, what, ratio, bound, "x", at_least=True, shown=shown, peer=peer)
    small = {name: one["p50"] for name, one in found["4 KB"].items()}
    what = f"channels between processes, round trip of 4 KB, p50: over {flight}"
    peer = f"{flight}: {microseconds(small[flight])} us; "
    peer += f"{OverSockets.name}: {microseconds(small[OverSockets.name])} us"
    shown = f"{microseconds(small[UNIX])} us, {{}}"
    ratio = small[UNIX] / small[flight]
    yield Figure("round trip", what, ratio, 0.6, "x", shown=shown, peer=peer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (5)")
    parser.add_argument("--share", type=float, default=1.0, help="of the batches of a full run (1)")
    parser.add_argument("--no-ray", action="store_true", help="do without Ray")
    arguments = parse(parser)
    results = Results(arguments, "flinkray", "ray", "pyarrow")
    makers: list[Callable[[], Contender]] = [
        lambda: OverChannels(UNIX, "one"),
        lambda: OverChannels(TCP, "two"),
        OverSockets,
        lambda: OverFlight(folder),
    ]
    if not arguments.no_ray:
        makers.append(OverRay)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        contenders = []
        for make in makers:
            contender = make()
            stack.callback(contender.close)
            contenders.append(contender)
        found = measure(contenders, arguments.rounds, arguments.share)
        channels = contenders[0]
        assert isinstance(channels, OverChannels)
        python_values = blocks.measure(channels, arguments.rounds)
    for size, figures in found.items():
        results.show(section(size, figures))
    results.show(python_values)
    results.add(*goals(found))
    results.end()


if __name__ == "__main__":
    main()
