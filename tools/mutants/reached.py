"""Which statements of some modules a test runs."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any

from tools.mutants.operators import Path, functions_of

_NAME = "__mutants_reached__"


class Statements:
    """Numbers for the statements of functions, and code that notes which of them it comes by."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._numbers: dict[tuple[str, Path], int] = {}
        self.noting = {module: self._noting(module, source) for module, source in sources.items()}
        """The tree of each module, in which each statement is preceded by a note."""
        self._reached = bytearray(len(self._numbers))
        setattr(builtins, _NAME, self._reached)

    def around(self, module: str, path: Path) -> int:
        """The number of the statement that a node is in."""
        for end in range(len(path), 0, -1):
            number = self._numbers.get((module, path[:end]))
            if number is not None:
                return number
        raise LookupError(f"{module}: no statement around {path}")

    def forget(self) -> None:
        self._reached[:] = bytes(len(self._reached))

    def reached(self) -> list[int]:
        return [number for number, seen in enumerate(self._reached) if seen]

    def _noting(self, module: str, source: str) -> ast.Module:
        tree = ast.parse(source)
        for _, path, function in list(functions_of(tree)):
            self._number_within(module, function, path)
            self._note_within(module, function, path)
        return ast.fix_missing_locations(tree)

    def _number_within(self, module: str, node: ast.AST, path: Path) -> None:
        for below, below_path in _children(node, path):
            if isinstance(below, ast.stmt):
                self._numbers[module, below_path] = len(self._numbers)
            self._number_within(module, below, below_path)

    def _note_within(self, module: str, node: ast.AST, path: Path) -> None:
        for below, below_path in _children(node, path):
            self._note_within(module, below, below_path)
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                noted: list[ast.stmt] = []
                for index, statement in enumerate(value):
                    note = ast.parse(f"{_NAME}[{self._numbers[module, (*path, field, index)]}] = 1")
                    noted += [ast.copy_location(note.body[0], statement), statement]
                setattr(node, field, noted)


def _children(node: ast.AST, path: Path) -> list[tuple[ast.AST, Path]]:
    children: list[tuple[ast.AST, Path]] = []
    for field, value in ast.iter_fields(node):
        values: list[tuple[Any, Path]] = (
            [(item, (*path, field, index)) for index, item in enumerate(value)]
            if isinstance(value, list)
            else [(value, (*path, field))]
        )
        children += [(item, here) for item, here in values if isinstance(item, ast.AST)]
    return children
