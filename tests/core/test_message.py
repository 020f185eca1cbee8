"""The registry of message types."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

import flinkray
from flinkray.core.errors import RemoteError
from flinkray.core.ids import JobID
from flinkray.core.message import lookup, message, register, registered_types, type_name
from flinkray.rpc import RpcGateway


@message
class Known:
    """A message."""

    number: int


def test_message_type_is_found_by_its_name_and_its_instances_are_frozen() -> None:
    assert type_name(Known) == f"{__name__}:Known"
    assert lookup(type_name(Known)) is Known
    assert Known in registered_types()
    with pytest.raises(FrozenInstanceError):
        Known(1).number = 2  # type: ignore[misc]
    assert not hasattr(Known(1), "__dict__")


def test_class_decorated_as_dataclass_is_refused_as_message_type() -> None:
    with pytest.raises(
        TypeError, match=r"Twice is a dataclass already: .* leave out its @dataclass"
    ):

        @message
        @dataclass(frozen=True)
        class Twice:
            number: int


def test_lookup_of_an_unknown_type_name_returns_none() -> None:
    assert lookup("nowhere:Nothing") is None


def test_second_message_type_with_a_registered_name_is_refused() -> None:
    double: Any = type("Known", (), {"__module__": __name__})
    with pytest.raises(TypeError, match="Known is already registered"):
        register(double)
    assert register(Known) is Known


def test_flinkray_types_are_registered_by_class_name_without_their_module() -> None:
    assert type_name(JobID) == "JobID"
    assert lookup("JobID") is JobID
    assert type_name(RemoteError) == "RemoteError"
    moved: Any = type("JobMoved", (), {"__module__": "flinkray.core.ids"})
    register(moved)
    assert lookup("JobMoved") is moved
    double: Any = type("JobMoved", (), {"__module__": "flinkray.somewhere.else"})
    with pytest.raises(TypeError, match="JobMoved is already registered"):
        register(double)


def test_all_message_types_and_gateways_of_flinkray_have_different_names() -> None:
    """A duplicate message type is refused when its module is loaded; this test loads all
    modules."""
    for module in pkgutil.walk_packages(flinkray.__path__, "flinkray."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = [cls for cls in registered_types() if cls.__module__.startswith("flinkray.")]
    gateways = [cls for cls in _subclasses(RpcGateway) if cls.__module__.startswith("flinkray.")]
    assert len(ours) > 150
    assert len(gateways) > 8
    shared = Counter(map(type_name, {*ours, *gateways}))
    assert {name: number for name, number in shared.items() if number > 1} == {}


def _subclasses(cls: type[RpcGateway]) -> Iterator[type[RpcGateway]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
