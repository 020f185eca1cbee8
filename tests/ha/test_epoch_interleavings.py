"""All orders in which the steps of several owners of one directory can follow each other.

Their entries lie in the file of an epoch, or in files of their own that the epoch's leads to.  An
owner may stand still before any step, for as long as others need to do all of theirs, and for
good.  After every step another owner takes over at once, to see what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from flinkray.core.ids import random_bytes_from
from flinkray.ha.directory import Directory, FileDirectory, FileSystem, TakenOverError
from flinkray.ha.epoch_directory import EpochDirectory, FencedDirectory

Files = dict[str, bytes]
Step = tuple[str, tuple[Any, ...]]
"""Name and arguments of one operation of the storage."""


class Paused(BaseException):
    """An owner is about to do a step that it has not done yet."""

    def __init__(self, step: Step) -> None:
        self.step = step


class Steps:
    """What an owner does with its storage: the results of the steps so far are repeated."""

    def __init__(self, done: Sequence[Any]) -> None:
        self._results = iter(done)

    def do(self, name: str, *arguments: Any) -> Any:
        try:
            return next(self._results)
        except StopIteration:
            raise Paused((name, arguments)) from None


def carry_out(step: Step, files: Files) -> Any:
    """One step on the storage that all owners share."""
    name, arguments = step
    if name == "put":
        path, data = arguments
        files.pop(path, None)
        files[path] = data
    elif name == "rename":
        path, new_path = arguments
        data = files.pop(path)
        files.pop(new_path, None)
        files[new_path] = data
    elif name == "delete":
        files.pop(arguments[0], None)
    elif name == "get":
        return files.get(arguments[0])
    elif name == "list":
        return tuple(sorted(files))
    return None


class ObjectStore(Directory):
    """Puts whole objects, and has neither names that can be changed nor conditions."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def location(self, name: str = "") -> str:
        return f"store://{name}"

    def read(self, name: str) -> bytes | None:
        return self._steps.do("get", name)  # type: ignore[no-any-return]

    def write(self, name: str, data: bytes) -> None:
        self._steps.do("put", name, data)

    def delete(self, name: str) -> None:
        self._steps.do("delete", name)

    def names(self) -> list[str]:
        return list(self._steps.do("list"))

    def subdirectory(self, name: str) -> Directory:
        raise NotImplementedError

    def delete_all(self) -> None:
        raise NotImplementedError


