"""SIGTERM of a plain program, which Ray would answer with the stacks of a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

import flinkray
from flinkray.client.cli import execute
from tests.client.test_termination import FOREVER, lines_until

WITH_CLUSTER = """
import sys
import flinkray

client = flinkray.connect(sys.argv[1], cluster_id="plainly")
{before}
print("connected", file=sys.stderr, flush=True)
"""

ON_CLUSTER = FOREVER.replace(
    "get_execution_environment()", "get_execution_environment(cluster=client)"
).replace(
    'env.execute("forever")',
    """
print("running", file=sys.stderr, flush=True)
env.execute("forever")
""",
)


def started(code: str, folder: Path) -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(code)
    address = ray.get_runtime_context().gcs_address
    return subprocess.Popen(
        [sys.executable, str(program), address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.ray
def test_sigterm_ends_a_plain_python_program_and_cancels_its_job_as_ctrl_c_does(
    ray_cluster: None, tmp_path: Path
) -> None:
    """While its job runs, while it does something else, and with a handler of its own."""
    named = ["--cluster-id", "plainly"]
    assert execute(["cluster", "up", *named, "-D", f"storage.dir={tmp_path}"]) == 0
    try:
        with started(WITH_CLUSTER.format(before="") + ON_CLUSTER, tmp_path) as process:
            lines_until(process.stderr, "running")
            with flinkray.connect("auto", cluster_id="plainly") as client:
                while not (jobs := client.list_jobs()) or jobs[0].status.name != "RUNNING":
                    assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143
            assert process.stderr is not None
            told = process.stderr.read()
        assert told.splitlines()[-1].endswith("ended: CANCELED")
        assert "SIGTERM received" not in told
        assert "Traceback" not in told
        waiting = "import time\ntime.sleep(600)"
        with started(WITH_CLUSTER.format(before="") + waiting, tmp_path) as process:
            lines_until(process.stderr, "connected")
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143
            assert process.stderr is not None
            assert process.stderr.read() == "terminated\n"
        own = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
        with started(WITH_CLUSTER.format(before=own) + waiting, tmp_path) as process:
            lines_until(process.stderr, "connected")
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 7
    finally:
        assert execute(["cluster", "down", *named]) == 0
