"""docs/first-job.md as what it has a newcomer do: files to write, commands to type, and what they
show."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flinkray.testing import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "first-job.md"

_BLOCK = re.compile(r"^```(sh|text|python)(?: title=\"(.*?)\")?\n(.*?)^```$", re.M | re.S)
_OF_RUN = re.compile(r"savepoint-[0-9a-f]{6}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
"""Names that each run of the page has its own of: savepoints, jobs."""
_PIECE = re.compile(rf"{_OF_RUN.pattern}|\.\.\.|\S*/home/me/|\d{{2,}}|\s+")
_BEGINNING = re.compile(r"\b[0-9a-f]{4,31}\b")
_LOOKS = ("flinkray list", "flinkray info", "grep")
"""Commands that show what takes a while, and are typed again until it is there."""


@dataclass(frozen=True)
class Write:
    file: str
    text: str


@dataclass(frozen=True)
class Type:
    """Commands, each a line of a shell."""

    commands: tuple[str, ...]
    shown: str | None
    """What they print, as the page has it."""


def steps() -> list[Write | Type]:
    """Of the page, in order."""
    found: list[Write | Type] = []
    for kind, file, text in _BLOCK.findall(PAGE.read_text("utf-8")):
        if kind == "python":
            found.append(Write(file, text))
        elif kind == "sh":
            found.append(Type(tuple(text.replace("\\\n", "").splitlines()), None))
        else:
            before = found[-1]
            assert isinstance(before, Type), f"nothing was typed that shows:\n{text}"
            assert before.shown is None, f"a second time:\n{text}"
            found[-1] = Type(before.commands, text)
    return found


class Reader:
    """Who types what the page says, with the ids of the jobs and savepoints that are really there.

    Args:
        type_in: runs a line of a shell, and returns what it prints, errors included.
    """

    def __init__(self, type_in: Callable[[str], str]) -> None:
        self._type_in = type_in
        self._real: dict[str, str] = {}
        """For each name of a job or savepoint on the page: the real one."""

    def follow(self, step: Type, timeout: float) -> None:
        """Raises AssertionError: what is shown is not what the page says."""
        last = step.commands[-1]
        for command in step.commands[:-1]:
            self._type_in(self._with_real_names(command))
        if step.shown is None:
            self._type_in(self._with_real_names(last))
        elif last.startswith(_LOOKS):
            expected, seen = step.shown, [""]

            def is_shown() -> bool:
                seen.append(self._type_in(self._with_real_names(last)))
                return self._is_shown(expected, seen[-1])

            try:
                wait_until(is_shown, timeout, last)
            except AssertionError as error:
                raise AssertionError(f"{last} shows\n{seen[-1]}\nand not\n{expected}") from error
        else:
            printed = self._type_in(self._with_real_names(last))
            assert self._is_shown(step.shown, printed), (
                f"{last} shows\n{printed}\nand not\n{step.shown}"
            )

    def _with_real_names(self, command: str) -> str:
        command = _OF_RUN.sub(lambda name: self._real[name[0]], command)
        return _BEGINNING.sub(lambda name: self._beginning(name[0]), command)

    def _beginning(self, name: str) -> str:
        (whole, *others) = [page for page in self._real if page.startswith(name)] or [name]
        assert others == []
        return self._real.get(whole, name)[: len(name)]

    def _is_shown(self, expected: str, printed: str) -> bool:
        """Whether all expected lines are printed, in that order; learns the names in them."""
        rest = iter(printed.splitlines())
        learned: dict[str, str] = {}
        for line in expected.splitlines():
            if line.strip() == "...":
                continue
            names, pattern = [], ""
            for piece in _pieces(line):
                if _OF_RUN.fullmatch(piece) and piece not in self._real:
                    names.append(piece)
                pattern += self._pattern(piece)
            found = next(filter(None, (re.fullmatch(pattern, it.rstrip()) for it in rest)), None)
            if found is None:
                return False
            learned.update(zip(names, found.groups(), strict=True))
        self._real |= learned
        return True

    def _pattern(self, piece: str) -> str:
        """Of what may stand in the place of a piece of a line."""
        if _OF_RUN.fullmatch(piece):
            name = self._real.get(piece)
            return f"({_OF_RUN.pattern})" if name is None else re.escape(name)
        if piece == "...":
            return ".*"
        if piece.endswith("/home/me/"):
            return r"\S*/"
        if piece.isdecimal() and len(piece) > 1:  # numbers below ten are meant as they are
            return r"[1-9]\d*"
        return r"\s+" if piece.isspace() else re.escape(piece)


def _pieces(line: str) -> list[str]:
    """What a line consists of, without the space at its end."""
    line, pieces, end = line.rstrip(), [], 0
    for piece in _PIECE.finditer(line):
        pieces += [line[end : piece.start()], piece[0]]
        end = piece.end()
    return [*filter(None, pieces), line[end:]] if line[end:] else [*filter(None, pieces)]
