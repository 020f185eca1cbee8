"""Options of a configuration are read and written as PyFlink does."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from flinkray.core.config import values_of
from flinkray.core.errors import ConfigurationError
from flinkray.datastream import (
    Configuration,
)


def test_option_set_as_text_is_read_as_number_or_boolean() -> None:
    config = Configuration.from_dict({"a": "7", "b": "TRUE", "c": "0.5"})
    config.set_bytearray("d", bytearray(b"\x00\xff"))
    assert (config.get_integer("a", 0), config.get_float("a", 0.0)) == (7, 7.0)
    assert (config.get_boolean("b", False), config.get_float("c", 0.0)) == (True, 0.5)
    assert config.get_bytearray("d", bytearray()) == bytearray(b"\x00\xff")
    assert config.get_integer("none", 3) == 3
    assert config.key_set() == {"a", "b", "c", "d"}
    told = {"before": "kept"}
    Configuration().add_all(config, "in.").add_all_to_dict(told)
    texts = {"in.a": "7", "in.b": "TRUE", "in.c": "0.5"}
    assert told == {"before": "kept", **texts, "in.d": bytearray(b"\x00\xff")}


def test_options_copied_into_a_dictionary_keep_their_types() -> None:
    config = Configuration().set_integer("a", 7).set_boolean("b", True).set_float("c", 0.5)
    told: dict[str, Any] = {}
    config.set_string("d", "9").add_all_to_dict(told)
    assert told == {"a": 7, "b": True, "c": 0.5, "d": "9"}
    assert {key: type(value) for key, value in told.items()}["b"] is bool
    assert str(config) == "{a=7, b=true, c=0.5, d=9}"


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda config: config.get_integer("key", 0), "key must be a whole number, got 'maybe'"),
        (lambda config: config.get_boolean("key", True), "key must be true or false, got 'maybe'"),
        (lambda config: config.get_float("key", 0.0), "key must be a number, got 'maybe'"),
        (
            lambda config: config.get_bytearray("key", bytearray()),
            "key must be bytes in Base64, got 'maybe'",
        ),
    ],
)
def test_option_of_another_type_is_refused_by_name(read: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        read(Configuration().set_string("key", "maybe"))


def test_list_option_is_parsed_from_semicolons_or_yaml() -> None:
    parse = Configuration.parse_list_value
    assert parse("- a\n- b") == parse("[a, 'b']") == parse("a; b;") == ["a", "b"]
    assert parse("") == parse(None) == []


@pytest.mark.parametrize("value", [None, ["a:1", "b:2"], {"a": 1}, object()])
def test_value_that_is_no_text_or_number_is_refused_by_name(value: Any) -> None:
    """``os.environ.get`` returns None for a variable that is not set."""
    told = r"the value of storage\.dir is a text, a"
    with pytest.raises(ConfigurationError, match=told):
        Configuration({"storage.dir": value})
    with pytest.raises(ConfigurationError, match=told):
        Configuration().set_string("storage.dir", value)
    with pytest.raises(ConfigurationError, match=told):
        Configuration.from_dict({"storage.dir": value})


def test_timedelta_becomes_a_duration_and_a_copy_has_its_own_values() -> None:
    written = Configuration({"heartbeat.timeout": timedelta(minutes=1)})
    assert written.to_dict() == {"heartbeat.timeout": "60 s"}
    copied = copy.copy(written)
    copied.set_string("heartbeat.timeout", "5 s")
    assert written.get_string("heartbeat.timeout", "") == "60 s"
    assert values_of(written) == {"heartbeat.timeout": "60 s"}
    with pytest.raises(ConfigurationError, match="a configuration is a flinkray"):
        values_of("abc")  # type: ignore[arg-type]
