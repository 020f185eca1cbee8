"""How the folders inside a package import each other: read from the source, as the packages are.

A *room* is what lies directly in a package: a folder, or a module beside the folders.  The rules:

- No module imports itself through others, also not inside a function. Modules of one folder may
  name each other for type checkers.
- Rooms of a package do not import each other in a circle, and in ``actors`` and ``scheduler`` an
  arrow runs to a lower floor only (:data:`FLOORS`).
- A folder is entered by its doors: what ``__all__`` of its ``__init__`` names.  Other modules of it
  are imported in the folder alone.
- The folders of processes (:data:`PROCESSES`) import nothing of each other; a process that starts
  another one names its endpoint, in a string.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.house.import_arrows import Source, Use, Violation, read_package

FLOORS: dict[str, tuple[frozenset[str], ...]] = {
    "scheduler": (
        frozenset({"graph"}),
        frozenset({"shared"}),
        frozenset({"reports"}),
        frozenset({"checkpoints", "execution", "resources", "slots", "task_slots"}),
        frozenset({"job"}),
        frozenset({"elastic"}),
    ),
    "actors": (
        frozenset({"gateways"}),
        frozenset({"shared"}),
        frozenset({"coordinators", "dispatcher", "resource_manager", "slot_pool"})
        | frozenset({"stream_coordinator", "task_executor", "task_process"}),
        frozenset({"job_master"}),
    ),
}
"""Lowest first.  A folder imports lower floors, and nothing of its own floor."""

PROCESSES = frozenset({"dispatcher", "job_master", "resource_manager", "slot_pool"}) | frozenset(
    {"stream_coordinator", "task_executor", "task_process"}
)
"""Folders of ``actors`` that are each a process."""

WITH_ROOMS = ("actors", "rpc", "scheduler", "streaming")
"""The packages whose folders have doors."""


def check_floors(root: Path) -> list[Violation]:
    """Every broken rule in the package ``root/flinkray``."""
    sources = read_package(root)
    violations = [*_circles_of_modules(sources), *_circles_of_rooms(sources)]
    for module, source in sources.items():
        for use in source.uses:
            for rule in _broken_by(module, use, sources):
                violations.append(Violation(source.path, use.line, rule))
    violations += _folders_without_doors(sources)
    return sorted(set(violations))


def circles(sources: dict[str, Source]) -> list[frozenset[str]]:
    """Modules that import each other, directly or around; one set for each circle."""
    return [frozenset(found) for found in _components(_edges(sources))]


def _edges(sources: dict[str, Source]) -> dict[str, set[str]]:
    """Which module imports which; of a name in a module the module is meant."""
    return {
        module: {
            use.module
            for use in source.uses
            if use.module in sources
            and use.module != module
            and not use.is_by_name
            and not (use.is_for_types and _folder(use.module) == _folder(module))
            and not _is_only_the_way(use, source.uses, sources)
        }
        for module, source in sources.items()
    }


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def _is_only_the_way(use: Use, uses: Iterable[Use], sources: dict[str, Source]) -> bool:
    """Whether *use* is the folder of ``from folder import module``."""
    names = [u.module for u in uses if u.line == use.line and u.module != use.module]
    inside = [name for name in names if name.startswith(f"{use.module}.")]
    return bool(inside) and all(name in sources for name in inside)


def _circles_of_modules(sources: dict[str, Source]) -> Iterator[Violation]:
    for circle in circles(sources):
        names = sorted(circle)
        rule = f"modules import each other: {', '.join(names)}"
        yield Violation(sources[names[0]].path, 1, rule)


def _circles_of_rooms(sources: dict[str, Source]) -> Iterator[Violation]:
    edges: dict[str, set[str]] = {}
    for module, targets in _edges(sources).items():
        room = _room_of(module) if _package_of(module) in WITH_ROOMS else ""
        others = {_room_of(t) for t in targets if _package_of(t) == _package_of(module)}
        if room:
            edges.setdefault(room, set()).update(others - {room, ""})
    for circle in _components(edges):
        rooms = sorted(circle)
        path = next(s.path for m, s in sources.items() if _room_of(m) == rooms[0])
        yield Violation(path, 1, f"folders import each other: {', '.join(rooms)}")


def _broken_by(module: str, use: Use, sources: dict[str, Source]) -> Iterator[str]:
    package, target_package = _package_of(module), _package_of(use.module)
    room, target = _room_name(module), _room_name(use.module)
    if package == target_package and room and target and room != target and not use.is_by_name:
        if package == "actors" and {room, target} <= PROCESSES:
            yield f"the process {room} imports {use.module}, which is the process {target}'s own"
        floors = FLOORS.get(package, ())
        floor, target_floor = _floor(floors, room), _floor(floors, target)
        if floors and floor is None:
            yield f"flinkray.{package}.{room} is on no floor: add it to FLOORS in tests/house"
        elif floor is not None and target_floor is not None and floor <= target_floor:
            yield f"flinkray.{package}.{room} imports {target}, which is not on a lower floor"
    folder = f"flinkray.{target_package}.{target}"
    parts = use.module.split(".")
    if (
        target_package in WITH_ROOMS
        and package != "testing"
        and (package != target_package or room != target)
        and folder in sources
        and sources[folder].is_package
        and len(parts) > 3
        and f"{folder}.{parts[3]}" in sources
        and parts[3] not in _doors(sources[folder])
    ):
        yield f"{module} imports {use.module}, which is no door of {folder}"


def _folders_without_doors(sources: dict[str, Source]) -> Iterator[Violation]:
    for module, source in sources.items():
        if source.is_package and _room_name(module) and _package_of(module) in WITH_ROOMS:
            doors = _doors(source)
            if module.count(".") == 2 and not doors:
                yield Violation(source.path, 1, f"{module} names no doors in __all__")


def _doors(source: Source) -> frozenset[str]:
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return frozenset(names)
    return frozenset()


def _floor(floors: tuple[frozenset[str], ...], room: str) -> int | None:
    return next((i for i, floor in enumerate(floors) if room in floor), None)


def _package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "flinkray" and len(parts) > 1 else ""


def _room_name(module: str) -> str:
    parts = module.split(".")
    return parts[2] if parts[0] == "flinkray" and len(parts) > 2 else ""


def _room_of(module: str) -> str:
    """``flinkray.package.room``; empty for the package's own ``__init__``."""
    return ".".join(module.split(".")[:3]) if _room_name(module) else ""


def _components(edges: dict[str, set[str]]) -> list[set[str]]:
    """Sets of nodes that reach each other (Tarjan); none of a single node."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in sorted(edges.get(node, ())):
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            component = set()
            while node not in component:
                component.add(stack.pop())
            if len(component) > 1:
                found.append(component)

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found
