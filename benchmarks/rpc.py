"""Calls between two processes on one node: flinkray beside bare Ray and xoscar, in one run.

Medians of several rounds; the contenders take turns within a round, so that what else the machine
does hits all of them.  Compare ratios: a figure of one run says little about another run's.
xoscar runs in an environment of its own, which is made on first use; `--no-peers` does without.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Ray's workers import the endpoints and messages by the same names as this process does.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
)
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from _peers import PeersUnavailableError  # noqa: E402
from _results import Results, Section, parse  # noqa: E402
from _rpc import calls, codec_times, local, memory, payload, senders  # noqa: E402
from _rpc.cluster import Cluster  # noqa: E402


async def _codec(rounds: int) -> Section:
    return codec_times.run(rounds)


WITHOUT_RAY: dict[str, Callable[[int], Awaitable[Section]]] = {"codec": _codec, "local": local.run}
WITH_RAY: dict[str, Callable[[Cluster], Awaitable[Section]]] = {
    "calls": calls.run,
    "payload": payload.run,
    "senders": senders.run,
    "memory": memory.run,
}
SECTIONS = (*WITHOUT_RAY, *WITH_RAY)


async def measure(wanted: list[str], rounds: int, results: Results, *, peers: bool) -> None:
    """Show each wanted section as soon as it is there."""
    for name, run in WITHOUT_RAY.items():
        if name in wanted:
            results.show(await run(rounds))
    names = [name for name in WITH_RAY if name in wanted]
    if names:
        cluster = await Cluster.start(rounds, peers=peers)
        try:
            for name in names:
                results.show(await WITH_RAY[name](cluster))
        finally:
            await cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (5)")
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="this section; may be repeated"
    )
    parser.add_argument("--no-peers", action="store_true", help="do without xoscar")
    arguments = parse(parser, "only")
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")

    results = Results(arguments, "flinkray", "ray", "msgpack")
    wanted = arguments.only or list(SECTIONS)
    try:
        peers = not arguments.no_peers
        asyncio.run(measure(wanted, arguments.rounds, results, peers=peers))
    except PeersUnavailableError as error:
        sys.exit(str(error))
    results.end()


if __name__ == "__main__":
    main()
