"""Configuration: checked when it is made, immutable, and the same after it has travelled."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core import (
    client_options,
    high_availability_options,
    job_options,
    network_options,
    options,
    rest_options,
)
from flinkray.core.config import ReadableConfig
from flinkray.core.config_option import ConfigOption
from flinkray.core.errors import ConfigurationError
from flinkray.core.options import OPTIONS


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.key)
def test_each_default_is_a_value_that_its_own_option_accepts(option: ConfigOption[Any]) -> None:
    assert option.type.parse(option.type.format(option.default)) == option.default


def test_every_declared_option_is_in_the_table_of_options_once() -> None:
    declared = [
        value
        for topic in (
            options,
            high_availability_options,
            job_options,
            client_options,
            network_options,
            rest_options,
        )
        for _, value in inspect.getmembers(topic)
        if isinstance(value, ConfigOption)
    ]
    assert sorted(option.key for option in declared) == sorted(OPTIONS)


def test_configuration_page_of_the_docs_equals_the_table_of_options() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text() == options.reference_page(), (
        "write it anew: python -m flinkray.core.options > docs/configuration.md"
    )


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("heartbeat.intervall", "heartbeat.interval"),
        ("taskmanager.numberoftaskslots", "taskmanager.numberOfTaskSlots"),
        ("restart-strategy", "restart-strategy.type"),
    ],
)
def test_error_about_an_unknown_option_suggests_the_nearest_option(key: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ReadableConfig({key: "1"})
    assert repr(key) in str(caught.value)
    assert repr(nearest) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("heartbeat.interval", "10", "a duration above zero, for example 500 ms"),
        ("heartbeat.interval", 10, "a duration above zero"),
        ("heartbeat.interval", "0", "a duration above zero"),
        ("heartbeat.interval", "-1 s", "a duration above zero"),
        ("heartbeat.interval", timedelta(seconds=-1), "a duration above zero"),
        ("heartbeat.interval", "nan s", "a duration above zero"),
        ("resourcemanager.pending-report-delay", "6 s", "at most 5 s"),
        ("heartbeat.rpc-failure-threshold", -2, "an integer of at least -1"),
        ("heartbeat.rpc-failure-threshold", True, "an integer of at least -1"),
        ("heartbeat.rpc-failure-threshold", "2.5", "an integer of at least -1"),
        ("execution.checkpointing.dir", "file:here", "a directory path or a URI"),
        ("execution.checkpointing.dir", "/a\0b", "a directory path or a URI"),
        ("taskmanager.numberOfTaskSlots", "0", "an integer of at least 1"),
        ("taskmanager.numberOfTaskSlots", None, "an integer of at least 1"),
        ("taskmanager.cpu.cores", "nan", "a number above zero"),
        ("taskmanager.cpu.cores", "inf", "a number above zero"),
        ("taskmanager.cpu.cores", 0, "a number above zero"),
        ("taskmanager.memory", "1 parsec", "a memory size of at least 64m"),
        ("taskmanager.memory", "63m", "a memory size of at least 64m"),
        ("restart-strategy.type", "sometimes", "one of none, fixed-delay, failure-rate"),
        ("restart-strategy.exponential-delay.jitter-factor", "1.1", "a number from 0 to 1"),
        ("restart-strategy.exponential-delay.backoff-multiplier", "0.9", "a number of at least 1"),
        ("restart-strategy.exponential-delay.backoff-multiplier", "nan", "a number of at least 1"),
        ("restart-strategy.failure-rate.max-failures-per-interval", "0", "an integer of at least"),
        ("cluster.id", "my cluster", "1 to 64 letters"),
        ("cluster.id", "", "1 to 64 letters"),
        ("cluster.id", "line\n", "1 to 64 letters"),
        ("storage.dir", 7, "a directory path or a URI"),
        ("execution.shutdown-on-attached-exit", "yes", "true or false"),
        ("execution.shutdown-on-attached-exit", 1, "true or false"),
        ("execution.checkpointing.mode", "TWICE", "one of EXACTLY_ONCE, AT_LEAST_ONCE"),
        ("execution.checkpointing.mode", 1, "one of EXACTLY_ONCE, AT_LEAST_ONCE"),
        ("execution.checkpointing.data-inline-threshold", "1025k", "from 0b to 1m"),
        ("execution.checkpointing.data-inline-threshold", "-1b", "from 0b to 1m"),
    ],
)
def test_error_about_an_invalid_value_names_key_value_and_accepted_values(
    key: str, value: object, accepted: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ReadableConfig({key: value})
    for part in (key, repr(value), accepted):
        assert part in str(caught.value)


def test_heartbeat_timeout_that_does_not_exceed_the_interval_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"heartbeat\.timeout \(5 s\) .* \(10 s\)"):
        ReadableConfig({"heartbeat.timeout": "5 s"})
    shorter = ReadableConfig({"heartbeat.timeout": "5 s", "heartbeat.interval": "1 s"})
    with pytest.raises(ConfigurationError, match="heartbeat"):
        shorter.with_values({"heartbeat.interval": "5 s"})
    with pytest.raises(
        ConfigurationError,
        match=r"client\.heartbeat\.timeout \(10 s\) .* client\.heartbeat\.interval \(30 s\)",
    ):
        ReadableConfig({"client.heartbeat.timeout": "10 s"})


def test_maximum_restart_delay_that_is_below_the_initial_delay_is_refused() -> None:
    prefix = "restart-strategy.exponential-delay"
    with pytest.raises(ConfigurationError, match=rf"{prefix}.max-backoff \(60 s\) must not be"):
        ReadableConfig({f"{prefix}.initial-backoff": "61 s"})
    ReadableConfig({f"{prefix}.initial-backoff": "60 s"})


def test_configuration_of_a_job_contains_only_the_options_of_jobs() -> None:
    values = {"restart-strategy.type": "failurerate", "heartbeat.interval": "1 s"}
    assert ReadableConfig(values).of_job() == {"restart-strategy.type": "failure-rate"}


def test_old_name_of_an_option_is_accepted_but_its_current_name_wins() -> None:
    own, old = "execution.checkpointing.dir", "state.checkpoints.dir"
    assert ReadableConfig({old: "/a"}).to_dict() == {own: "/a"}
    assert ReadableConfig({old: "/a"}).of_job() == {own: "/a"}
    for values in ({own: "/b", old: "/a"}, {old: "/a", own: "/b"}):
        assert ReadableConfig(values).to_dict() == {own: "/b"}
    assert ReadableConfig({own: "/b"}).with_values({old: "/a"}).to_dict() == {own: "/a"}
    assert not {*options.ALIASES} & {*OPTIONS}
    assert len(options.ALIASES) == sum(len(option.aliases) for option in OPTIONS.values())


def test_flink_constant_in_lower_case_with_hyphens_is_accepted() -> None:
    key = "execution.checkpointing.mode"
    assert ReadableConfig({key: "at-least-once"}).to_dict() == {key: "AT_LEAST_ONCE"}


def test_changing_options_of_a_configuration_returns_a_changed_copy() -> None:
    first = ReadableConfig({"cluster.id": "a", "taskmanager.memory": "512m"})
    second = first.with_values({"cluster.id": "b"})
    assert first.get(options.CLUSTER_ID) == "a"
    assert second.get(options.CLUSTER_ID) == "b"
    assert second.get(options.TASK_EXECUTOR_MEMORY) == 512 * 2**20


def test_configurations_are_equal_whatever_the_order_of_their_values() -> None:
    one = ReadableConfig({"cluster.id": "a", "taskmanager.memory": "1024m"})
    other = ReadableConfig({"taskmanager.memory": 2**30, "cluster.id": "a"})
    assert one == other
    assert hash(one) == hash(other)
    assert one != ReadableConfig({"cluster.id": "a"})


_VALUES: dict[str, st.SearchStrategy[object]] = {
    "heartbeat.interval": st.timedeltas(
        min_value=timedelta(microseconds=1), max_value=timedelta(seconds=49)
    ),
    "slot.request.timeout": st.sampled_from(["1 ms", "0.1 s", "5 min"]),
    "taskmanager.cpu.cores": st.floats(min_value=1e-3, max_value=1e6),
    "taskmanager.memory": st.integers(min_value=64 * 2**20, max_value=2**50),
    "taskmanager.numberOfTaskSlots": st.integers(min_value=1, max_value=10_000),
    "restart-strategy.type": st.sampled_from(["none", "fixed-delay"]),
    "storage.dir": st.none() | st.from_regex(r"(?!file:)[^\0]*", fullmatch=True),
    "execution.shutdown-on-attached-exit": st.booleans() | st.sampled_from(["true", "False"]),
    "cluster.id": st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
}


@given(st.fixed_dictionaries({}, optional=_VALUES))
def test_configuration_is_equal_after_it_is_written_and_read_as_texts(
    values: dict[str, object],
) -> None:
    configuration = ReadableConfig(values)
    texts = configuration.to_dict()
    assert all(isinstance(text, str) for text in texts.values())
    assert ReadableConfig(texts) == configuration


@pytest.mark.parametrize(
    ("values", "way_out"),
    [
        ({"high-availability.type": "zookeeper"}, "high-availability.zookeeper.quorum is not set"),
        ({"cluster.standby-masters": 1}, "needs high-availability.type zookeeper"),
        ({"high-availability.type": "etcd"}, "one of standalone, zookeeper"),
        ({"high-availability.zookeeper.quorum": "zk1:2181 zk2"}, "further ones after commas"),
        ({"high-availability.zookeeper.path.root": "flinkray/"}, "the path of a znode"),
        ({"high-availability.zookeeper.path.root": "/flinkray/.."}, "the path of a znode"),
        ({"high-availability.zookeeper.path.root": "/./flinkray"}, "the path of a znode"),
        ({"high-availability.cluster-id": ".."}, "not '.' or '..'"),
        ({"high-availability.cluster-id": "."}, "not '.' or '..'"),
    ],
)
def test_impossible_settings_for_leader_election_are_refused(
    values: dict[str, object], way_out: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(way_out)):
        ReadableConfig(values)
