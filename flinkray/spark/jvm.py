"""Starts, watches and reliably ends the JVMs of Spark, without spark-submit's scripts."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flinkray.core.errors import FlinkRayError

_POLL = 0.02
_TAIL = 4000


class SparkStartError(FlinkRayError):
    """Raised if Spark could not be started; the text says what was tried and where the log is."""

    retryable = True


class Jvm:
    """Starts a JVM as a child of this process, watches it and ends it.

    The JVM stays in the process group of the Ray worker, which no Ctrl-C of a terminal reaches and
    which Ray ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_file: Path,
        folder: Path | None = None,
    ) -> None:
        """Start the JVM; returns at once. The JVM's output goes to *log_file*.

        Args:
            folder: working directory of the JVM; None: that of this process.

        Raises:
            SparkStartError: the program could not be executed.
        """
        self.log_file = log_file
        self._ending = threading.Lock()
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=folder,
                )
            except OSError as error:
                raise SparkStartError(f"cannot run {command[0]}: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, in a thread of its own, when the JVM has ended."""

        def wait() -> None:
            self._process.wait()
            callback()

        threading.Thread(target=wait, name="flinkray-jvm-watch", daemon=True).start()

    def wait_briefly(self, timeout: float = 0.5) -> None:
        """Wait until the JVM has ended, at most *timeout* seconds. Called after a broken
        connection, whose cause may be the end of the JVM."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        """Send SIGKILL and return at once. Can be called again."""
        with self._ending:
            self._close_input()
            self._process.kill()

    def end(self, grace: float = 3.0) -> None:
        """Close the JVM's standard input, and kill the JVM if it has not ended after *grace*
        seconds. Returns when the JVM has ended. Can be called again."""
        with self._ending:
            self._close_input()
            try:
                self._process.wait(timeout=grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _close_input(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, in the form of :class:`subprocess.Popen`. None: the JVM runs."""
        return self._process.poll()

    def describe_end(self) -> str:
        """Return how the JVM ended, with the last lines of its log."""
        code = self._process.poll()
        if code is None:
            how = "it is still running"
        elif code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        else:
            how = f"exit status {code}"
        tail = self.log_file.read_bytes()[-_TAIL:].decode(errors="replace").strip()
        lines = "\n".join(tail.splitlines()[-8:])
        return f"{how}; log: {self.log_file}" + (f", which ends:\n{lines}" if lines else "")


class DriverJvm(Jvm):
    """Starts a JVM that runs Spark's Python gateway, for a driver. The JVM does not outlive this
    process: the gateway ends when its standard input closes. PySpark keeps the gateway in module
    variables, so there can be one per process, and the process must end with it."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log_file: Path
    ) -> None:
        """Start a driver's JVM. The arguments are those of :class:`Jvm`."""
        self._connection = Path(tempfile.mkdtemp(prefix="flinkray-jvm-")) / "connection"
        told = {**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection)}
        try:
            super().__init__(command, told, log_file)
        except SparkStartError:
            self._connection.parent.rmdir()
            raise

    def connect(self, timeout: float = 60.0) -> Any:
        """Wait for the gateway of the JVM, connect this process's PySpark to it, and return the
        gateway. Raises SparkStartError: the JVM ended, or did not answer within *timeout*
        seconds."""
        port, secret = self._read_connection(timeout)
        os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = secret
        from pyspark.java_gateway import launch_gateway

        return launch_gateway()  # type: ignore[no-untyped-call]

    def _read_connection(self, timeout: float) -> tuple[int, str]:
        deadline = time.monotonic() + timeout
        try:
            while not self._connection.exists():
                if not self.is_alive:
                    raise SparkStartError(f"the driver's JVM did not start: {self.describe_end()}")
                if time.monotonic() > deadline:
                    raise SparkStartError(
                        f"the driver's JVM did not answer for {timeout:g} s; log: {self.log_file}"
                    )
                time.sleep(_POLL)
            content = self._connection.read_bytes()
        finally:
            self._remove_connection()
        port, length = struct.unpack_from("!ii", content)
        return port, content[8 : 8 + length].decode()

    def kill(self) -> None:
        super().kill()
        self._remove_connection()

    def end(self, grace: float = 3.0) -> None:
        super().end(grace)
        self._remove_connection()

    def _remove_connection(self) -> None:
        """Remove the folder with the connection file, which contains the gateway's secret."""
        shutil.rmtree(self._connection.parent, ignore_errors=True)


class _GatewayNoise(logging.Filter):
    """Log filter that drops the tracebacks that py4j logs to the root logger when a JVM ends."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.pathname.replace("\\", "/").rpartition("/")[0].endswith("/py4j")


def quiet_gateway_logging() -> None:
    """Hide py4j's tracebacks about a JVM's end from the user: the stage reports the end."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    if not any(isinstance(known, _GatewayNoise) for known in root.filters):
        root.addFilter(_GatewayNoise())
