"""Calls take PyFlink's parameters, by the same names, in the same order, with the same defaults."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from flinkray.datastream import (
    KeyedBroadcastProcessFunction,
    Row,
    RowKind,
)
from flinkray.datastream.connectors import kafka
from tests.datastream.pyflink_signatures import PYFLINK
from tests.datastream.test_api_surface import SURFACE

OWNERS = {owner.__name__: owner for owner, _ in SURFACE} | {
    name: getattr(kafka, name) for name in kafka.__all__
}
CALLS = [(owner, name) for owner, calls in PYFLINK.items() for name in calls]
SPELT_OTHERWISE = {
    # Several descriptors: one and the others there.
    ("DataStream", "broadcast"),
}


def parameters_of(function: Any) -> list[tuple[str, str]]:
    """Names and defaults, as they are written in ``PYFLINK``."""
    kinds = inspect.Parameter
    prefixes: dict[Any, str] = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        default = "" if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        found.append((prefixes.get(parameter.kind, "") + parameter.name, default))
    return found


def listed(text: str) -> list[tuple[str, str]]:
    split = [entry.partition("=") for entry in text.split(", ") if entry]
    return [(name, default) for name, _, default in split]


@pytest.mark.parametrize(("owner", "name"), CALLS, ids=lambda value: value)
def test_each_call_has_the_parameters_of_pyflink(owner: str, name: str) -> None:
    if (owner, name) in SPELT_OTHERWISE:
        return
    expected = listed(PYFLINK[owner][name])
    actual = parameters_of(getattr(OWNERS[owner], name))
    assert [entry[0] for entry in actual[: len(expected)]] == [entry[0] for entry in expected]
    for (_, mine), (_, theirs) in zip(actual, expected, strict=False):
        if not re.match(r"<|.*\bobject at", theirs):
            assert mine == theirs
    # What there is beyond PyFlink must not be needed.
    assert all(default or name.startswith("*") for name, default in actual[len(expected) :])


def test_row_can_be_made_with_a_row_kind() -> None:
    row = Row.of_kind(RowKind.DELETE, "a", 1)
    assert (row.get_row_kind(), list(row)) == (RowKind.DELETE, ["a", 1])


def test_timer_context_of_broadcast_functions_has_the_names_of_pyflink() -> None:
    context = KeyedBroadcastProcessFunction.OnTimerContext
    assert {"get_current_key", "timer_service", "timestamp"} <= set(dir(context))
