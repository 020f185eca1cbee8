"""Threads of user code, and where they are interrupted."""

from __future__ import annotations

import asyncio
import importlib
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkray.actors.task_process.code_thread import CodeThread

log = logging.getLogger("tests of code threads")


class _Slow(logging.Handler):
    """Takes its time to write, and holds its lock meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing = threading.Event()
        self.may_end = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.is_writing.set()
        assert self.may_end.wait(300)


@pytest.fixture
def handler() -> Iterator[_Slow]:
    handler = _Slow()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


async def test_interrupt_ends_a_function_that_runs_for_ever(handler: _Slow) -> None:
    has_begun = threading.Event()

    def spin() -> None:
        has_begun.set()
        while True:
            pass

    thread = CodeThread(spin, "spins")
    await asyncio.to_thread(has_begun.wait, 30)
    thread.interrupt()
    failure = await asyncio.wait_for(thread.returned, 30)
    assert failure is not None


async def test_user_function_is_interrupted_only_after_it_has_finished_writing_a_log_line(
    handler: _Slow,
) -> None:
    """Otherwise the lock of the log handler would stay locked, and block every thread that logs,
    the event loop too."""
    thread = CodeThread(lambda: log.warning("written slowly"), "logs")
    await asyncio.to_thread(handler.is_writing.wait, 30)
    thread.interrupt()
    handler.may_end.set()
    assert await asyncio.wait_for(thread.returned, 30) is None


async def test_import_of_a_module_is_interrupted_only_after_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the lock of the module could stay locked, and block every thread that imports the
    module, for instance the other tasks of the process."""
    (tmp_path / "imported_slowly.py").write_text("import threading\nthreading.import_here()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    is_importing, may_end = threading.Event(), threading.Event()

    def import_here() -> None:
        is_importing.set()
        assert may_end.wait(300)

    monkeypatch.setattr(threading, "import_here", import_here, raising=False)
    thread = CodeThread(lambda: importlib.import_module("imported_slowly"), "imports")
    await asyncio.to_thread(is_importing.wait, 30)
    thread.interrupt()
    may_end.set()
    assert await asyncio.wait_for(thread.returned, 30) is None
    assert "imported_slowly" in sys.modules


TRACED = """
import asyncio, sys, threading
from flinkray.actors.task_process.code_thread import CodeThread

async def main():
    await CodeThread(lambda: None, "returns").returned
    runs = threading.Event()

    def loops():
        runs.set()
        while True:
            pass

    thread = CodeThread(loops, "loops")
    await asyncio.to_thread(runs.wait)
    thread.interrupt()
    await thread.returned
    sys.settrace(lambda *_: None)
    (lambda: None)()

asyncio.run(main())
"""


def test_python_code_that_is_traced_after_another_thread_was_interrupted_runs() -> None:
    """CPython 3.11 looped for ever in the first traced call (of a debugger or coverage) after any
    thread of the process had been told to raise no exception."""
    subprocess.run([sys.executable, "-c", TRACED], check=True, timeout=300)
