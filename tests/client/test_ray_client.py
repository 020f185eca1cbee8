"""``flinkray.connect("ray://…")``: from outside of the cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ray_client_server import ENVIRONMENT, ray_with_clients

pytestmark = [pytest.mark.ray, pytest.mark.own_ray]


FLINKRAY = str(Path(sys.executable).with_name("flinkray"))


def test_auto_joins_a_ray_with_a_token_and_errors_at_other_addresses_say_how() -> None:
    environment = {
        k: v for k, v in ENVIRONMENT.items() if k not in ("RAY_AUTH_MODE", "RAY_ADDRESS")
    }
    with ray_with_clients() as served:

        def errors_of(address: str) -> str:
            done = subprocess.run(
                [FLINKRAY, "list", "--address", address],
                env={**environment, "RAY_TMPDIR": served.folder},
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            assert done.returncode == 3
            return done.stderr

        assert "no flinkray cluster 'default' runs in this Ray" in errors_of("auto")
        assert "RAY_AUTH_MODE=token in the environment" in errors_of(served.head)


def run(*command: str) -> str:
    """What it says."""
    done = subprocess.run(
        command,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ray_client_outside_the_cluster_submits_a_job_and_waits_for_its_end(
    tmp_path: Path,
) -> None:
    with ray_with_clients() as served:
        storage = f"storage.dir={tmp_path}"  # no jobs of clusters before
        run(FLINKRAY, "cluster", "up", "--address", served.head, "-D", storage)
        try:
            assert run(
                sys.executable, "-m", "tests.client.ray_client_program", served.clients
            ).endswith("done\n")
        finally:
            run(FLINKRAY, "cluster", "down", "--address", served.head)
