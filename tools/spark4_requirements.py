"""What an environment with Spark 4 installs beside flinkray: its dependencies, but for RayDP.

RayDP pins pyspark 3.5, and flinkray depends on RayDP, so no extra of flinkray could ask for Spark
4: it would have to take a dependency away.  So flinkray is installed with ``--no-deps``, and then
what this prints, as pip reads requirements: those of the extra ``test`` are included.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from packaging.requirements import Requirement

REPLACED: Mapping[str, str | None] = {
    "raydp": None,
    "pyspark": "pyspark>=4.0,<=4.3.0",
    "pandas": "pandas>=2.2,<3",  # Spark 4.3 warns of later ones
}
"""Distribution -> what is installed instead; None: nothing."""


def requirements(required: Iterable[str], extra: str) -> list[str]:
    """Of a distribution's requirements, those that it has with an extra, in order.

    Args:
        required: as its metadata has them, with a marker where an extra asks for one.
    """
    return sorted(set(_with_extra(tuple(required), extra)))


def _with_extra(required: tuple[str, ...], extra: str) -> Iterator[str]:
    for text in required:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "flinkray":
            for other in requirement.extras:
                yield from _with_extra(required, other)
            continue
        instead = REPLACED.get(requirement.name, _without_marker(requirement))
        if instead is not None:
            yield instead


def _without_marker(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


if __name__ == "__main__":
    found = requirements(metadata.requires("flinkray") or (), "test")
    sys.stdout.write("\n".join(found) + "\n")
