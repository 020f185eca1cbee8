"""A process whose event loop has ended is of no use to anybody."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, builtins, threading, time
from flinkray.rpc.ray.process import end_with_the_loop

async def live():
    end_with_the_loop()
    {harm}
    await asyncio.sleep(3600)

def run():
    loop = asyncio.new_event_loop()
    loop.create_task(live())
    loop.run_forever()

threading.Thread(target=run, daemon=True).start()
time.sleep(3600)
"""


@pytest.mark.parametrize(
    "harm",
    [
        "asyncio.get_running_loop().stop()",
        "asyncio.get_running_loop().call_soon(exit)",
        "asyncio.get_running_loop().stop(); time.sleep = threading.Thread.join = None",
    ],
)
def test_process_exits_when_its_event_loop_ends(harm: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(harm=harm)],
        timeout=120,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 1
