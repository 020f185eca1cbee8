"""Which package may import which: read from the source, without importing anything.

A dependency is any ``import`` in the file, at whatever depth (inside a function or under
``TYPE_CHECKING`` too), and any string ``"flinkray.package.module:name"``, by which processes are
told what to load. Relative imports are resolved.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.house.sources import parsed

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"core", "kernels"}),
    frozenset({"blob", "checkpoint", "file_results", "state", "ha", "rpc", "user_code"}),
    frozenset({"streaming", "scheduler", "state_reader"}),
    frozenset({"spark"}),
    frozenset({"actors"}),
    frozenset({"local_cluster"}),
    frozenset({"__main__", "client", "datastream", "errors", "rest"}),
)
"""Lowest first. A package imports its own layer (without cycles) and the layers below."""

PURE = frozenset({"core", "scheduler"})
"""Decisions without a loop, a clock, randomness or a process: the same events, the same actions."""

IMPURE_MODULES = frozenset(
    {"asyncio", "concurrent", "multiprocessing", "pyspark", "random", "ray", "raydp", "secrets"}
    | {"selectors", "signal", "socket", "subprocess", "threading", "time"}
)

IMPURE_CALLS = frozenset(
    {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "os.times", "uuid.uuid1"}
    | {"uuid.uuid4"}
)

_BY_NAME = re.compile(r"(flinkray(?:\.\w+)+):\w+(?:\.\w+)*")


@dataclass(frozen=True, order=True)
class Violation:
    """One broken rule; *path* is relative to the tree's root."""

    path: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}"


@dataclass(frozen=True)
class Use:
    """A module, or a name in one, that a module mentions."""

    module: str
    line: int
    is_by_name: bool = False
    """In a string, for a process that is told what to load."""
    is_for_types: bool = False
    """Under ``TYPE_CHECKING``."""


@dataclass(frozen=True)
class Source:
    """A module of the package."""

    path: str
    """Relative to the tree's root."""
    tree: ast.Module
    uses: tuple[Use, ...]

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")


def read_package(root: Path) -> dict[str, Source]:
    """The modules of ``root/flinkray`` by name (links to folders are followed)."""
    package = root / "flinkray"
    sources: dict[str, Source] = {}
    for path in _sources(package):
        module = _module_name(path, package)
        tree = parsed(path.read_text(encoding="utf-8"))
        uses = tuple(_uses(tree, module, is_package=path.name == "__init__.py"))
        sources[module] = Source(str(path.relative_to(root)), tree, uses)
    return sources


def check_shipped(root: Path) -> list[Violation]:
    """Every broken rule in the package ``root/flinkray``."""
    violations: list[Violation] = []
    sources = read_package(root)
    for module, source in sources.items():
        for line, rule in _check(module, source.uses):
            violations.append(Violation(source.path, line, rule))
        if _package_of(module) in PURE:
            violations += [
                Violation(source.path, line, rule) for line, rule in _impure_calls(source.tree)
            ]
    uses = {module: source.uses for module, source in sources.items()}
    names = {module: source.path for module, source in sources.items()}
    violations += _cycles(uses, names)
    violations += _impure_through_others(uses, names)
    return sorted(set(violations))


def _sources(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry)
        elif entry.suffix == ".py":
            yield entry


def _module_name(path: Path, package: Path) -> str:
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package_of(module: str) -> str:
    """The first name below flinkray; empty for flinkray's own modules and for foreign ones."""
    parts = module.split(".")
    return parts[1] if parts[0] == "flinkray" and len(parts) > 1 else ""


def _uses(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[Use]:
    nodes = list(ast.walk(tree))
    for_types = {
        line
        for node in nodes
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for each in node.body
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }
    for use in _all_uses(nodes, module, is_package):
        yield replace(use, is_for_types=use.line in for_types)


def _all_uses(nodes: list[ast.AST], module: str, is_package: bool) -> Iterator[Use]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Use(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parents = module.split(".")
                kept = parents[: len(parents) - node.level + (1 if is_package else 0)]
                origin = ".".join([*kept, *filter(None, [node.module])])
            yield Use(origin, node.lineno)
            # `from flinkray import rpc` names a module; for a class the longer name is harmless
            yield from (Use(f"{origin}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            by_name = _BY_NAME.fullmatch(node.value)
            if by_name:
                yield Use(by_name[1], node.lineno, is_by_name=True)


def _layer(package: str) -> int | None:
    return next((i for i, layer in enumerate(LAYERS) if package in layer), None)


def _check(module: str, uses: tuple[Use, ...]) -> Iterator[tuple[int, str]]:
    package = _package_of(module)
    layer = _layer(package)
    if package and layer is None and package != "testing":
        yield 1, f"flinkray.{package} has no layer: add it to LAYERS in tests/house"
    for use in uses:
        top = use.module.split(".")[0]
        target = _package_of(use.module)
        if package in PURE and top in IMPURE_MODULES:
            yield use.line, f"flinkray.{package} is pure and imports {top}"
        if target == "testing" and package != "testing":
            yield use.line, f"{module} ships and imports flinkray.testing"
        target_layer = _layer(target)
        if layer is not None and target_layer is not None and target_layer > layer:
            yield use.line, f"flinkray.{package} imports flinkray.{target}, which is above it"


def _impure_calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ".".join(ast.unparse(node.func).split(".")[-2:])
            if called in IMPURE_CALLS:
                yield node.lineno, f"a pure module calls {called}"
            if node.func.attr == "generate" and not (node.args or node.keywords):
                yield node.lineno, f"a pure module calls {called} without a source of randomness"


def _cycles(uses: dict[str, tuple[Use, ...]], names: dict[str, str]) -> Iterator[Violation]:
    """Two packages of one layer that import each other, directly or around."""
    edges: dict[str, set[str]] = {}
    first: dict[tuple[str, str], tuple[str, int]] = {}
    for module, module_uses in uses.items():
        package = _package_of(module)
        for use in module_uses:
            target = _package_of(use.module)
            same_layer = _layer(package) is not None and _layer(package) == _layer(target)
            if same_layer and package != target:
                edges.setdefault(package, set()).add(target)
                first.setdefault((package, target), (names[module], use.line))
    for (package, target), (path, line) in first.items():
        if package in _reachable(target, edges):
            rule = f"flinkray.{package} and flinkray.{target} import each other"
            yield Violation(path, line, rule)


def _impure_through_others(
    uses: dict[str, tuple[Use, ...]], names: dict[str, str]
) -> Iterator[Violation]:
    """Pure modules that reach an impure one through flinkray's modules."""
    edges = {
        module: {use.module for use in module_uses if use.module in uses and use.module != module}
        for module, module_uses in uses.items()
    }
    tainted = {
        module: use.module.split(".")[0]
        for module, module_uses in uses.items()
        for use in module_uses
        if use.module.split(".")[0] in IMPURE_MODULES
    }
    for module in uses:
        if _package_of(module) in PURE:
            for reached in sorted(_reachable(module, edges) & tainted.keys() - {module}):
                rule = f"{module} is pure and reaches {tainted[reached]} through {reached}"
                yield Violation(names[module], 1, rule)


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    pending = [start]
    while pending:
        for following in edges.get(pending.pop(), set()) - seen:
            seen.add(following)
            pending.append(following)
    return seen
