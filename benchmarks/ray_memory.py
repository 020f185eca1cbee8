"""What Ray itself keeps of each actor that has ended, in the processes that created and called it.

    python benchmarks/ray_memory.py [--actors N]

No flinkray is involved: this is the floor below which a master that starts processes cannot be.
Printed is how much the memory that is unique to a process (USS) grows by, for each actor that it
created, called, or called and killed; the actors are detached and have ended by then.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import psutil  # noqa: E402
import ray  # noqa: E402
from _results import Figure, Results, parse  # noqa: E402

NAMESPACE = "ray-memory"
AT_ONCE = 20
"""Actors that live at the same time."""


class Child:
    async def ready(self) -> bool:
        return True


class Observed:
    """Does one thing to actors, and knows its own memory."""

    def memory(self) -> int:
        return int(psutil.Process(os.getpid()).memory_full_info().uss)

    def create(self, names: list[str]) -> None:
        actor_class: Any = ray.remote(num_cpus=0)(Child)
        for name in names:
            actor_class.options(name=name, namespace=NAMESPACE, lifetime="detached").remote()

    def call(self, names: list[str], kill: bool) -> None:
        for name in names:
            actor = ray.get_actor(name, NAMESPACE)
            ray.get(actor.ready.remote())
            if kill:
                ray.kill(actor)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--actors", type=int, default=100, help="to measure with (default: 100)")
    options = parse(parser)
    results = Results(options, "ray")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    actor_class: Any = ray.remote(num_cpus=0)(Observed)
    creates, calls, kills = (actor_class.remote() for _ in range(3))
    observed = {"creates": creates, "calls": calls, "calls and kills": kills}

    def lives(generation: int) -> None:
        names = [f"{generation}-{number}" for number in range(AT_ONCE)]
        ray.get(creates.create.remote(names))
        ray.get(calls.call.remote(names, False))
        ray.get(kills.call.remote(names, True))

    lives(0)
    before = {what: ray.get(actor.memory.remote()) for what, actor in observed.items()}
    generations = max(1, options.actors // AT_ONCE)
    for generation in range(1, generations + 1):
        lives(generation)
    for what, actor in observed.items():
        grown = ray.get(actor.memory.remote()) - before[what]
        each = grown / (generations * AT_ONCE) / 1e3
        title = f"memory that Ray keeps of each actor in a process that {what} actors"
        results.add(Figure(what, title, each, unit="kB"))
    ray.shutdown()
    results.end()


if __name__ == "__main__":
    main()
