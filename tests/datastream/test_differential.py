"""Random programs have the same results in one process, with one subtask and with four, on a
cluster, and by a naive evaluator.  Some of them run on Ray in tests/system/test_stream_jobs.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from tests.datastream.conftest import TWO_SLOTS
from tests.datastream.differential import (
    Program,
    any_program,
    assert_as_expected,
    build,
    build_together,
    expected,
    seeded_programs,
)
from tests.datastream.threads import none_left


def results(program: Program, env: StreamExecutionEnvironment) -> list[str]:
    with build(program, env).execute_and_collect() as values:
        return sorted(map(repr, values))


def local(parallelism: int) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_programs_give_the_expected_results_in_one_process(data: st.DataObject) -> None:
    program = any_program(lambda options: data.draw(st.sampled_from(list(options))))
    by_hand = expected(program)
    assert results(program, local(1)) == by_hand, str(program)
    assert results(program, local(4)) == by_hand, str(program)
    if program.keeps_the_rules_of_reuse:
        env = local(2)
        env.get_config().enable_object_reuse()
        assert results(program, env) == by_hand, str(program)


@pytest.fixture(scope="module", params=[1, 2], ids=["one slot", "two slots"])
def slots(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ThreadedCluster, int]]:
    """A cluster whose TaskExecutors have one slot each: two of them exchange bytes."""
    storage = str(tmp_path_factory.mktemp("cluster"))
    one_each = {**TWO_SLOTS, "taskmanager.numberOfTaskSlots": "1"}
    with none_left(), threaded_cluster(storage, configuration=one_each) as cluster:
        yield cluster, request.param


PROGRAMS_OF_A_JOB = 20


@pytest.mark.parametrize("first", range(0, 200, PROGRAMS_OF_A_JOB))
def test_random_programs_give_the_expected_results_on_a_cluster(
    slots: tuple[ThreadedCluster, int], first: int
) -> None:
    cluster, parallelism = slots
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.set_parallelism(parallelism)
    programs = seeded_programs(range(first, first + PROGRAMS_OF_A_JOB))
    with build_together(programs, env).execute_and_collect() as values:
        assert_as_expected(programs, values)
