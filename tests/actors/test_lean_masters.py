"""Processes that handle no columns do not load what does."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "master", ["dispatcher", "job_master", "resource_manager", "slot_pool", "task_executor"]
)
def test_a_master_loads_neither_numpy_nor_arrow(master: str) -> None:
    """The two modules are 40 MB, and a quarter of the time in which a JobMaster starts."""
    code = (
        f"import sys, flinkray.actors.{master}.endpoint; "
        "print({'numpy', 'pyarrow', 'pandas'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
