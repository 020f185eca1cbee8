"""Kills of an earlier role never reach a later role of the same process, in whatever order the
entries of Ray's key-value store are written and read."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from flinkray.rpc.ray.directory import RayDirectory, name_in_turn, turn_of
from flinkray.rpc.ray.process import name_in_log_lines

NAME = "Prestarted-1"


class Store:
    """The functions of Ray's key-value store. Each waits until its thread may do one more step."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.step: Callable[[], None] = lambda: None

    def _internal_kv_put(
        self, key: bytes, value: bytes, *, overwrite: bool, namespace: bytes
    ) -> bool:
        self.step()
        was_there = key in self.entries
        if overwrite or not was_there:
            self.entries[key] = value
        return was_there

    def _internal_kv_get(self, key: bytes, *, namespace: bytes) -> bytes | None:
        self.step()
        return self.entries.get(key)

    def _internal_kv_del(self, key: bytes, *, namespace: bytes) -> int:
        self.step()
        return 0 if self.entries.pop(key, None) is None else 1

    def _internal_kv_list(self, prefix: bytes, *, namespace: bytes) -> list[bytes]:
        self.step()
        return [key for key in self.entries if key.startswith(prefix)]


class Steps:
    """Lets threads do one step after the other, in a given order."""

    def __init__(self) -> None:
        self._may_go = threading.local()
        self._done = threading.Semaphore(0)

    def begin(self, pool: ThreadPoolExecutor, fn: Callable[[], bool]) -> Party:
        party = Party(threading.Semaphore(0), Future())

        def run() -> None:
            self._may_go.semaphore = party.may_go
            party.result.set_result(fn())
            self._done.release()

        pool.submit(run)
        self._done.acquire()  # it waits for its first step
        return party

    def __call__(self) -> None:
        self._done.release()
        self._may_go.semaphore.acquire()

    def go(self, party: Party) -> None:
        if not party.result.done():
            party.may_go.release()
            self._done.acquire()


class Party:
    def __init__(self, may_go: threading.Semaphore, result: Future[bool]) -> None:
        self.may_go = may_go
        self.result = result


def orders(counts: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """All orders in which the parties can do their numbers of steps."""
    if not any(counts.values()):
        yield ()
    for name, count in counts.items():
        if count:
            for rest in orders({**counts, name: count - 1}):
                yield (name, *rest)


def test_process_is_killed_in_its_role_or_takes_the_next_one_and_never_both() -> None:
    """Two kills and the process, which writes and reads, in each of 1,680 orders."""
    outcomes = set()
    with ThreadPoolExecutor(3) as pool:
        for order in orders({"kill": 3, "kill too": 3, "process": 3}):
            store, steps = Store(), Steps()
            directory = RayDirectory("test", store)
            store.step = steps
            parties = {
                "kill": steps.begin(pool, lambda d=directory: d.may_end(NAME, "a")),  # type: ignore[misc]
                "kill too": steps.begin(pool, lambda d=directory: d.may_end(NAME, "b")),  # type: ignore[misc]
                "process": steps.begin(pool, lambda d=directory: d.begin_turn(f"{NAME}.2")),  # type: ignore[misc]
            }
            for name in order:
                steps.go(parties[name])
            killed = [parties[name].result.result() for name in ("kill", "kill too")]
            goes_on = parties["process"].result.result()
            assert not (goes_on and any(killed)), order
            outcomes.add((any(killed), goes_on))
    assert outcomes == {(True, False), (False, True), (False, False)}


def test_kill_of_a_role_reaches_its_process_and_a_process_that_is_about_to_have_it() -> None:
    directory = RayDirectory("test", Store())
    assert directory.begin_turn(f"{NAME}.2")
    for turn, may_end in ((1, False), (2, True), (3, True)):
        assert directory.may_end(name_in_turn(NAME, turn), "mark") == may_end
    assert directory.ends() == [f"{NAME}.2/mark", f"{NAME}.3/mark"]
    assert not directory.begin_turn(f"{NAME}.3")
    for end in directory.ends():
        directory.forget_end(end)
    assert directory.ends() == []


def test_name_of_a_prestarted_process_says_of_which_actor_and_role_it_is() -> None:
    for turn, again in itertools.product((1, 2, 10), range(2)):
        name = name_in_turn(f"{NAME}{again}", turn)
        assert turn_of(name) == (f"{NAME}{again}", turn)
    assert turn_of(NAME) == (NAME, 1)


def test_log_line_of_a_process_with_several_roles_begins_with_the_name_of_the_role(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, role = logging.getLogRecordFactory(), ["JobMaster-1"]
    name_in_log_lines("flinkray", lambda: role[0])
    try:
        logging.getLogger("flinkray.rpc").warning("%d slots", 2)
        role[0] = "SlotPool-2"
        logging.getLogger("flinkray").warning("no slots")
        logging.getLogger("of.users").warning("their own")
    finally:
        logging.setLogRecordFactory(before)
    assert caplog.messages == ["JobMaster-1: 2 slots", "SlotPool-2: no slots", "their own"]
