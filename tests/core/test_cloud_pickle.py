"""Functions travel with the names of their files, whichever cloudpickle is installed, and classes
with their slots."""

from __future__ import annotations

import enum
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from flinkray.core import cloud_pickle


def written(value: object) -> bytes:
    file = io.BytesIO()
    cloud_pickle.dump(value, file)
    return file.getvalue()


@pytest.mark.parametrize("dumps", [cloud_pickle.dumps, written])
def test_unpickled_code_keeps_the_name_of_its_source_file(dumps: Callable[[object], bytes]) -> None:
    """cloudpickle 3.1.3 replaces the name with "<dynamic-code>"."""

    class Local:
        def method(self) -> Any:
            return lambda: 1

    function = pickle.loads(dumps(lambda: (n for n in (1, 2))))
    method = pickle.loads(dumps(Local())).method

    inner = [function(), method()]
    codes = [function.__code__, inner[0].gi_code, method.__code__, inner[1].__code__]
    assert {code.co_filename for code in codes} == {__file__}
    assert [code.co_name for code in codes] == ["<lambda>", "<genexpr>", "method", "<lambda>"]
    assert list(inner[0]) == [1, 2]


def test_pickling_keeps_a_constant_that_looks_like_the_file_name_of_dynamic_code() -> None:
    function = pickle.loads(cloud_pickle.dumps(lambda: "<dynamic-code>"))
    assert function() == "<dynamic-code>"


def test_pickling_passes_pickle_buffers_out_of_band() -> None:
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.PickleBuffer(b"x" * 100)
    data = cloud_pickle.dumps([content, lambda: 1], 5, buffers.append)
    loaded, function = pickle.loads(data, buffers=buffers)
    assert (bytes(loaded), function()) == (b"x" * 100, 1)


ELSEWHERE = """
import pickle, sys
from flinkray.core import cloud_pickle

values = pickle.loads(sys.stdin.buffer.read())
for value in values:
    value.there = 1
    try:
        value.elsewhere = 1
    except AttributeError:
        continue
    raise AssertionError(f"{type(value)} has no slots any more")
sys.stdout.buffer.write(cloud_pickle.dumps(values))
"""


def with_slots() -> list[Any]:
    class Plain:
        __slots__ = ("there",)

    class One:
        __slots__ = "there"

    class Base:
        __slots__ = ("_Base__private", "__weakref__")

    class Empty:
        __slots__ = ()

    class Derived(Base, Empty):
        __slots__ = ("there",)

    @dataclass(slots=True)
    class Data:
        there: int = 0
        other: str = "default"

    class Meta(type):
        """Has a say in making them."""

    class OfMeta(metaclass=Meta):
        __slots__ = ("there",)

    return [Plain(), One(), Derived(), Data(), OfMeta()]


def test_objects_with_slots_can_be_pickled_to_another_process_and_back() -> None:
    """The other process gave the objects a dictionary, and could then not pickle them again."""
    values = with_slots()
    answer = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=cloud_pickle.dumps(values),
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr.decode()
    back = pickle.loads(answer.stdout)
    assert [type(value) for value in back] == [type(value) for value in values]
    assert [value.there for value in back] == [1] * len(values)
    assert back[3].other == "default"


def test_subclass_without_slots_keeps_the_slots_of_its_base_when_pickled() -> None:
    class Lean:
        __slots__ = ("a",)
        a: int

    class Wide(Lean):
        def shown(self) -> str:
            return f"{self.a} {self.__dict__}"

    value: Any = Wide()
    value.a, value.other = 1, 2
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).shown())"
    shown = subprocess.run(
        [sys.executable, "-c", program],
        input=cloud_pickle.dumps(value),
        capture_output=True,
        check=False,
    )
    assert shown.stdout == b"1 {'other': 2}\n", shown.stderr.decode()


NAMES_ELSEWHERE = """
import pickle, sys

kinds = pickle.loads(sys.stdin.buffer.read())
print([{name: member.value for name, member in kind.__members__.items()} for kind in kinds])
print([[member.name for member in kind] for kind in kinds], kinds[0].same is kinds[0].one)
print(repr(kinds[1].both), kinds[0]["same"].told(), kinds[0].other(2))
"""


def test_enumerations_keep_aliases_and_composed_flags_in_another_process() -> None:
    """cloudpickle defines aliases and composed flags a second time, which Python 3.11 refuses."""

    class Number(enum.Enum):
        one = 1
        two = 2
        same = 1  # noqa: PIE796 - an alias

        def told(self) -> str:
            return f"it is {self.value}"

        @classmethod
        def other(cls, value: int) -> Number:
            return cls(3 - value)

    class Side(enum.Flag):
        left = enum.auto()
        right = enum.auto()
        both = left | right
        none = 0

    here = [Number, Side]
    answer = subprocess.run(
        [sys.executable, "-c", NAMES_ELSEWHERE],
        input=cloud_pickle.dumps(here),
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr.decode()
    names, members, odd = answer.stdout.decode().splitlines()
    assert eval(names) == [{n: m.value for n, m in kind.__members__.items()} for kind in here]
    assert members == f"{[[m.name for m in kind] for kind in here]} True"
    assert odd == f"{Side.both!r} it is 1 {Number.one}"


def test_named_tuples_of_the_program_are_read_in_another_process() -> None:
    class Pair(NamedTuple):
        one: int
        other: int

    class Keyed(Pair):
        __slots__ = ()

    pickled = cloud_pickle.dumps([Pair(1, 2), Keyed(3, 4)])
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()))"
    shown = subprocess.run(
        [sys.executable, "-c", program], input=pickled, capture_output=True, check=False
    )
    assert shown.stdout == b"[Pair(one=1, other=2), Keyed(one=3, other=4)]\n", shown.stderr.decode()
