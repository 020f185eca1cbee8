"""Mutants of a module: small changes of its functions, each of which some test should notice.

Left alone are strings (what people read), annotations, assertions, and what runs when the module is
imported: constants, fields of dataclasses, defaults of parameters.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Path: TypeAlias = tuple[str | int, ...]
"""From a module to a node of it: names of fields, and indexes where a field is a list."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
CALLS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "popleft": "pop",
    "appendleft": "append",
    "bisect_left": "bisect_right",
    "bisect_right": "bisect_left",
}
UNWRAPPED = ("sorted", "reversed")
"""Calls of which the first argument remains: `sorted` if it has a key, else the order was chosen
only to be the same in each run."""
MUCH = 100
"""Numbers from here on are doubled; one more of a thousand is no difference."""


@dataclass(frozen=True)
class Mutant:
    module: str
    """The path of its file in the repository."""
    function: str
    """The outermost function that it is in, as `Class.method`."""
    line: int
    change: str
    """What becomes of what; a second one alike in the function ends in `(2)`."""
    function_text: str
    """The source of the function, by which a mutant of earlier code is told apart."""
    path: Path
    replacement: ast.AST | None
    """None: the node is taken out of its list."""

    @property
    def name(self) -> str:
        """What lists call it, which holds as long as that piece of the function is not changed."""
        return f"{self.module} {self.function}: {self.change}"


def mutants_of(module: str, source: str) -> list[Mutant]:
    """All mutants of the functions of a module, in the order of its text."""
    tree = ast.parse(source)
    found: list[Mutant] = []
    for qualified, path, function in functions_of(tree):
        text = ast.get_source_segment(source, function) or ""
        alike: Counter[str] = Counter()
        for change in _changes_of_body(function, path):
            described = change.described()
            alike[described] += 1
            if alike[described] > 1:
                described = f"{described} ({alike[described]})"
            found.append(
                Mutant(
                    module,
                    qualified,
                    change.line,
                    described,
                    text,
                    change.path,
                    change.replacement,
                )
            )
    return found


def functions_of(tree: ast.Module) -> Iterator[tuple[str, Path, FunctionNode]]:
    """The outermost functions of a module and of its classes: name, path and node."""

    def within(body: list[ast.stmt], names: str, path: Path) -> Iterator[Any]:
        for index, node in enumerate(body):
            here = (*path, index)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield names + node.name, here, node
            elif isinstance(node, ast.ClassDef):
                yield from within(node.body, f"{names}{node.name}.", (*here, "body"))
            elif isinstance(node, ast.If | ast.Try | ast.With):
                yield from within(node.body, names, (*here, "body"))

    yield from within(tree.body, "", ("body",))


def node_at(tree: ast.AST, path: Path) -> Any:
    node: Any = tree
    for step in path:
        node = node[step] if isinstance(step, int) else getattr(node, step)
    return node


def apply(tree: ast.Module, mutant: Mutant) -> None:
    """Change *tree*, which is that of the mutant's module."""
    *parent, last = mutant.path
    holder = node_at(tree, tuple(parent))
    original = node_at(holder, (last,))
    if mutant.replacement is None:
        del holder[last]
    else:
        ast.copy_location(mutant.replacement, original)
        ast.fix_missing_locations(mutant.replacement)
        if isinstance(last, int):
            holder[last] = mutant.replacement
        else:
            setattr(holder, last, mutant.replacement)


@dataclass(frozen=True)
class _Change:
    path: Path
    original: ast.AST
    replacement: ast.AST | None
    context: ast.AST
    """The smallest piece of source to show it in."""
    line: int

    def described(self) -> str:
        before = _in_short(self.original)
        after = "nothing" if self.replacement is None else _in_short(self.replacement)
        text = f"`{before}` → `{after}`"
        if self.context is not self.original:
            text += f" in `{_in_short(self.context)}`"
        return text


def _in_short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 120 else f"{text[:119]}…"


