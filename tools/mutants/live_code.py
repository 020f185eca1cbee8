"""Change the code of functions that live in this process, without importing anything anew.

A module that is imported again would make a second set of classes, which the tests that are loaded
already do not use. So only the code objects are exchanged: whoever holds a function, be it through
a property, a decorator or a dataclass with slots, runs the new code.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import TypeAlias

from tools.mutants.operators import FunctionNode, functions_of

Key: TypeAlias = tuple[str, int, str]
"""File, first line (of the decorators, if there are any) and name of a function."""


class LiveFunctions:
    """The functions of some modules, as they are in memory now."""

    def __init__(self, files: set[str]) -> None:
        self._functions: dict[Key, list[FunctionType]] = {}
        gc.unfreeze()  # what is frozen is not among the objects that it has
        for found in gc.get_objects():
            if isinstance(found, FunctionType) and found.__code__.co_filename in files:
                self._functions.setdefault(_key(found.__code__), []).append(found)

    def exchange(self, file: str, tree: ast.Module, functions: frozenset[str] | None = None) -> int:
        """Give the functions named (all, if None) the code that *tree* has for them.

        How many live functions were changed: 0 for a function that nobody holds.
        """
        changed = 0
        names = {
            (_first_line(node), node.name)
            for qualified, _, node in functions_of(tree)
            if functions is None or qualified in functions
        }
        codes = {
            (code.co_firstlineno, code.co_name): code
            for code in _codes(compile(tree, file, "exec", dont_inherit=True))
        }
        for line, name in names:
            for function in self._functions.get((file, line, name), ()):
                code = codes[line, name]
                if code.co_freevars != function.__code__.co_freevars:
                    code = _with_the_variables_of(function.__code__, file, tree)
                function.__code__ = code
                changed += 1
        return changed


def _key(code: CodeType) -> Key:
    return code.co_filename, code.co_firstlineno, code.co_name


def _first_line(node: FunctionNode) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _codes(code: CodeType) -> Iterator[CodeType]:
    """What is within comes later, so that it does not hide a function outside of the same name."""
    within = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for inner in within:
        yield from _codes(inner)
    yield from within


def _with_the_variables_of(original: CodeType, file: str, tree: ast.Module) -> CodeType:
    """A function's cells are fixed: name those that the change has left out, where nothing runs."""
    wanted = (original.co_firstlineno, original.co_name)
    for _, _, node in functions_of(tree):
        if (_first_line(node), node.name) == wanted:
            named: list[ast.stmt] = [
                ast.Expr(ast.Name(name, ast.Load())) for name in original.co_freevars
            ]
            node.body.append(ast.If(ast.Constant(False), named, []))
    ast.fix_missing_locations(tree)
    codes = _codes(compile(tree, file, "exec", dont_inherit=True))
    return next(code for code in codes if (code.co_firstlineno, code.co_name) == wanted)
