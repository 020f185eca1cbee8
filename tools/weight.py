"""How heavy the project is: lines, modules, docstrings and test names, beside the goals.

    make weight

Product: ``flinkray``, ``actors`` and ``scheduler``.  Exit status 1 if a goal is missed and
``--check`` is given.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("flinkray", "actors", "scheduler")
SHORT = 60
"""Lines below which a module counts as short."""
LONG_NAME = 80
"""Characters above which a name of a test counts as long."""
LAST_TEST = ROOT / "build" / "make-test-seconds"
"""File with the seconds of the last whole run of ``make test``."""
OPAQUE = re.compile(r"(Of|Likewise|The same|See|As|Where|Who|That|Those)\b")
"""Beginnings of docstrings that say whose or which, and not what."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Weight:
    """Sums over modules."""

    modules: int = 0
    short_modules: int = 0
    lines: int = 0
    import_lines: int = 0
    docstring_lines: int = 0
    comment_lines: int = 0
    blank_lines: int = 0
    longest: tuple[int, str] = (0, "")
    opaque: list[str] = field(default_factory=list)
    """Places of docstrings with an opaque beginning, as ``path:line: text``."""
    tests: int = 0
    long_names: list[str] = field(default_factory=list)

    @property
    def code_lines(self) -> int:
        """Lines that are no import, docstring, comment or blank line."""
        others = self.import_lines + self.docstring_lines + self.comment_lines + self.blank_lines
        return self.lines - others

    def add(self, path: Path) -> None:
        """Count a module."""
        name = str(path.relative_to(ROOT))
        text = path.read_text("utf-8")
        lines = text.splitlines()
        tree = ast.parse(text)
        imports: set[int] = set()
        docstrings: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._add_test(node.name, f"{name}:{node.lineno}")
        for line, end, words in docstrings_of(tree):
            docstrings.update(range(line, end + 1))
            if OPAQUE.match(words):
                self.opaque.append(f"{name}:{line}: {words.splitlines()[0]}")
        with tokenize.open(path) as source:
            comments = {
                token.start[0]
                for token in tokenize.generate_tokens(source.readline)
                if token.type == tokenize.COMMENT and token.line.strip().startswith("#")
            }
        self.modules += 1
        self.short_modules += len(lines) < SHORT
        self.lines += len(lines)
        self.import_lines += len(imports)
        self.docstring_lines += len(docstrings)
        self.comment_lines += len(comments - docstrings)
        self.blank_lines += sum(
            not line.strip() and number not in docstrings for number, line in enumerate(lines, 1)
        )
        self.longest = max(self.longest, (len(lines), name))

    def _add_test(self, name: str, place: str) -> None:
        if name.startswith("test_"):
            self.tests += 1
            if len(name) > LONG_NAME:
                self.long_names.append(f"{place}: {name}")


def docstrings_of(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """(first line, last line, text) of each docstring, those below assignments included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for index, statement in enumerate(body):
            is_docstring = isinstance(node, Documented) and index == 0
            is_below = index > 0 and isinstance(body[index - 1], ast.Assign | ast.AnnAssign)
            if (is_docstring or is_below) and isinstance(statement, ast.Expr):
                value = statement.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    words = value.value.strip()
                    yield statement.lineno, statement.end_lineno or statement.lineno, words


def modules_of(*folders: str) -> Iterator[Path]:
    """Python modules below folders of the repository; links are not followed."""
    for folder in folders:
        yield from sorted(
            path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts
        )


def weigh(*folders: str, under: str = "") -> Weight:
    """The weight of the modules below these folders whose paths begin with *under*."""
    weight = Weight()
    for path in modules_of(*folders):
        if str(path.relative_to(ROOT)).startswith(under):
            weight.add(path)
    return weight


def sample(seed: int) -> Iterator[str]:
    """Yield 60 docstrings and 25 names of tests, for a reader who has not seen the code."""
    documented: list[str] = []
    for path in modules_of(*PRODUCT):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)):
                documented.append(f"{getattr(node, 'name', 'module')}:\n{text}\n")
    names = [
        node.name
        for path in modules_of("tests")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]
    choice = random.Random(seed)
    yield from choice.sample(documented, 60)
    yield from choice.sample(names, 25)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--show", choices=["docstrings", "tests"], help="list what to rewrite")
    parser.add_argument("--under", default="", help="with --show: only paths that begin so")
    parser.add_argument("--sample", type=int, metavar="SEED", help="print what to read blind")
    options = parser.parse_args()
    if options.sample is not None:
        print("\n".join(sample(options.sample)))
        return 0
    if options.show == "docstrings":
        print("\n".join(weigh(*PRODUCT, under=options.under).opaque))
        return 0
    if options.show == "tests":
        print("\n".join(weigh("tests", under=options.under).long_names))
        return 0
    product, tests = weigh(*PRODUCT), weigh("tests")
    seconds = float(LAST_TEST.read_text()) if LAST_TEST.exists() else None
    rows: list[tuple[str, float | None, float | None]] = [
        ("product: lines", product.lines, 125_000),
        ("product: lines of code", product.code_lines, None),
        ("product: lines of imports", product.import_lines, None),
        ("product: lines of docstrings", product.docstring_lines, None),
        ("product: modules", product.modules, 650),
        (f"product: modules below {SHORT} lines", product.short_modules, 80),
        (f"product: lines of {product.longest[1]}, the longest", product.longest[0], 900),
        ("product: docstrings with an opaque beginning", len(product.opaque), 100),
        ("tests: lines", tests.lines, 110_000),
        ("tests: test functions", tests.tests, None),
        (f"tests: names above {LONG_NAME} characters", len(tests.long_names), 0),
        ("make test: seconds of the last run", seconds, 720),
    ]
    missed = False
    for name, value, goal in rows:
        shown = "not run yet" if value is None else f"{value:,.0f}"
        is_missed = value is not None and goal is not None and value > goal
        missed |= is_missed
        aim = "" if goal is None else f"   goal {goal:,.0f}{'   MISSED' if is_missed else ''}"
        print(f"{name:64}{shown:>12}{aim}")
    return int(missed and options.check)


if __name__ == "__main__":
    sys.exit(main())
