"""An empty machine with a shell, on this one: processes, network, /tmp and home of its own.

So ``ray start --head`` has Ray's own ports there, and ``ray stop`` ends nothing else.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import TracebackType

from tests.own_namespaces import OwnNamespaces

ROOT = Path(__file__).parents[2]

_SHELL = """
cd "$place/work"
exec bash
"""
_END = "== status "


class NewcomersMachine:
    """Running from ``with`` until its end, which ends everything inside.

    Its shell is in the empty folder ``work``, beside which ``flinkray`` is a copy of the sources.

    Args:
        place: an empty folder for its files.
    """

    def __init__(self, place: Path) -> None:
        self.work = place / "work"
        self._place = place
        self._namespaces: OwnNamespaces | None = None
        self._shell: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NewcomersMachine:
        for folder in ("work", "home", "bin", "tmp"):
            (self._place / folder).mkdir()
        left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT, self._place / "flinkray", symlinks=True, ignore=left_out)
        base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
        self._script("bin/python3", f'#!/bin/sh\nexec {base} "$@"\n')
        environment = {
            "HOME": str(self._place / "home"),
            "USER": "root",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PATH": f"{self._place}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "RAY_worker_niceness": "0",  # other tests run beside
        }
        # `pip install` brings flinkray alone: what it needs is in the tests' environment
        environment |= {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
        kept = [Path(sys.prefix), Path(sys.base_prefix)]
        self._namespaces = OwnNamespaces(self._place, kept, _SHELL, environment)
        self._shell = self._namespaces.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._namespaces is not None
        self._namespaces.end()

    def type_in(self, command: str) -> str:
        """What a line prints, which must succeed within four minutes."""
        printed, status = self._typed(command, 240)
        assert status == 0, f"{command} ends with {status}:\n{printed}"
        if command.startswith("python3 -m venv"):
            self._share(self.work / command.split()[-1])
        return printed

    def processes(self) -> list[str]:
        """Command lines of what runs inside, but for the shell and this look."""
        look = "ps -eo args --no-headers"
        listed, _ = self._typed(look, 60)
        return [line for line in listed.splitlines() if line not in ("bash", look)]

    def _typed(self, command: str, limit: float) -> tuple[str, int]:
        assert self._shell is not None
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f'{command}\necho "{_END}$?"\n'.encode())
        self._shell.stdin.flush()
        deadline, printed = time.monotonic() + limit, b""
        while _END.encode() not in printed or not printed.endswith(b"\n"):
            remaining = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._shell.stdout], [], [], remaining)
            assert ready, f"{command} has not ended after {limit} s:\n{printed.decode()}"
            piece = os.read(self._shell.stdout.fileno(), 1 << 16)
            assert piece, f"the shell has ended with {command}:\n{printed.decode()}"
            printed += piece
        text, _, status = printed.decode().rpartition(_END)
        return text, int(status)

    def _share(self, environment: Path) -> None:
        """Let a new environment find what `pip install` would bring, and `ray`'s command."""
        python = environment / "bin" / "python"
        # an old one of ensurepip comes before the one that can build wheels of flinkray
        self._typed(f"{python} -m pip uninstall --quiet --yes setuptools", 60)
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
        ray = f"#!{python}\nfrom ray.scripts.scripts import main\n\nmain()\n"
        self._script(str(environment / "bin" / "ray"), ray)

    def _script(self, name: str, text: str) -> None:
        script = self._place / name
        script.write_text(text, "utf-8")
        script.chmod(0o755)
