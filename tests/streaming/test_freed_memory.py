"""Arrays of one batch after the other lie in the same memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

BATCHES = """
import resource
import numpy as np
from flinkray.streaming.task.task import keep_freed_memory
{prepare}
def handle():
    return [np.ones(65_000) for _ in range(6)]
for _ in range(5):
    handle()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    handle()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 50 * 6 * 65_000 * 8 // 4096


def new_pages(prepare: str) -> int:
    script = BATCHES.format(prepare=prepare)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return int(done.stdout)


A_JOB = """
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink
env = StreamExecutionEnvironment.get_execution_environment()
env.from_sequence(1, 2).sink_to(DiscardingSink())
env.execute()
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries do it their way"
)


def test_arrays_of_later_batches_reuse_the_memory_freed_by_the_first() -> None:
    assert new_pages("keep_freed_memory()") < PAGES / 20


def test_process_keeps_the_memory_that_its_tasks_free() -> None:
    assert new_pages(A_JOB) < PAGES / 20
