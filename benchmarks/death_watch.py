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
import json
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
from _machine import facts  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=15, help="of each kind of process (15)")
    parser.add_argument("--nodes", action="store_true", help="nodes too: some minutes")
    parser.add_argument("--only-nodes", action="store_true", help="nodes, and no processes")
    parser.add_argument("--json", type=Path, help="also write machine, goals and figures here")
    arguments = parser.parse_args()
    if arguments.kills < 1:
        parser.error("--kills must be at least 1")

    machine = facts("flinkray", "ray")
    for name, value in machine.items():
        print(f"{name:<28}{value}")
    sections = []
    if not arguments.only_nodes:
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        sections.append(asyncio.run(kills.run(arguments.kills)))
        ray.shutdown()
        sections[-1].show()
    if arguments.nodes or arguments.only_nodes:
        sections.append(nodes.run())
        sections[-1].show()
    goals = [goal for section in sections for goal in section.goals]
    if arguments.json:
        report = {
            "machine": machine,
            "goals": {
                goal.what: {"value": goal.value, "bound": goal.bound, "met": goal.is_met}
                for goal in goals
            },
            "sections": {section.title: section.figures for section in sections},
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(0 if all(goal.is_met for goal in goals) else 1)


if __name__ == "__main__":
    main()
