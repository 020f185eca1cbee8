"""A waiting task process imports what the tasks of most jobs would have to."""

from __future__ import annotations

import subprocess
import sys

from flinkray.actors.task_process.endpoint import USER_API

TASK_OF_COLUMNS = """
import sys
import flinkray.actors.task_process.endpoint
from flinkray.actors.task_process.endpoint import import_ahead

lacking = {*%r} - sys.modules.keys()
import_ahead()
there = set(sys.modules)

import numpy as np
import pyarrow as pa
import flinkray.datastream

pa.array([1]).to_numpy(), pa.array(np.arange(3)), pa.record_batch({"key": ["a"]})
print(sorted(lacking))
print(sorted(name for name in sys.modules.keys() - there if "." not in name))
"""


def test_task_with_columns_finds_all_its_modules_imported_before_it_starts() -> None:
    ahead = (USER_API, "pandas", "pyarrow.compute")
    ran = subprocess.run(
        [sys.executable, "-c", TASK_OF_COLUMNS % (ahead,)],
        check=True,
        capture_output=True,
        text=True,
    )

    lacking, imported_by_the_task = ran.stdout.splitlines()

    assert lacking == str(sorted(ahead))  # the process itself needs none
    assert imported_by_the_task == "[]"
