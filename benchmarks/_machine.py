"""What a reader must know of the machine to judge a benchmark's figures."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path


def facts(*packages: str) -> dict[str, str]:
    """Cores, memory, kernel, Python, versions of *packages* and the load before the run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{os.cpu_count()} x {_processor()}",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
        "load before (1, 5, 15 min)": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
