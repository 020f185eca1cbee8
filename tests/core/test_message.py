"""The registry of message types."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from flinkray.core.message import lookup, message, register, registered_types, type_name


@message
class Known:
    """A message."""

    number: int


def test_a_message_is_found_under_its_name_and_cannot_be_changed() -> None:
    assert type_name(Known) == f"{__name__}:Known"
    assert lookup(type_name(Known)) is Known
    assert Known in registered_types()
    with pytest.raises(FrozenInstanceError):
        Known(1).number = 2  # type: ignore[misc]
    assert not hasattr(Known(1), "__dict__")


def test_an_unknown_name_is_not_found() -> None:
    assert lookup("nowhere:Nothing") is None


def test_a_second_type_of_the_same_name_is_refused() -> None:
    double: Any = type("Known", (), {"__module__": __name__})
    with pytest.raises(TypeError, match="Known is already registered"):
        register(double)
    assert register(Known) is Known
