"""Increments under random use: every complete checkpoint restores exactly the state at its barrier,
and what nobody refers to is gone.

Several checkpoints are taken at a time.  Each may become complete, be given up, be subsumed, or not
be written, in any order; savepoints come in between, and the task is restarted.  What becomes of
files is decided by the coordinator's own registry.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from flinkray.checkpoint.handles import FileState, StateLocation, TaskState
from flinkray.checkpoint.state_files import delete_state
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint, AwaitCheckpoint
from flinkray.scheduler.checkpoints.pending_checkpoint import locations_of
from flinkray.scheduler.checkpoints.shared_state_registry import SharedStateRegistry
from tests.actors.task_process.answering import Answering, restored

KEYS = range(6)
CHANGES = ["put", "put", "append", "remove", "timer", "see"]
KINDS = [*["aligned"] * 5, "unaligned", "whole", "savepoint", "cannot be written"]
RETAINED = 2


class Run:
    """A task, and what a coordinator does with its answers."""

    def __init__(self, directory: Path, random: Random, inline_threshold: int) -> None:
        self.random = random
        self.task = Answering(directory, inline_threshold)
        self.registry = SharedStateRegistry()
        self.last_id = 0
        self.at: dict[int, dict[str, Any]] = {}
        """Checkpoint -> what there was at its barrier."""
        self.pending: dict[int, TaskState | None] = {}
        """With what was acknowledged."""
        self.savepoints: dict[int, TaskState | None] = {}
        self.pending_savepoints: set[int] = set()
        self.acknowledged: set[int] = set()
        self.retained: dict[int, TaskState | None] = {}
        for key in KEYS:
            self._change("put", key)

    @property
    def latest(self) -> int:
        return max(self.retained, default=0)

    # --- the task -----------------------------------------------------------------------------

    def change(self) -> None:
        self._change(self.random.choice(CHANGES), self.random.choice(KEYS))

    def _change(self, kind: str, key: int) -> None:
        stateful, value = self.task.stateful, self.random.randrange(4)
        if kind == "put":
            stateful.put(key, [value] * 30)
        elif kind == "append":
            stateful.append(key, value)
        elif kind == "remove":
            stateful.remove(key)
        elif kind == "timer":
            stateful.timer(value, key)
        else:
            stateful.see(value)

    # --- checkpoints --------------------------------------------------------------------------

    def trigger(self) -> None:
        kind = self.random.choice(KINDS)
        if kind == "savepoint":
            self._trigger(savepoint=True, is_whole=True)
            self.pending_savepoints.add(self.last_id)
        elif kind == "cannot be written":
            self.task.stateful.put(0, threading.Lock())
            self._trigger()
            self.task.stateful.remove(0)
        else:
            self._trigger(is_whole=kind == "whole", unaligned=kind == "unaligned")

    def _trigger(self, **kind: bool) -> None:
        self.last_id += 1
        lock = any(type(v) is not list for v in self.task.stateful.everything()["values"].values())
        everything = {} if lock else copy.deepcopy(self.task.stateful.everything())
        self.at[self.last_id] = everything
        self.pending[self.last_id] = None
        self.task.capture(self.last_id, self.latest, **kind)

    def write_one(self) -> None:
        if self.task.work:
            self.task.write_one(self.random.randrange(len(self.task.work)))

    def complete_in_flight(self) -> None:
        if self.pending:
            self.task.responder.in_flight_completed(self.random.choice(list(self.pending)))

    def report(self) -> None:
        self.task.run_mail()
        reports, self.task.reports[:] = list(self.task.reports), []
        for answer in reports:
            assert not isinstance(answer, AwaitCheckpoint)
            checkpoint_id = answer.checkpoint_id
            if not isinstance(answer, AcknowledgeCheckpoint):
                if checkpoint_id in self.pending:
                    self._give_up(checkpoint_id)
            elif checkpoint_id not in self.pending:
                self._discard(_locations(answer.state))
            else:
                self.pending[checkpoint_id] = answer.state
                self.acknowledged.add(checkpoint_id)

    def write_all(self) -> None:
        while self.task.work:
            self.task.write_one()
        self.report()

    def complete(self) -> None:
        ready = sorted(self.acknowledged & self.pending.keys())
        if not ready:
            return
        checkpoint_id = self.random.choice(ready)
        state = self.pending.pop(checkpoint_id)
        if checkpoint_id in self.pending_savepoints:
            self.savepoints[checkpoint_id] = state
        else:
            self._retain(checkpoint_id, state)
        self._delete(self.registry.pending_over(checkpoint_id))
        self.check()

    def _retain(self, checkpoint_id: int, state: TaskState | None) -> None:
        self._register(checkpoint_id, state)
        for earlier in [it for it in self.pending if it < checkpoint_id]:
            if earlier not in self.pending_savepoints:
                self._give_up(earlier)
        while len(self.retained) > RETAINED:
            subsumed = min(self.retained)
            own = _locations(self.retained.pop(subsumed))
            unused = self.registry.unregister(subsumed, self.pending)
            self._delete(unused)
            self._discard(own)

    def _register(self, checkpoint_id: int, state: TaskState | None) -> None:
        self.retained[checkpoint_id] = state
        self.registry.register(checkpoint_id, _shared(state))

    def give_up(self) -> None:
        if self.pending:
            self._give_up(self.random.choice(list(self.pending)))

    def _give_up(self, checkpoint_id: int) -> None:
        received = self.pending.pop(checkpoint_id)
        self.task.responder.aborted(checkpoint_id)
        self._discard(_locations(received))
        self._delete(self.registry.pending_over(checkpoint_id))

    def give_up_all(self) -> None:
        for checkpoint_id in list(self.pending):
            self._give_up(checkpoint_id)
        self.write_all()

    def restart(self) -> None:
        self.give_up_all()
        self.task.restart(self.latest, self.retained.get(self.latest))
        expected = self.at.get(self.latest)
        if expected is not None:
            assert self.task.stateful.everything() == expected

    # --- files --------------------------------------------------------------------------------

    def _discard(self, locations: Iterable[StateLocation]) -> None:
        """What was received for one that is not complete."""
        for at in locations:
            if isinstance(at, FileState) and not self.registry.knows(at.path):
                delete_state(at)

    def _delete(self, files: Iterable[FileState]) -> None:
        for file in files:
            delete_state(file)

    def check(self) -> None:
        for checkpoint_id, state in {**self.retained, **self.savepoints}.items():
            assert restored(state) == self.at[checkpoint_id]

    def check_files(self) -> None:
        """When nothing is being taken any more."""
        used = {
            Path(location.path)
            for state in (*self.retained.values(), *self.savepoints.values())
            for location in _locations(state)
            if isinstance(location, FileState)
        }
        there = {path for path in self.task.directory.rglob("*") if path.is_file()}
        assert there == used


def _locations(state: TaskState | None) -> list[StateLocation]:
    return [] if state is None else locations_of(state)


def _shared(state: TaskState | None) -> list[FileState]:
    if state is None:
        return []
    return [file for it in state.operators.values() for file in it.shared_files()]


STEPS = {
    "change": 6,
    "trigger": 6,
    "write_one": 3,
    "write_all": 4,
    "report": 2,
    "complete_in_flight": 2,
    "complete": 4,
    "give_up": 1,
    "restart": 0.3,
}
"""How often each is done."""


@pytest.mark.parametrize("seed", range(40))
def test_complete_checkpoints_restore_the_state_at_their_barriers(
    seed: int, tmp_path: Path
) -> None:
    """CP-38, KS-06."""
    random = Random(seed)
    run = Run(tmp_path, random, inline_threshold=random.choice([0, 0, 400]))
    for step in random.choices(list(STEPS), list(STEPS.values()), k=120):
        getattr(run, step)()
    run.give_up_all()
    run.check()
    run.check_files()