class Posix(FileSystem):
    """Files are written beside, and renamed.  What only makes something durable is no step."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def make_directory(self, path: str) -> None:
        pass

    def read(self, path: str) -> bytes | None:
        return self._steps.do("get", path)  # type: ignore[no-any-return]

    def list(self, path: str) -> list[str]:
        return [name.removeprefix(f"{path}/") for name in self._steps.do("list")]

    def is_directory(self, path: str) -> bool:
        return True

    def write(self, path: str, data: bytes) -> None:
        self._steps.do("put", path, data)

    def sync(self, path: str) -> None:
        pass

    def rename(self, path: str, new_path: str) -> None:
        self._steps.do("rename", path, new_path)

    def delete(self, path: str) -> None:
        self._steps.do("delete", path)

    def sync_directory(self, path: str) -> None:
        pass

    def delete_tree(self, path: str) -> None:
        raise NotImplementedError

    def url(self, path: str) -> str:
        return path


def object_store(steps: Steps, owner: str) -> Directory:
    return ObjectStore(steps)


def local_files(steps: Steps, owner: str) -> Directory:
    return FileDirectory(Posix(steps), "d", owner)


MakeDirectory = Callable[[Steps, str], Directory]
Owned = EpochDirectory | FencedDirectory


def in_epochs(directory: Directory) -> Owned:
    return EpochDirectory(directory, "kept", lambda name: name == "old")


def in_files(directory: Directory) -> Owned:
    return FencedDirectory(directory, "kept", lambda name: name == "old")


MakeOwned = Callable[[Directory], Owned]


@dataclass
class Told:
    """What owners have told others."""

    complete: set[str] = field(default_factory=set)
    maybe_removed: set[str] = field(default_factory=set)
    """It was begun to remove them."""
    removed: set[str] = field(default_factory=set)
    """Their data may be deleted."""
    ids: list[int] = field(default_factory=list)
    value: bytes = b""
    """The last one that was told to be stored; those of later owners are higher."""

    @classmethod
    def all(cls, by_owners: Iterable[Told]) -> Told:
        total = cls(complete={"old"})
        for told in by_owners:
            total.complete |= told.complete
            total.maybe_removed |= told.maybe_removed
            total.removed |= told.removed
            total.ids += told.ids
            total.value = max(total.value, told.value)
        return total


Program = Callable[[Owned, Told], None]


def number_of(directory: Owned) -> int:
    return int(directory.read("count") or b"0")


def adds(*names: str) -> Program:
    def program(directory: Owned, told: Told) -> None:
        for name in names:
            directory.write(name, b"")
            told.complete.add(name)

    return program


def removes(name: str) -> Program:
    def program(directory: Owned, told: Told) -> None:
        told.maybe_removed.add(name)
        directory.delete(name)
        told.removed.add(name)

    return program


def counts(directory: Owned, told: Told) -> None:
    number = number_of(directory)
    directory.write("count", b"%d" % (number + 1))
    told.ids.append(number)


def takes_over(directory: Owned, told: Told) -> None:
    directory.take_over(b"somebody")


def succeeds(directory: Owned, told: Told) -> None:
    """What it does not find it gives up."""
    directory.take_over(b"a successor")
    told.removed |= {"1", "2"} - set(directory.names())


def updates(*values: bytes) -> Program:
    def program(directory: Owned, told: Told) -> None:
        for value in values:
            directory.write("1", value)
            told.value = value

    return program


def discards(directory: Owned, told: Told) -> None:
    assert isinstance(directory, EpochDirectory)
    told.maybe_removed |= {"old", "1", "2"}
    directory.discard()
    told.removed |= {"old", "1", "2"}


@dataclass(frozen=True)
class Owner:
    """One of the owners and what it does, one after the other, until somebody has taken over."""

    name: str
    token: int
    programs: tuple[Program, ...]
    make_owned: MakeOwned = in_epochs

    def run(self, make: MakeDirectory, done: Sequence[Any], told: Told) -> Step | None:
        """As far as it has come; its next step, or None: it has ended."""
        with random_bytes_from(lambda size: bytes([self.token]) * size):
            directory = self.make_owned(make(Steps(done), self.name))
            try:
                for program in self.programs:
                    program(directory, told)
            except Paused as paused:
                return paused.step
            except TakenOverError:
                pass
            return None

    def run_alone(self, make: MakeDirectory, files: Files, told: Told) -> list[Any]:
        """All of it at once."""
        done: list[Any] = []
        while (step := self.run(make, done, Told())) is not None:
            done.append(carry_out(step, files))
        self.run(make, done, told)
        return done


def seen_by_next(make: MakeDirectory, make_owned: MakeOwned, files: Files) -> dict[str, bytes]:
    """What an owner recovers that takes over now, and does all its steps at once."""
    found: dict[str, bytes] = {}

    def looks(directory: Owned, told: Told) -> None:
        for name in directory.names():
            # raises LostEntryError if there is no file that an entry leads to
            found[name] = directory.read(name) or b""

    Owner("next", 99, (takes_over, looks), make_owned).run_alone(make, dict(files), Told())
    return found


def explore(
    make: MakeDirectory,
    files: Files,
    owners: Sequence[Owner],
    begun: Sequence[list[Any]],
    at_once: frozenset[str] = frozenset(),
) -> int:
    """Every order of the owners' steps; returns how many states were seen.  *at_once*: steps that
    follow at once on the step before them, so that there are fewer orders."""

    @cache
    def run(number: int, done: tuple[Any, ...]) -> tuple[Step | None, Told]:
        told = Told()
        return owners[number].run(make, done, told), told

    @cache
    def recovered(names: frozenset[tuple[str, bytes]]) -> dict[str, bytes]:
        return seen_by_next(make, owners[0].make_owned, dict(names))

    seen = set()
    todo: list[tuple[Files, tuple[tuple[Any, ...], ...]]] = [(files, tuple(map(tuple, begun)))]
    while todo:
        files, done = todo.pop()
        key = frozenset(files.items()), done
        if key in seen:
            continue
        seen.add(key)
        now = [run(number, of) for number, of in enumerate(done)]
        told = Told.all(told for _, told in now)
        there = recovered(key[0])
        assert told.complete - told.maybe_removed <= there.keys(), "told as complete, and lost"
        assert not told.removed & there.keys(), "its data are deleted, and it is recovered"
        assert len(told.ids) == len(set(told.ids)), "an id is given twice"
        assert there.get("1", told.value) >= told.value, "an earlier value is back"
        for number, (step, _) in enumerate(now):
            then, of = dict(files), done[number]
            while step is not None:
                of = (*of, carry_out(step, then))
                step = run(number, of)[0]
                if step is None or step[0] not in at_once:
                    break
            if of != done[number]:
                todo.append((then, (*done[:number], of, *done[number + 1 :])))
    return len(seen)


def stories(make: MakeDirectory, most_successors: int = 2) -> Iterator[Any]:
    def story(what: str, before: Owner, *after: Owner) -> Any:
        return pytest.param(make, before, list(after), id=f"{make.__name__}, {what}")

    first = takes_over, adds("1")
    for token, other in ((1, 2), (2, 1)):
        who = f"{'lower' if token < other else 'higher'} token"
        yield story(
            f"a successor, {who}",
            Owner("a", token, (*first, adds("2"), removes("1"))),
            Owner("b", other, (succeeds, adds("3"), removes("1"))),
        )
        yield story(
            f"ids, {who}",
            Owner("a", token, (*first, counts, counts)),
            Owner("b", other, (takes_over, counts)),
        )
    begins = Owner("a", 1, (*first, adds("2")))
    yield story("an end", begins, Owner("b", 2, (takes_over, discards)))
    if most_successors > 1:
        successors = Owner("b", 3, (succeeds,)), Owner("c", 2, (succeeds,))
        yield story("two successors", begins, *successors)


def stories_of_files(make: MakeDirectory, most_successors: int = 2) -> Iterator[Any]:
    def story(what: str, before: tuple[Program, ...], *after: tuple[Program, ...]) -> Any:
        first = Owner("a", 1, (takes_over, adds("1"), *before), in_files)
        others = [Owner("bc"[n], 3 - n, (succeeds, *it), in_files) for n, it in enumerate(after)]
        return pytest.param(make, first, others, id=f"{make.__name__}, files, {what}")

    yield story("values", (updates(b"a1"),), (updates(b"b1"),))
    yield story("removals", (adds("2"), removes("1")), (removes("1"),))
    if most_successors > 1:
        yield story("two successors", (adds("2"),), (), ())


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        *stories(object_store),
        *stories(local_files, most_successors=1),
        *stories_of_files(object_store),
        *stories_of_files(local_files, most_successors=1),
    ],
)
def test_changes_acknowledged_to_one_owner_are_seen_by_all_later_owners(
    make: MakeDirectory, before: Owner, after: list[Owner]
) -> None:
    """The first owner has taken over, and stored entry 1, when the others begin."""
    prefix = "d/" if make is local_files else ""
    files: Files = {f"{prefix}old": b"of a version without epochs"}
    begins = replace(before, programs=before.programs[:2])
    begun = [begins.run_alone(make, files, Told()), *([] for _ in after)]
    if len(after) > 1 and before.make_owned is in_files:  # else there are too many orders
        for _ in range(2):
            step = after[0].run(make, begun[1], Told())
            assert step is not None
            begun[1].append(carry_out(step, files))
    owners = [before, *after]
    has_many = len(after) > 1 or before.make_owned is in_files
    at_once = frozenset(("delete", "get") if has_many else ())
    if make is local_files:
        at_once |= {"put"}  # nobody looks at a file before it has its name
    assert explore(make, files, owners, begun, at_once) > 100
