"""Options of a program, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flinkray.core.config_option import duration


class Configuration:
    """Options by name, as text.

    >>> config = Configuration()
    >>> config.set_string("pipeline.name", "demo").set_integer("parallelism.default", 2).to_dict()
    {'pipeline.name': 'demo', 'parallelism.default': '2'}
    """

    def __init__(self, other: Configuration | None = None) -> None:
        self._values: dict[str, Any] = {} if other is None else dict(other._values)

    @staticmethod
    def of(values: Mapping[str, str]) -> Configuration:
        """With these options."""
        configuration = Configuration()
        configuration._values.update(values)
        return configuration

    def set_string(self, key: str, value: str) -> Configuration:
        self._values[key] = value
        return self

    set = set_string

    def set_integer(self, key: str, value: int) -> Configuration:
        self._values[key] = value
        return self

    def set_boolean(self, key: str, value: bool) -> Configuration:
        self._values[key] = value
        return self

    def set_float(self, key: str, value: float) -> Configuration:
        self._values[key] = value
        return self

    def get_string(self, key: str, default_value: str) -> str:
        return _text(self._values[key]) if key in self._values else default_value

    get = get_string

    def get_integer(self, key: str, default_value: int) -> int:
        return int(self._values.get(key, default_value))

    def get_boolean(self, key: str, default_value: bool) -> bool:
        value = self._values.get(key, default_value)
        return value if isinstance(value, bool) else str(value).lower() == "true"

    def get_float(self, key: str, default_value: float) -> float:
        return float(self._values.get(key, default_value))

    def contains_key(self, key: str) -> bool:
        return key in self._values

    def remove_config(self, key: str) -> bool:
        """Whether it was there."""
        return self._values.pop(key, None) is not None

    def add_all(self, other: Configuration, prefix: str = "") -> Configuration:
        self._values.update({prefix + key: value for key, value in other._values.items()})
        return self

    add_configuration = add_all

    def to_dict(self) -> dict[str, str]:
        return {key: _text(value) for key, value in self._values.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(frozenset(self.to_dict().items()))

    def __repr__(self) -> str:
        return f"Configuration({self.to_dict()})"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_milliseconds(value: object) -> int:
    """``1 min``, ``200 ms``, or a number of milliseconds, as a configuration has it."""
    text = str(value).strip()
    if text.lstrip("-").isdigit():
        return int(text)
    return round(float(duration(positive=False).parse(text)) * 1000)
