"""What other projects are measured in: environments of their own, made on first use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent / "peers"
ROOT = PEERS.parent.parent


class PeersUnavailableError(Exception):
    """The peers' environment could not be made; the text says why and how to do without."""


def interpreter(name: str = "") -> Path:
    """The Python of a peers' environment, which is made when it is missing or out of date.

    Args:
        name: of the environment: ``peers/requirements-<name>.txt`` says what is in it.

    Raises:
        PeersUnavailableError: it could not be made.
    """
    which = f"-{name}" if name else ""
    wanted = PEERS / f"requirements{which}.txt"
    environment = ROOT / f".venv-peers{which}"
    requirements = wanted.read_text()
    done = environment / "installed.txt"
    python = environment / "bin" / "python"
    if python.exists() and done.exists() and done.read_text() == requirements:
        return python
    print(f"making {environment} with what is measured beside flinkray (--no-peers: without)")
    shutil.rmtree(environment, ignore_errors=True)
    uv = shutil.which("uv")
    if uv:
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(environment)]
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        make = [sys.executable, "-m", "venv", str(environment)]
        install = [str(python), "-m", "pip", "install", "--quiet"]
        install.append("--disable-pip-version-check")
    for command in (make, [*install, "-r", str(wanted)]):
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            raise PeersUnavailableError(
                f"the peers' environment could not be made: {' '.join(command)} failed:\n"
                f"{run.stderr.strip()}\nRun with --no-peers to measure flinkray without them."
            )
    done.write_text(requirements)
    return python


def answers(command: list[str]) -> list[dict[str, Any]]:
    """Lines of JSON that a peer's script prints.

    Raises:
        PeersUnavailableError: the script failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    if done.returncode != 0:
        raise PeersUnavailableError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
