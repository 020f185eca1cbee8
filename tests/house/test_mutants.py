"""tools/mutants makes the changes that it says, and finds out which of them tests notice."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from tools.mutants.__main__ import Results, choose, equivalents, mutants_below
from tools.mutants.live_code import LiveFunctions
from tools.mutants.operators import Mutant, apply, mutants_of
from tools.mutants.reached import Statements
from tools.mutants.session import Verdict


def changed(body: str) -> list[str]:
    """What each mutant of a function with that body reads, in short."""
    source = "def f(a, b):\n" + textwrap.indent(body, "    ")
    texts: list[str] = []
    for mutant in mutants_of("m.py", source):
        tree = ast.parse(source)
        apply(tree, mutant)
        compile(tree, "m.py", "exec")
        texts.append(" ".join(ast.unparse(tree).split()).removeprefix("def f(a, b): "))
    return texts


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", ["return None", "return a <= b"]),
        ("return ()", []),
        ("return a is b", ["return None", "return a is not b"]),
        ("x = a and b and c", ["x = b and c", "x = a and c", "x = a and b"]),
        ("x = not a", ["x = a"]),
        ("x = a if b else 0", ["x = a", "x = 0", "x = a if b else 1"]),
        ("a += b", ["a -= b", "pass"]),
        ("a.b = b", ["pass"]),
        ("x = b", []),
        ("a(b)", ["pass"]),
        ("x = max(a)", ["x = min(a)"]),
        ("x = sorted(a, key=b)", ["x = a"]),
        ("x = sorted(a)", []),
        ("x = zip(a, b, strict=True)", []),
        ("x = 1000", ["x = 2000"]),
        ("x = a[:b]", ["x = a[:]"]),
        ("x = [y for y in a if y]", ["x = [y for y in a]"]),
        ("raise ValueError(a + 1)", ["pass"]),
        ("if a(b):\n    return", ["if not a(b): return", "if a(b): pass"]),
        ("for x in a:\n    continue", ["for x in a: break", "for x in a: pass"]),
        (
            "try:\n    x = a\nexcept KeyError:\n    x = b",
            ["try: x = a except KeyError: raise"],
        ),
        (
            "match a:\n    case b.c:\n        x = a\n    case _:\n        x = b",
            ["match a: case _: x = b", "match a: case b.c: x = a"],
        ),
        ('"""Says."""\nassert a\nlogger.info("%s", a)\nx = "text" + a', []),
        ("a._story.add(1, b)", []),
        ("def g(c: int = 1) -> None:\n    a(c)", ["def g(c: int=1) -> None: pass"]),
    ],
)  # fmt: skip
def test_mutants_of_a_function_are_those_expected_for_its_statements(
    body: str, expected: list[str]
) -> None:
    assert changed(body) == expected


def test_equal_mutants_of_a_function_have_different_names() -> None:
    names = [mutant.name for mutant in mutants_of("m.py", "def f(a):\n    a()\n    a()\n")]
    assert names == ["m.py f: `a()` → `pass`", "m.py f: `a()` → `pass` (2)"]


class Shop:
    """What is held in ways that hide a function: by a property, by `super()`, in a function."""

    def __init__(self, price: int) -> None:
        super().__init__()
        self._price = price

    @property
    def price(self) -> int:
        return self._price + 1

    def prices(self, count: int) -> list[int]:
        def price(number: int) -> int:
            return self._price * number

        return [price(number) for number in range(count)]


SOURCE = Path(__file__).read_text(encoding="utf-8")


def exchange(mutant: Mutant) -> int:
    tree = ast.parse(SOURCE)
    apply(tree, mutant)
    return LiveFunctions({__file__}).exchange(__file__, tree, frozenset({mutant.function}))


@pytest.mark.parametrize(
    ("name", "price", "prices"),
    [
        ("Shop.price: `self._price + 1` → `self._price - 1`", 4, [0, 5]),
        ("Shop.prices: `self._price * number` → `self._price + number`", 6, [5, 6]),
        ("Shop.__init__: `super().__init__()` → `pass`", 6, [0, 5]),
    ],
)
def test_existing_objects_run_mutated_code_until_the_original_is_restored(
    name: str, price: int, prices: list[int]
) -> None:
    shop = Shop(5)
    mutant = next(m for m in mutants_of("here.py", SOURCE) if m.name == f"here.py {name}")
    try:
        assert exchange(mutant) == 1
        assert (shop.price, Shop(5).prices(2)) == (price, prices)
    finally:
        LiveFunctions({__file__}).exchange(__file__, ast.parse(SOURCE))
    assert (shop.price, shop.prices(2)) == (6, [0, 5])


def test_statements_reached_by_a_call_are_recorded() -> None:
    source = (
        "def f(a):\n    if a:\n        return g(1)\n    return g(2)\n\ndef g(a):\n    return a\n"
    )
    statements = Statements({"m.py": source})
    names: dict[str, object] = {}
    exec(compile(statements.noting["m.py"], "m.py", "exec"), names)
    mutants = {mutant.line: mutant for mutant in mutants_of("m.py", source)}
    function = names["f"]
    assert callable(function)
    function(False)
    reached = set(statements.reached())
    by_line = {n: statements.around("m.py", mutant.path) for n, mutant in mutants.items()}
    assert {line for line, number in by_line.items() if number in reached} == {2, 4, 7}


def test_surviving_mutant_is_run_again_with_new_tests_and_any_mutant_of_changed_code(
    tmp_path: Path,
) -> None:
    one, other, *_ = mutants_of("m.py", "def f(a):\n    a()\n    del a\n")
    results = Results(tmp_path / "results")
    results.add(one, Verdict(False, "no test fails", "tests"))
    results.add(other, Verdict(True, "test_f", "tests"))
    again = Results(tmp_path / "results")
    assert [again.is_known(one, tests) for tests in ("tests", "more tests")] == [True, False]
    assert [again.is_known(other, tests) for tests in ("tests", "more tests")] == [True, True]
    edited = mutants_of("m.py", "def f(a):\n    a()\n    del a\n    return 1\n")
    assert not any(again.is_known(mutant, "tests") for mutant in edited[:2])


def test_sample_of_mutants_covers_each_folder_and_is_equal_for_equal_seeds() -> None:
    mutants = mutants_below(["scheduler/slots", "scheduler/graph"])
    sample = choose(mutants, 10, 1)
    assert [m.module.split("/")[1] for m in sample] == ["graph"] * 10 + ["slots"] * 10
    assert sample == choose(mutants, 10, 1) != choose(mutants, 10, 2)


def test_every_mutant_listed_as_equivalent_has_a_reason() -> None:
    assert [name for name, reason in equivalents().items() if not reason.strip()] == []
