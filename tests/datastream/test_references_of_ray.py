"""What of Ray's a program cannot hand over: it is refused by name, wherever it hides."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest
import ray

from flinkray.core import cloud_pickle
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.functions import MapFunction
from flinkray.streaming.errors import StreamError
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.user_code import UserCodeError, dump_function, load_function

pytestmark = pytest.mark.usefixtures("ray_cluster")
"""Ray is there before the cluster whose threads have to end, by whichever test they are needed."""


def reference() -> ray.ObjectRef[Any]:
    return ray.ObjectRef.from_random()


@dataclass
class Holder:
    held: Any


def functions() -> dict[str, Any]:
    kept = reference()
    hidden = Holder([{"deep": (kept,)}])

    def inner() -> Any:
        return hidden

    def outer(value: Any) -> Any:
        return inner()

    def with_default(value: Any, default: Any = hidden) -> Any:
        return default

    return {
        "captured": lambda value: kept,
        "container": lambda value: hidden,
        "closure over a closure": outer,
        "default": with_default,
        "partial": functools.partial(lambda held, value: held, hidden),
        "method": Holder(kept).__eq__,
    }


@pytest.mark.parametrize("kind", sorted(functions()))
def test_object_reference_in_a_function_of_a_stage_is_refused(kind: str) -> None:
    with pytest.raises(UserCodeError, match=r"ObjectRef is a reference.*ray\.get\(\)"):
        dump_function(functions()[kind])


@pytest.mark.parametrize("kind", sorted(functions()))
def test_object_reference_in_a_stream_function_is_refused_at_submission(
    kind: str, cluster: ThreadedCluster
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.from_sequence(1, 3).map(functions()[kind]).print()
    with pytest.raises(StreamError, match=r"'Map'.*ObjectRef is a reference"):
        env.execute()


class Keeping(MapFunction[Any, Any]):
    def __init__(self) -> None:
        self.kept = {"a": [reference()]}

    def map(self, value: Any) -> Any:
        return value


def test_object_reference_in_an_attribute_is_refused_at_submission(
    cluster: ThreadedCluster,
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.from_sequence(1, 3).map(Keeping()).print()
    with pytest.raises(StreamError, match=r"'Map'.*ObjectRef is a reference"):
        env.execute()


def test_object_reference_in_a_record_is_refused() -> None:
    with pytest.raises(Exception, match="ObjectRef is a reference"):
        cloud_pickle.dumps([("key", Holder(reference()))])


def test_functions_without_object_references_are_sent_and_called() -> None:
    added = 4
    assert load_function(dump_function(lambda value: value + added))(3) == 7


class _Adder:
    def add(self, a: int, b: int) -> int:
        return a + b


@pytest.mark.ray
def test_functions_that_use_ray_actors_or_tasks_can_be_sent(ray_cluster: None) -> None:
    kind: Any = ray.remote(num_cpus=0)(_Adder)
    actor = kind.remote()
    method = actor.add
    function: Any = ray.remote(num_cpus=0)(lambda a, b: a * b)

    def use(value: int) -> Any:
        return ray.get(
            [actor.add.remote(1, value), method.remote(2, value), function.remote(3, value)]
        )

    try:
        assert load_function(dump_function(use))(5) == [6, 7, 15]
    finally:
        ray.kill(actor)
