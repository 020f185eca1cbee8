"""Whatever user code raises or does to its event loop ends its job alone, with the cause.

Here task processes have the threads that real ones have; what code does to a process of its own is
in ``tests/system/test_hostile_jobs.py``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from flinkray.client.stream_job import stream_job
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.common.io import InitializeOnMaster, OutputFormat
from flinkray.scheduler.graph.job_graph import NoRestart
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.function_jobs import python_job
from flinkray.testing.mini_cluster import MiniCluster
from tests.actors.conftest import QUICK

SECONDS = 10
"""Within which a job has ended, on a machine under load."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        yield cluster


async def result_of(cluster: MiniCluster, code: Callable[[Any], Any]) -> JobResult:
    job_id = await cluster.submit(python_job(code, restart_strategy=NoRestart()))
    return await asyncio.wait_for(cluster.result(job_id), SECONDS)


async def assert_fails_alone(cluster: MiniCluster, code: Callable[[Any], Any], cause: str) -> None:
    async def finishes(context: Any) -> None:
        await asyncio.sleep(0)

    result = await result_of(cluster, code)
    executor = cluster.processes("TaskExecutor")
    assert result.status is JobStatus.FAILED
    assert cause in str(result.failure)
    assert (await result_of(cluster, finishes)).status is JobStatus.FINISHED
    assert cluster.processes("TaskExecutor") == executor


class OwnError(BaseException):
    pass


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class TextOfItsOwn(str):
    __slots__ = ()


class OddTextError(Exception):
    def __str__(self) -> str:
        return TextOfItsOwn("in a text of its own")


class Unpicklable(Exception):  # noqa: N818
    def __reduce__(self) -> Any:
        raise OwnError


def recursing() -> None:
    recursing()


def raising(error: Callable[[], BaseException]) -> Callable[[], None]:
    def raises() -> None:
        raise error()

    return raises


RAISED: dict[str, tuple[Callable[[], None], str]] = {
    "half a surrogate pair": (
        raising(lambda: ValueError("\udc80 wrong")),
        r"ValueError: \udc80 wrong",
    ),
    "SystemExit": (raising(lambda: SystemExit(3)), "SystemExit: 3"),
    "KeyboardInterrupt": (raising(lambda: KeyboardInterrupt()), "KeyboardInterrupt"),
    "GeneratorExit": (raising(lambda: GeneratorExit("out")), "GeneratorExit: out"),
    "StopIteration": (raising(lambda: StopIteration(1)), "StopIteration"),
    "StopAsyncIteration": (raising(lambda: StopAsyncIteration(1)), "StopAsyncIteration: 1"),
    "asyncio's CancelledError": (raising(lambda: asyncio.CancelledError()), "has cancelled itself"),
    "futures' CancelledError": (
        raising(lambda: concurrent.futures.CancelledError()),
        "has cancelled itself",
    ),
    "an error of its own": (raising(lambda: OwnError("mine")), "OwnError: mine"),
    "what cannot be shown": (
        raising(lambda: UnprintableError()),
        "its __str__ raised KeyboardInterrupt",
    ),
    "a text of its own": (raising(lambda: OddTextError()), "in a text of its own"),
    "what cannot be pickled": (raising(lambda: Unpicklable("x", object())), "Unpicklable: ('x', "),
    "a huge text": (
        raising(lambda: ValueError("\U0001f600" * 10_000_000)),
        "it has 10000000 characters",
    ),
    "endless recursion": (recursing, "RecursionError"),
}


@pytest.mark.parametrize(("raises", "cause"), RAISED.values(), ids=RAISED)
async def test_any_error_of_a_user_function_fails_its_job_with_the_cause(
    cluster: MiniCluster, raises: Callable[[], None], cause: str
) -> None:
    def code(context: Any) -> None:
        raises()

    await assert_fails_alone(cluster, code, cause)


@pytest.mark.parametrize(
    ("error", "cause"),
    [(SystemExit(5), "SystemExit: 5"), (ValueError("\udc80"), r"\udc80"), (OwnError(), "OwnError")],
)
async def test_code_that_cannot_be_loaded_fails_its_job_with_the_cause(
    cluster: MiniCluster, error: BaseException, cause: str
) -> None:
    def load() -> None:
        raise error

    class Bomb:
        def __reduce__(self) -> Any:
            return load, ()

    bomb = Bomb()

    async def never(context: Any) -> None:
        assert bomb is not None

    await assert_fails_alone(cluster, never, cause)


FORMATS_RAISE = ["half a surrogate pair", "SystemExit", "an error of its own", "GeneratorExit"]


@pytest.mark.parametrize("raised", [*FORMATS_RAISE, "what cannot be shown", "a huge text"])
async def test_any_error_of_an_output_format_fails_its_job_with_the_cause(
    cluster: MiniCluster, raised: str
) -> None:
    raises, cause = RAISED[raised]

    class Format(OutputFormat[int], InitializeOnMaster):
        def open(self, task_number: int, num_tasks: int) -> None:
            """Never called."""

        def write_record(self, record: int) -> None:
            """Never called."""

        def initialize_global(self, parallelism: int) -> None:
            raises()

    env = StreamExecutionEnvironment()
    env.from_collection([1]).write_using_output_format(Format()).name("n")
    job_id = await cluster.submit(stream_job(env.get_stream_graph()))
    result = await asyncio.wait_for(cluster.result(job_id), SECONDS)
    assert result.status is JobStatus.FAILED
    assert "in operator 'output format of n'" in str(result.failure)
    assert cause.partition(": ")[2] in str(result.failure)
