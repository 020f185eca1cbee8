"""How long records wait for others on their way to another task: as the program says, or else as
the cluster does."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.client.stream_job import stream_job
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.scheduler.graph.job_graph import JobVertex
from tests.actors.task_process.process_under_test import ProcessUnderTest


def doubling(timeout: int | None) -> JobVertex:
    """Reads one vertex, and is read by one.

    Args:
        timeout: that the program sets, in milliseconds.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    if timeout is not None:
        env.set_buffer_timeout(timeout)
    numbers = env.from_collection([1]).rebalance().map(lambda number: 2 * number).name("doubles")
    numbers.rebalance().map(lambda number: number).print()
    graph = env._stream_graph(None, clear=False, is_on_cluster=True)
    (vertex,) = (vertex for vertex in stream_job(graph).vertices if vertex.name == "doubles")
    return vertex


@pytest.mark.parametrize(
    ("of_cluster", "of_program", "seconds"),
    [
        (None, None, 0.1),
        ("2 s", None, 2.0),
        ("never", None, None),
        ("2 s", 100, 0.1),
        ("never", 0, 0.0),
        ("2 s", -1, None),
    ],
)
async def test_buffer_timeout_is_that_of_the_program_or_else_of_the_cluster(
    tmp_path: Path, of_cluster: str | None, of_program: int | None, seconds: float | None
) -> None:
    options = {} if of_cluster is None else {"execution.buffer-timeout.interval": of_cluster}
    async with ProcessUnderTest(tmp_path, doubling(of_program), options=options) as process:
        await process.run()
        (result,) = process.result_partitions()
        assert result.buffer_timeout == seconds
