"""Defines ReadableConfig, which holds immutable values for the options of
:mod:`flinkray.core.options`.

Values are checked when a :class:`ReadableConfig` is made. A configuration is sent as texts
(:meth:`ReadableConfig.to_dict`), from which an equal configuration can be made.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flinkray.core import client_options, high_availability_options, job_options, options
from flinkray.core.config_option import ConfigOption
from flinkray.core.durations import format_duration
from flinkray.core.errors import ConfigurationError
from flinkray.core.program_settings import PROGRAM_KEYS

T = TypeVar("T")

_SIMILAR = 0.6
"""Similarity, from 0 to 1, from which on an error text suggests a known key."""


class WrittenConfiguration(Protocol):
    """Interface that a ``flinkray.Configuration`` and a ReadableConfig share: it returns the
    explicitly set options."""

    def to_dict(self) -> dict[str, str]: ...


def values_of(
    configuration: WrittenConfiguration | Mapping[str, T] | None,
) -> dict[str, T | str]:
    """Return the options of *configuration* by key; empty if it is None. Raises ConfigurationError:
    *configuration* is neither a configuration nor a mapping."""
    if configuration is None:
        return {}
    if isinstance(configuration, Mapping):
        return dict(configuration)
    if not hasattr(configuration, "to_dict"):
        raise ConfigurationError(
            f"a configuration is a flinkray.Configuration or a mapping, got {configuration!r}"
        )
    return {**configuration.to_dict()}


class ReadableConfig:
    """Immutable values of options; options that are not set have their defaults.
    *values* are texts or of any type that the option accepts. Raises ConfigurationError: a key is
    unknown (the text names a similar key, if there is one), or a value is not accepted."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values: dict[str, Any] = {
            key: find_option(key).read(value)
            for key, value in sorted(_by_first_name(values or {}).items())
        }
        _check_heartbeats(self)
        _check_back_off(self)
        _check_high_availability(self)

    def get(self, option: ConfigOption[T]) -> T:
        """Return the value of *option*, or its default if the option is not set."""
        value: T = self._values.get(option.key, option.default)
        return value

    def is_set(self, option: ConfigOption[Any]) -> bool:
        return option.key in self._values

    def with_values(self, values: Mapping[str, object]) -> ReadableConfig:
        """Return a copy in which *values* are added, or replace the values of their options."""
        return ReadableConfig({**self.to_dict(), **_by_first_name(values)})

    def of_job(self) -> dict[str, str]:
        """Return those explicitly set values that a job may override for itself (job options), as
        texts."""
        return {k: v for k, v in self.to_dict().items() if k in job_options.JOB_OPTIONS}

    def to_dict(self) -> dict[str, str]:
        """Return the explicitly set values as texts, for messages."""
        return {key: find_option(key).type.format(value) for key, value in self._values.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadableConfig) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        shown = {
            k: "(secret)" if find_option(k).is_secret else v for k, v in self.to_dict().items()
        }
        return f"ReadableConfig({shown})"


def _by_first_name(values: Mapping[str, object]) -> dict[str, object]:
    """Return *values* with each alias replaced by the key that its option has today.
    If an option is given by its key and by an alias, the value under the key counts."""
    aliases = options.ALIASES
    others = {aliases[key]: value for key, value in values.items() if key in aliases}
    return others | {key: value for key, value in values.items() if key not in aliases}


def _check_heartbeats(configuration: ReadableConfig) -> None:
    for interval, timeout in (
        (options.HEARTBEAT_INTERVAL, options.HEARTBEAT_TIMEOUT),
        (client_options.CLIENT_HEARTBEAT_INTERVAL, client_options.CLIENT_HEARTBEAT_TIMEOUT),
    ):
        if configuration.get(timeout) <= configuration.get(interval):
            raise ConfigurationError(
                f"{timeout.key} ({format_duration(configuration.get(timeout))}) must be longer "
                f"than {interval.key} ({format_duration(configuration.get(interval))})"
            )


def _check_back_off(configuration: ReadableConfig) -> None:
    shortest = job_options.RESTART_EXPONENTIAL_INITIAL_BACKOFF
    longest = job_options.RESTART_EXPONENTIAL_MAX_BACKOFF
    if configuration.get(longest) < configuration.get(shortest):
        raise ConfigurationError(
            f"{longest.key} ({format_duration(configuration.get(longest))}) must not be shorter "
            f"than {shortest.key} ({format_duration(configuration.get(shortest))})"
        )


def _check_high_availability(configuration: ReadableConfig) -> None:
    kind = high_availability_options.HIGH_AVAILABILITY_TYPE
    quorum = high_availability_options.ZOOKEEPER_QUORUM
    standbys = high_availability_options.STANDBY_MASTERS
    if configuration.get(kind) == "zookeeper":
        if configuration.get(quorum) is None:
            raise ConfigurationError(
                f"{kind.key} is zookeeper, and {quorum.key} is not set: set it to the servers, as "
                "host:port,host:port"
            )
    elif configuration.get(standbys):
        raise ConfigurationError(
            f"{standbys.key} ({configuration.get(standbys)}) needs {kind.key} zookeeper: nothing "
            "else decides which of several masters leads"
        )


def find_option(key: str) -> ConfigOption[Any]:
    """Return the option with this key. Raises ConfigurationError: the key is unknown, or belongs to
    the settings of a stream program, which clusters and jobs do not have. The text names the place
    for a program's key, or a known key that is similar."""
    option = options.OPTIONS.get(key)
    if option is None:
        if key in PROGRAM_KEYS:
            raise ConfigurationError(
                f"the configuration key {key!r} is set for a program: give it to "
                "StreamExecutionEnvironment.get_execution_environment, or to "
                "flinkray run --python -D"
            )
        near = difflib.get_close_matches(key, options.OPTIONS, n=1, cutoff=_SIMILAR)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise ConfigurationError(f"unknown configuration key {key!r}{hint}")
    return option


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return ReadableConfig for its former name, which old pickles contain."""
        if name == "Configuration":
            return ReadableConfig
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
