"""How fast a death is known: killed processes, killed nodes, nodes that hang.

Processes are killed by SIGKILL while a call is pending and a watch is set, with bare Ray beside in
the same run.  ``--nodes`` adds nodes: two raylets on this machine, of which one is killed, or
stopped with all its processes (which breaks no socket), with Ray's health check as it comes and
tightened.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Ray's workers import the endpoints by the same names as this process does.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
)
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import ray  # noqa: E402
from _death import kills, nodes  # noqa: E402
from _results import Results, parse  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=15, help="of each kind of process (15)")
    parser.add_argument("--nodes", action="store_true", help="nodes too: some minutes")
    parser.add_argument("--only-nodes", action="store_true", help="nodes, and no processes")
    arguments = parse(parser, "nodes", "only_nodes")
    if arguments.kills < 1:
        parser.error("--kills must be at least 1")

    results = Results(arguments, "flinkray", "ray")
    if not arguments.only_nodes:
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        section = asyncio.run(kills.run(arguments.kills))
        ray.shutdown()
        results.show(section)
    if arguments.nodes or arguments.only_nodes:
        results.show(nodes.run())
    results.end()


if __name__ == "__main__":
    main()
