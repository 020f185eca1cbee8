"""Clients that are not ours, in an environment of their own, and a job for them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rest.conftest import ask, cluster, counting, folder
from tests.rest.http import Asker
from tests.rest.test_operations import job

__all__ = ["ask", "cluster", "counting", "folder", "job"]

PLACE = "FLINKRAY_REST_CLIENTS"
"""The variable that says where that environment is."""
TIMEOUT = 240.0


@dataclass(frozen=True)
class Clients:
    """Programs of the environment."""

    place: Path

    @property
    def flink_libraries(self) -> Path:
        (found,) = self.place.glob("lib/python*/site-packages/pyflink/lib")
        return found

    def run(self, folder: Path, *command: str, **variables: str) -> tuple[int, str]:
        """Exit code, and what it has written."""
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
        return done.returncode, done.stdout


@pytest.fixture(scope="session")
def clients() -> Clients:
    place = os.environ.get(PLACE)
    if place is None:
        pytest.skip("make test-rest-clients brings the clients that this needs")
    return Clients(Path(place).resolve())


@pytest.fixture
def vertex(job: str, ask: Asker) -> str:
    """The first of the job's."""
    found: str = ask.get(f"/jobs/{job}")["vertices"][0]["id"]
    return found


@pytest.fixture
def executor(job: str, ask: Asker) -> str:
    """The name of a TaskExecutor."""
    found: str = ask.get("/taskmanagers")["taskmanagers"][0]["id"]
    return found
