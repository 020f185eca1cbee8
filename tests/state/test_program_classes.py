"""State of classes of the program itself: each submission of it has others."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from typing import Any

import cloudpickle
import pytest

from flinkray.actors.shared.chain_code import ChainCode
from flinkray.state import MapStateDescriptor, StateMigrationError, ValueStateDescriptor
from flinkray.state.program_classes import class_named, unpickled
from flinkray.state.value_encoding import ValueDecoder, ValueEncoder, pack, unpack
from flinkray.streaming.program.chain_plan import ChainPlan
from flinkray.user_code import load_function
from tests.state.every_backend import make_backend, on_every_backend

PROGRAM = textwrap.dedent(
    """
    import dataclasses, enum, pickle, sys
    from typing import NamedTuple
    from flinkray.client.stream_job import stream_job
    from flinkray.core import cloud_pickle
    from flinkray.datastream import MapFunction, StreamExecutionEnvironment
    from flinkray.state.value_encoding import ValueEncoder, pack

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    class Shapes:
        @dataclasses.dataclass(frozen=True)
        class Point:
            x: int

    class Pair(NamedTuple):
        a: int

    class Plain:
        def __init__(self, a):
            self.a = a
        def __eq__(self, other):
            return type(other) is Plain and other.a == self.a
        def __hash__(self):
            return hash(self.a)
        def submission(self):
            return sys.argv[1]

    LARGE = bytes(1_000_000)

    class Function(MapFunction):
        def map(self, value):
            return value, LARGE

    def local(a):
        @dataclasses.dataclass(frozen=True)
        class Local:
            a: int
        return Local(a)

    def alone():
        class Alone(NamedTuple):
            a: int
        return Alone(1)

    ONE, OTHER = local(1), local(1)
    if __name__ == "__main__":
        values = Color.RED, Shapes.Point(1), Pair(1), Plain(1)
        env = StreamExecutionEnvironment.get_execution_environment()
        made = env.from_sequence(1, 9).map(lambda n: (values, ONE, OTHER)).map(Function())
        made = made.map(lambda value: value[0])
        made.key_by(lambda value: value[0][0]).map(lambda value: value).uid("keyed").print()
        code = [vertex.invokable.code for vertex in stream_job(env.get_stream_graph()).vertices]
        encoded = pack(ValueEncoder().encode(list(values)))
        by_value = [cloud_pickle.dumps([value]) for value in (*values, ONE, alone())]
        sys.stdout.buffer.write(pickle.dumps((code, encoded, by_value)))
    """
)


class Submission:
    """Of the program: the code of its vertices, and what it would store."""

    def __init__(self, name: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, name], capture_output=True, check=False, timeout=240
        )
        assert not done.returncode, done.stderr.decode()
        self.code, self.encoded, self.by_value = pickle.loads(done.stdout)

    def run(self) -> dict[str, Any]:
        """Have its last task run here; its classes by name.  Nothing in its functions names them,
        as they come from the task before."""
        chain = load_function(self.code[-1])
        assert isinstance(chain, ChainCode)
        plans: list[ChainPlan] = []
        chain(plans.append)
        names = ("Color", "Shapes.Point", "Pair", "Plain")
        return {name: class_named(f"__main__:{name}") for name in names}


@pytest.fixture(scope="module")
def first() -> Submission:
    return Submission("first")


@pytest.fixture(scope="module")
def second() -> Submission:
    return Submission("second")


@pytest.fixture(scope="module")
def unknown() -> Submission:
    """Of which nothing runs here."""
    return Submission("unknown")


def read(node: Any, exactly: bool = False) -> list[Any]:
    return ValueDecoder(exactly=exactly).decode([[], node])


def pickled(data: bytes) -> list[Any]:
    return [7, 1, data]


def test_values_of_an_earlier_submission_get_the_current_classes(
    first: Submission, second: Submission
) -> None:
    """Whether the process of the program or one of its tasks stored them."""
    was = first.run()
    stored = [was["Color"].RED, was["Shapes.Point"](1), was["Pair"](1), was["Plain"](1)]
    encoder = ValueEncoder()
    by_task = pack(encoder.encode(stored))
    assert encoder.pickled == {"__main__.Plain"}
    now = second.run()
    assert now["Color"] is not was["Color"]
    for data in (first.encoded, by_task):
        [column] = unpack(data)
        color, point, pair, _ = ValueDecoder(exactly=True).decode(column)
        assert color is now["Color"].RED
        assert (type(point), point) == (now["Shapes.Point"], now["Shapes.Point"](1))
        assert (type(pair), pair) == (now["Pair"], now["Pair"](1))


def test_data_of_a_function_is_not_sent_to_tasks_of_other_functions(first: Submission) -> None:
    before, after = first.code
    assert len(after) < 100_000 < 1_000_000 < len(before)


@on_every_backend
def test_keys_stored_by_another_submission_of_the_program_are_found(
    first: Submission, second: Submission
) -> None:
    def states(backend: Any, key: Any) -> tuple[Any, Any]:
        backend.context.key = key
        count = backend.state(ValueStateDescriptor("count"))
        return count, backend.state(MapStateDescriptor("map"))

    was, before = first.run(), make_backend()
    for key in (was["Color"].RED, was["Shapes.Point"](1)):
        count, entries = states(before, key)
        count.update(6)
        entries.put(was["Shapes.Point"](3), was["Color"].BLUE)
    snapshot = before.snapshot()
    now, after = second.run(), make_backend()
    after.restore([snapshot])
    for key in (now["Color"].RED, now["Shapes.Point"](1)):
        count, entries = states(after, key)
        assert count.value() == 6
        assert entries.get(now["Shapes.Point"](3)) is now["Color"].BLUE


def test_values_pickled_with_their_class_get_the_class_of_this_submission(
    unknown: Submission, second: Submission
) -> None:
    """Earlier versions stored values in this way, and so do types that only pickle covers. The
    stored class does not replace the current class."""
    now = second.run()
    method = now["Plain"].submission
    color, _, pair, plain, *_ = (read(pickled(data))[0] for data in unknown.by_value)
    assert color is now["Color"].RED
    assert type(pair) is now["Pair"]
    assert (type(plain), plain) == (now["Plain"], now["Plain"](1))
    assert now["Plain"].submission is method


def test_keys_of_an_ambiguously_named_class_are_refused_after_a_new_submission(
    unknown: Submission, second: Submission
) -> None:
    """The program has two classes with that name."""
    second.run()
    local = pickled(unknown.by_value[4])
    assert read(local)[0].a == 1
    refused = r"keys of __main__:Local, and this .*top"
    with pytest.raises(StateMigrationError, match=refused):
        read(local, exactly=True)
    with pytest.raises(StateMigrationError, match=refused):
        read([5, "dict", [1], local, [0, [1]]])


def test_keys_whose_equality_ignores_their_class_are_read_after_a_new_submission(
    unknown: Submission, second: Submission
) -> None:
    second.run()
    assert read(pickled(unknown.by_value[5]), exactly=True) == [(1,)]


def test_objects_stored_with_a_dict_in_place_of_slots_are_read() -> None:
    """Tasks stored them before flinkray corrected cloudpickle for classes with slots."""

    class Lean:
        __slots__ = ("a",)

        def __init__(self, a: Any) -> None:
            self.a = a

    sent = Lean([1])
    program = (
        "import pickle, sys, cloudpickle; value = pickle.loads(sys.stdin.buffer.read()); "
        "assert value.__dict__ == {'a': [1]}; sys.stdout.buffer.write(cloudpickle.dumps([value]))"
    )
    stored = subprocess.run(
        [sys.executable, "-c", program],
        input=cloudpickle.dumps(sent),
        capture_output=True,
        check=True,
    ).stdout
    (found,), _ = unpickled(stored)
    assert type(found) is Lean
    assert found.a == [1]
