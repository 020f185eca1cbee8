"""Which processes are killed and stopped, and when: by a seed."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.system.observer import Actor, kill, live_actors

log = logging.getLogger(__name__)

KINDS = {
    "TaskProcess": 8,
    "TaskExecutor": 2,
    "StreamCoordinator": 1,
    "JobMaster": 2,
    "SlotPool": 1,
    "Dispatcher": 1,
    "ResourceManager": 1,
}
"""Of processes, and how often they are chosen beside others."""
MASTERS = ("JobMaster", "SlotPool", "StreamCoordinator", "Dispatcher", "ResourceManager")
"""With which no task ends."""
PAUSE = (0.0, 3.0)
"""Seconds from one victim to the next."""
PAIR_WITHIN = 2.0
"""Seconds from the first of a pair to the second."""
STOPPED = (5.0, 70.0)
"""Seconds for which a process is stopped."""
MOST_STOPPED = 2
"""Processes at the same time."""
LONGEST_WAIT = 2.0
"""Seconds for the moment at which a victim is to be hit."""
LOOK = 0.002
"""Seconds between two looks at the storage."""


class Moments:
    """Of a job's checkpoints, as they can be seen in their directory."""

    def __init__(self, directory: Path, is_over: threading.Event) -> None:
        self._directory = directory
        self._is_over = is_over

    def pause(self, seconds: float) -> bool:
        """Whether the job is not over after it."""
        return not self._is_over.wait(seconds)

    def wait_for(self, moment: str) -> str | None:
        """Which it is; None: the job is over.

        *any*: now.  *begun*: a checkpoint has its directory, and tasks are told of it.  *written*:
        a task has written a file of its state.  *complete*: a checkpoint has its metadata, and
        sinks are about to commit.  When it does not come, it was too long to wait for, and is any.
        """
        pattern = PATTERNS.get(moment)
        if pattern is not None:
            before = self._seen(pattern)
            for _ in range(round(LONGEST_WAIT / LOOK)):
                if self._is_over.wait(LOOK):
                    break
                if self._seen(pattern) - before:
                    return moment
        return None if self._is_over.is_set() else "any"

    def _seen(self, pattern: str) -> set[Path]:
        while True:
            with suppress(FileNotFoundError):  # one that was deleted in the middle of the look
                return set(self._directory.glob(pattern))


PATTERNS = {"begun": "*/chk-*", "written": "*/*/*", "complete": "*/chk-*/_metadata"}
MOMENTS = ("any", *PATTERNS)


@dataclass(frozen=True)
class Kill:
    at: float
    """Seconds since the epoch."""
    kind: str
    process: str


class Victims:
    """Chosen one after the other, until so many were killed and so many stopped."""

    def __init__(
        self,
        random: Random,
        namespace: str,
        kinds: Sequence[str],
        kills: int,
        stops: int,
        *,
        pairs: float = 0.0,
    ) -> None:
        """
        Args:
            pairs: share of the kills that are followed by one of another kind within
                :data:`PAIR_WITHIN` seconds.
        """
        self._pairs = pairs
        self._random = random
        self._namespace = namespace
        self.kinds = kinds
        self._kills, self._stops = kills, stops
        self.killed: Counter[str] = Counter()
        self.kills: list[Kill] = []
        self.stopped: Counter[str] = Counter()
        self._now_stopped: dict[int, threading.Timer] = {}
        self._lock = threading.Lock()

    @property
    def counts(self) -> tuple[int, int]:
        return self.killed.total(), self.stopped.total()

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def is_over(self) -> bool:
        return self.killed.total() >= self._kills and self.stopped.total() >= self._stops

    def pause(self) -> float:
        """Seconds until the next."""
        return self._random.uniform(*PAUSE)

    @property
    def pairs_within(self) -> int:
        """How many were killed within :data:`PAIR_WITHIN` seconds of one of another kind."""
        both = zip(self.kills, self.kills[1:], strict=False)
        return sum(b.at - a.at <= PAIR_WITHIN and a.kind != b.kind for a, b in both)

    def hit_next(self, moments: Moments) -> None:
        """Kill or stop a process, at one of these moments, if it is there; and maybe another one
        soon after it."""
        before = len(self.kills)
        self._hit(moments, self.kinds, self._random.choice(MOMENTS))
        is_pair, pause = self._random.random() < self._pairs, self._random.uniform(0, PAIR_WITHIN)
        if is_pair and len(self.kills) > before and not self.is_over and moments.pause(pause):
            others = [kind for kind in self.kinds if kind != self.kills[-1].kind]
            self._hit(moments, others, "any")

    def _hit(self, moments: Moments, kinds: Sequence[str], moment: str) -> None:
        kind = self._random.choices(kinds, [KINDS[kind] for kind in kinds])[0]
        kills, stops = self._kills - self.killed.total(), self._stops - self.stopped.total()
        is_kill = self._random.randrange(kills + stops) < kills
        number = self._random.random()
        there = [a for a in live_actors() if a.namespace == self._namespace and a.kind == kind]
        there = [a for a in there if a.pid and a.pid not in self._now_stopped]
        if not there:
            return
        victim = there[int(number * len(there))]
        found = moments.wait_for(moment)
        if found is None:
            return
        with suppress(ProcessLookupError):
            if is_kill:
                at = time.time()
                kill(victim.pid)
                self.killed[kind] += 1
                self.kills.append(Kill(at, kind, victim.name))
                log.info("kill %d (%s): %s", self.killed.total(), found, _named(victim))
            else:
                self._stop(victim, found)

    def _stop(self, victim: Actor, moment: str) -> None:
        seconds = self._random.uniform(*STOPPED)
        with self._lock:
            if len(self._now_stopped) >= MOST_STOPPED:
                return
            os.kill(victim.pid, signal.SIGSTOP)
            timer = threading.Timer(seconds, self._go_on, [victim.pid])
            self._now_stopped[victim.pid] = timer
        self.stopped[victim.kind] += 1
        number = self.stopped.total()
        log.info("stop %d (%s): %s for %.0f s", number, moment, _named(victim), seconds)
        timer.start()

    def _go_on(self, pid: int) -> None:
        with self._lock:
            if self._now_stopped.pop(pid, None) is None:
                return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            log.info("%d goes on", pid)

    @contextmanager
    def none_left_stopped(self) -> Iterator[None]:
        """Whatever happens."""
        try:
            yield
        finally:
            for pid, timer in list(self._now_stopped.items()):
                timer.cancel()
                self._go_on(pid)


def _named(victim: Actor) -> str:
    return f"{victim.kind} {victim.pid}"
