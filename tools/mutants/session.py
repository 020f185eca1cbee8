"""Run mutants inside one pytest session, which has loaded everything once: each in a fork of it.

In a fork the code of one function is exchanged, and the tests that come by the change are run,
those first that noticed other mutants of the function, then the quick ones, until one fails.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib
import json
import os
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tools.mutants.live_code import LiveFunctions
from tools.mutants.operators import Mutant, apply
from tools.mutants.reached import Statements

EXAMPLES = 40
"""At most so many runs of a state machine: a mutant that only a later one would find survives."""
SLOWEST_TEST = 4.0
"""Seconds of CPU; slower tests are left out."""
SECONDS_FOR_A_MUTANT = 20.0
"""Of CPU, by what the tests took without it; what is over is not run."""
MEMORY = 8 << 30
"""Bytes that a mutant which fills a list for ever may take."""

_NOTICED = 1
_BROKEN = 3


@dataclass(frozen=True)
class TestRun:
    """What a test did without any mutant."""

    cpu: float
    wall: float
    reached: list[int]


@dataclass(frozen=True)
class Verdict:
    killed: bool
    by: str
    """The test that failed, or why else it is as it is."""
    tests: str
    """Changes with the tests that were run: a survivor of earlier tests is tried again."""


class MutantSession:
    """A pytest plugin that runs mutants instead of the session's tests."""

    def __init__(
        self,
        sources: dict[str, str],
        chosen: Callable[[], Iterable[Mutant]],
        known: Callable[[Mutant, str], bool],
        tell: Callable[[Mutant, Verdict], None],
        cache: Path,
    ) -> None:
        """*sources* by path; *known* says whether the verdict by such tests is there already."""
        self._sources = sources
        self._chosen = chosen
        self._known = known
        self._tell = tell
        self._cache = cache
        self._failed: list[str] = []
        self._killers: dict[tuple[str, str], Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(f"{report.nodeid} ({report.when})\n{report.longreprtext}")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        from hypothesis import settings  # not before pytest, whose plugin it has

        for item in items:
            case: Any = getattr(item, "cls", None)
            known = getattr(case, "settings", None)
            if isinstance(known, settings) and known.max_examples > EXAMPLES:
                case.settings = settings(known, max_examples=EXAMPLES)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        reporter: Any = session.config.pluginmanager.unregister(name="terminalreporter")
        try:
            self._run(session)
        finally:
            session.config.pluginmanager.register(reporter, "terminalreporter")
        return True

    def _run(self, session: pytest.Session) -> None:
        files = {module: _loaded(module) for module in self._sources}
        live = LiveFunctions(set(files.values()))
        statements = Statements(self._sources)
        runs = self._tests_alone(session, live, statements, files)
        items = {item.nodeid: item for item in session.items}
        by_statement: dict[int, list[str]] = {}
        for nodeid, run in runs.items():
            if run.cpu <= SLOWEST_TEST:
                for number in run.reached:
                    by_statement.setdefault(number, []).append(nodeid)
        gc.collect()
        gc.freeze()  # what is there now is shared by all forks: none is to look through it
        digests = {str(item.path): _digest(item.path.read_text()) for item in session.items}
        for mutant in self._chosen():
            nodeids = by_statement.get(statements.around(mutant.module, mutant.path), [])
            chosen = self._in_order(mutant, nodeids, runs)
            fingerprint = _digest(
                "".join(sorted({digests[str(items[nodeid].path)] for nodeid in chosen}))
            )
            if self._known(mutant, fingerprint):
                continue
            if not chosen:
                self._tell(mutant, Verdict(False, "no test comes by", fingerprint))
                continue
            killed, by = self._try(
                partial(_exchange, live, files, self._sources, mutant),
                [(items[nodeid], runs[nodeid]) for nodeid in chosen],
            )
            if killed:
                self._killers.setdefault((mutant.module, mutant.function), Counter())[by] += 1
            self._tell(mutant, Verdict(killed, by, fingerprint))

    def _in_order(self, mutant: Mutant, nodeids: list[str], runs: dict[str, TestRun]) -> list[str]:
        killers = self._killers.get((mutant.module, mutant.function), Counter())
        ordered = sorted(nodeids, key=lambda nodeid: (-killers[nodeid], runs[nodeid].cpu))
        spent = 0.0
        chosen: list[str] = []
        for nodeid in ordered:
            spent += runs[nodeid].cpu
            if spent > SECONDS_FOR_A_MUTANT and chosen:
                break
            chosen.append(nodeid)
        return chosen

    def _try(
        self, change: Callable[[], None], tests: list[tuple[pytest.Item, TestRun]]
    ) -> tuple[bool, str]:
        """Whether a test notices, and which."""

        def within(told: int) -> int:
            change()
            following = [*(item for item, _ in tests[1:]), tests[-1][0]]
            for (item, run), after in zip(tests, following, strict=True):
                os.write(told, f"{item.nodeid}\n".encode())
                _limit(run)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if self._failed:
                    return _NOTICED
            return 0

        status, told = _in_a_fork(within)
        last = told.rstrip("\n").rpartition("\n")[2]
        if status == _NOTICED or status < 0:
            return True, last
        if status != 0:
            raise RuntimeError(f"a mutant could not be tried: {told}")
        return False, "no test fails"

    def _tests_alone(
        self,
        session: pytest.Session,
        live: LiveFunctions,
        statements: Statements,
        files: dict[str, str],
    ) -> dict[str, TestRun]:
        """What each test does without a mutant: measured once for as long as nothing changes."""
        shared = "".join(self._sources.values()) + "".join(
            path.read_text()
            for path in sorted(session.config.rootpath.joinpath("tests").rglob("*.py"))
            if not path.name.startswith("test_")
        )
        by_file: dict[Path, list[pytest.Item]] = {}
        for item in session.items:
            by_file.setdefault(item.path, []).append(item)
        runs: dict[str, TestRun] = {}
        for path, items in by_file.items():
            cached = self._cache / f"{path.stem}-{_digest(shared + path.read_text())}.json"
            if not cached.exists():
                self._measure(items, live, statements, files, cached)
            runs |= {
                nodeid: TestRun(**run) for nodeid, run in json.loads(cached.read_text()).items()
            }
        return {item.nodeid: runs[item.nodeid] for item in session.items if item.nodeid in runs}

    def _measure(
        self,
        items: list[pytest.Item],
        live: LiveFunctions,
        statements: Statements,
        files: dict[str, str],
        into: Path,
    ) -> None:
        """In a fork, so that what tests leave behind is not there when mutants are tried."""
        print(f"looking at what {items[0].path.name} runs", flush=True)

        def within(told: int) -> int:
            for module, tree in statements.noting.items():
                live.exchange(files[module], tree)
            runs: dict[str, Any] = {}
            for item, following in zip(items, [*items[1:], None], strict=True):
                statements.forget()
                cpu, wall = time.process_time(), time.monotonic()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                cpu, wall = time.process_time() - cpu, time.monotonic() - wall
                runs[item.nodeid] = asdict(TestRun(cpu, wall, statements.reached()))
            if self._failed:
                os.write(told, "\n".join(self._failed).encode())
                return _NOTICED
            into.parent.mkdir(parents=True, exist_ok=True)
            into.with_suffix(".new").write_text(json.dumps(runs))
            into.with_suffix(".new").replace(into)
            return 0

        status, told = _in_a_fork(within)
        if status != 0:
            print(told)
            raise pytest.UsageError(f"{items[0].path}: tests fail without any mutant")


def _in_a_fork(work: Callable[[int], int]) -> tuple[int, str]:
    """The status that *work* ends with (negative: a signal), and what it wrote into its file."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = _BROKEN
        try:
            _quiet()
            status = work(writing)
        finally:  # never back into the session
            if status == _BROKEN:
                os.write(writing, traceback.format_exc().encode())
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode()
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended), told


def _loaded(module: str) -> str:
    """The file of a module of the repository, as its code objects name it; imported, if need be."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    loaded = importlib.import_module(name if name.startswith("flinkray.") else f"flinkray.{name}")
    assert loaded.__file__ is not None
    return loaded.__file__


def _exchange(
    live: LiveFunctions, files: dict[str, str], sources: dict[str, str], mutant: Mutant
) -> None:
    tree = ast.parse(sources[mutant.module])
    apply(tree, mutant)
    live.exchange(files[mutant.module], tree, frozenset({mutant.function}))


def _quiet() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def _limit(run: TestRun) -> None:
    """Who computes or waits for much longer than without the mutant is killed by a signal."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, 3 + 8 * run.cpu)
    signal.setitimer(signal.ITIMER_REAL, 15 + 10 * run.wall)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
