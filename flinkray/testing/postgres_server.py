"""Runs a real PostgreSQL server on its own Unix socket, for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from flinkray.core.errors import FlinkRayError
from flinkray.testing.waiting import wait_until

LONGEST_START = 60.0
"""The longest time that the server may take to start, in seconds."""


def binaries() -> Path | None:
    """Return the folder of PostgreSQL's programs: Debian's newest version, otherwise that on the
    PATH. None: PostgreSQL is not installed."""
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3])
    )
    if versions:
        return versions[-1].parent
    found = shutil.which("postgres")
    return None if found is None else Path(found).resolve().parent


def why_not() -> str:
    """Return a text that says why a PostgreSQL server cannot run on this machine. "": it can
    run."""
    if binaries() is None:
        return "PostgreSQL's server is not installed (Debian's package postgresql)"
    if os.geteuid() == 0 and (shutil.which("setpriv") is None or _user() is None):
        return "PostgreSQL does not run as root, and there is no setpriv, or no other user"
    return ""


def _user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class PostgresServerError(FlinkRayError):
    """Raised if the server does not start; the text contains the server's output."""


class PostgresServer:
    """Runs a PostgreSQL server for tests. The data is not durable against failures of the machine.

    Raises:
        PostgresServerError: the data directory cannot be created.
    """

    def __init__(self) -> None:
        self.directory = Path(
            tempfile.mkdtemp(prefix="fr-pg-", dir="/tmp")
        )  # short, for socket paths
        self._prefix: list[str] = []
        if os.geteuid() == 0:
            user = _user()
            assert user is not None
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            self._prefix = [
                "setpriv",
                f"--reuid={user.pw_uid}",
                f"--regid={user.pw_gid}",
                "--clear-groups",
                "--pdeathsig=KILL",
            ]
        self._data = str(self.directory / "data")
        self._process: subprocess.Popen[bytes] | None = None
        with ExitStack() as failing:
            failing.callback(shutil.rmtree, self.directory)
            self._make_data()
            failing.pop_all()

    def _make_data(self) -> None:
        initdb = [*self._program("initdb"), "--no-sync", "--auth=trust", "--username=flinkray"]
        try:
            subprocess.run(
                [*initdb, "--encoding=UTF8", "--locale=C.UTF-8", "-D", self._data],
                check=True,
                capture_output=True,
                text=True,
                cwd=self.directory,
            )
        except subprocess.CalledProcessError as error:
            raise PostgresServerError(f"initdb has failed: {error.stderr.strip()}") from error

    def _program(self, name: str) -> list[str]:
        folder = binaries()
        assert folder is not None
        return [*self._prefix, str(folder / name)]

    @property
    def conninfo(self) -> str:
        return f"host={self.directory} user=flinkray dbname=postgres"

    def start(self) -> None:
        """Start the server, and wait until it can be used. Raises PostgresServerError: it does not
        answer in time."""
        options = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "log_min_messages=panic"]
        with (self.directory / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [*self._program("postgres"), "-D", self._data, "-k", str(self.directory), *options],
                stdout=output,
                stderr=output,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C goes to the user, who then closes it
            )
        try:
            wait_until(self._is_there, LONGEST_START, "PostgreSQL")
        except AssertionError as error:
            said = (self.directory / "log").read_text(errors="replace")
            raise PostgresServerError(f"it does not answer: {said.strip()}") from error

    def _is_there(self) -> bool:
        try:
            psycopg.connect(self.conninfo).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server. *how*: SIGQUIT stops it at once, as a failure of the machine does;
        SIGINT in an orderly way."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)

    def close(self) -> None:
        """Stop the server, and delete its directory."""
        self.stop(signal.SIGINT)
        shutil.rmtree(self.directory)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Context manager: run a server in the block. Raises PostgresServerError: it does not start."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
