"""Drivers that have joined Ray by its client, from outside the cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.ray_client_server import ENVIRONMENT, ray_with_clients

pytestmark = [pytest.mark.ray, pytest.mark.own_ray, pytest.mark.slow]


def test_ray_client_outside_the_cluster_can_do_what_a_driver_inside_can() -> None:
    with ray_with_clients() as served:
        done = subprocess.run(
            [sys.executable, "-m", "tests.rpc.ray_client_driver", served.clients],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
    assert "InvalidStateError" not in done.stderr