def _changes_of_body(function: FunctionNode, path: Path) -> Iterator[_Change]:
    for index, statement in enumerate(function.body):
        here = (*path, "body", index)
        for change in _changes(statement, here, statement):
            last = index == len(function.body) - 1 and change.path == here
            if not (last and isinstance(change.original, ast.Return) and _is_pass(change)):
                yield change


def _is_pass(change: _Change) -> bool:
    return isinstance(change.replacement, ast.Pass)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_for_people(node: ast.AST) -> bool:
    """Docstrings, lines of a log or story, and assertions, which hold without being looked at."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Expr(value=ast.Constant()):
            return True
        case ast.keyword(arg="strict"):
            return True
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name)))
        ):
            return name.lower().strip("_") in ("log", "logger", "story")
    return False


def _changes(node: ast.AST, path: Path, parent: ast.AST) -> Iterator[_Change]:
    """Of *node* and what is below it."""
    if _is_for_people(node):
        return
    line = getattr(node, "lineno", getattr(parent, "lineno", 0))
    for change_path, original, replacement, context in _own_changes(node, path):
        if isinstance(original, ast.Constant):
            context = parent
        yield _Change(change_path, original, replacement, context or original, line)
    if isinstance(node, ast.Raise):
        return  # what it says is for people
    for field, value in ast.iter_fields(node):
        if field in _LEFT_ALONE or isinstance(value, ast.arguments):
            continue
        if isinstance(value, ast.AST):
            yield from _changes(value, (*path, field), node)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _changes(item, (*path, field, index), node)


_LEFT_ALONE = ("annotation", "returns", "decorator_list")
_Own: TypeAlias = tuple[Path, ast.AST, "ast.AST | None", "ast.AST | None"]


def _own_changes(node: ast.AST, path: Path) -> Iterator[_Own]:
    for kind, changes in _OPERATORS:
        if isinstance(node, kind):
            yield from changes(node, path)


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _compare(node: ast.Compare, path: Path) -> Iterator[_Own]:
    for index, operator in enumerate(node.ops):
        ops = list(node.ops)
        ops[index] = COMPARISONS[type(operator)]()
        yield path, node, ast.Compare(node.left, ops, node.comparators), None


def _boolean(node: ast.BoolOp, path: Path) -> Iterator[_Own]:
    """Each operand is left out once: a condition that nobody tests is found so."""
    for index in range(len(node.values)):
        rest = node.values[:index] + node.values[index + 1 :]
        yield path, node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest), None


def _not(node: ast.UnaryOp, path: Path) -> Iterator[_Own]:
    if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield path, node, node.operand, None


def _condition(node: ast.If | ast.While, path: Path) -> Iterator[_Own]:
    simple = isinstance(node.test, ast.Compare | ast.BoolOp) or (
        isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
    )
    of_several = isinstance(node, ast.If) and isinstance(node.test, ast.BoolOp)
    if of_several or not (simple or isinstance(node.test, ast.Constant)):
        yield (*path, "test"), node.test, _negated(node.test), None


def _choice(node: ast.IfExp, path: Path) -> Iterator[_Own]:
    yield path, node, node.body, None
    yield path, node, node.orelse, None


def _arithmetic(node: ast.BinOp, path: Path) -> Iterator[_Own]:
    if isinstance(node.op, ast.Mod | ast.Add) and (_is_text(node.left) or _is_text(node.right)):
        return
    other = ARITHMETIC.get(type(node.op))
    if other is not None:
        yield path, node, ast.BinOp(node.left, other(), node.right), None


def _augmented(node: ast.AugAssign, path: Path) -> Iterator[_Own]:
    other = ARITHMETIC.get(type(node.op))
    if other is not None:
        yield path, node, ast.AugAssign(node.target, other(), node.value), None
    yield path, node, ast.Pass(), None


def _constant(node: ast.Constant, path: Path) -> Iterator[_Own]:
    value = node.value
    if isinstance(value, bool):
        yield path, node, ast.Constant(not value), None
    elif isinstance(value, int | float):
        yield path, node, ast.Constant(value * 2 if value >= MUCH else value + 1), None


def _assignment(node: ast.Assign | ast.AnnAssign, path: Path) -> Iterator[_Own]:
    """Stores into objects are left out; without a local name its reader would merely raise."""
    if node.value is None:
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
        yield path, node, ast.Pass(), None


def _dropped(node: ast.stmt, path: Path) -> Iterator[_Own]:
    yield path, node, ast.Pass(), None


def _returned(node: ast.Return, path: Path) -> Iterator[_Own]:
    """An empty collection is left: who reads it takes None for the same, or fails anyhow."""
    if node.value is None:
        yield path, node, ast.Pass(), None
    elif isinstance(node.value, ast.Tuple | ast.List) and not node.value.elts:
        return
    elif not isinstance(node.value, ast.Constant):
        yield path, node, ast.Return(ast.Constant(None)), None
    elif node.value.value is None:
        yield path, node, ast.Pass(), None


def _continued(node: ast.Continue, path: Path) -> Iterator[_Own]:
    yield path, node, ast.Break(), None
    yield path, node, ast.Pass(), None


def _call(node: ast.Call, path: Path) -> Iterator[_Own]:
    name: str | None = None
    if isinstance(node.func, ast.Name):
        name = node.func.id
        if name in UNWRAPPED and node.args and (name != "sorted" or node.keywords):
            yield path, node, node.args[0], None
        if name in CALLS:
            other: ast.expr = ast.Name(CALLS[name], ast.Load())
            yield (*path, "func"), node.func, other, node
    elif isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
        other = ast.Attribute(node.func.value, CALLS[node.func.attr], ast.Load())
        yield (*path, "func"), node.func, other, node


def _slice(node: ast.Slice, path: Path) -> Iterator[_Own]:
    if node.lower is not None:
        yield path, node, ast.Slice(None, node.upper, node.step), None
    if node.upper is not None:
        yield path, node, ast.Slice(node.lower, None, node.step), None


def _filters(node: ast.comprehension, path: Path) -> Iterator[_Own]:
    for index, condition in enumerate(node.ifs):
        yield (*path, "ifs", index), condition, None, node


def _handler(node: ast.ExceptHandler, path: Path) -> Iterator[_Own]:
    """What is caught is not."""
    reraised = all(isinstance(statement, ast.Raise) for statement in node.body)
    if not reraised:
        replacement = ast.ExceptHandler(node.type, None, [ast.Raise(None, None)])
        yield path, node, replacement, None


def _finally(node: ast.Try, path: Path) -> Iterator[_Own]:
    if node.finalbody:
        body: list[ast.stmt] = [ast.Pass()]
        replacement = ast.Try(node.body, node.handlers, node.orelse, body)
        yield path, node, replacement, None


def _cases(node: ast.Match, path: Path) -> Iterator[_Own]:
    if len(node.cases) > 1:
        for index, case in enumerate(node.cases):
            yield (*path, "cases", index), case, None, None


_OPERATORS: tuple[tuple[Any, Callable[[Any, Path], Iterator[_Own]]], ...] = (
    (ast.Compare, _compare),
    (ast.BoolOp, _boolean),
    (ast.UnaryOp, _not),
    (ast.If | ast.While, _condition),
    (ast.IfExp, _choice),
    (ast.BinOp, _arithmetic),
    (ast.AugAssign, _augmented),
    (ast.Constant, _constant),
    (ast.Assign | ast.AnnAssign, _assignment),
    (ast.Expr | ast.Raise | ast.Delete | ast.Break, _dropped),
    (ast.Return, _returned),
    (ast.Continue, _continued),
    (ast.Call, _call),
    (ast.Slice, _slice),
    (ast.comprehension, _filters),
    (ast.ExceptHandler, _handler),
    (ast.Try, _finally),
    (ast.Match, _cases),
)
