"""The coordinator carries out each call of output formats once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from flinkray.actors.gateways.stream_coordinator import VertexCode
from flinkray.actors.stream_coordinator.global_formats import GlobalFormats
from flinkray.client.stream_job import stream_job
from flinkray.core.blobs import BlobKey
from flinkray.core.errors import FlinkRayError, RpcConnectionError
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.common.io import FinalizeOnMaster, InitializeOnMaster, OutputFormat
from flinkray.rpc import LocalRpcService
from flinkray.scheduler.job.coordinator_events import GlobalFormatsCall
from flinkray.streaming.operator_errors import OperatorError
from flinkray.testing.virtual_time import on_virtual_time

STORY: list[str] = []


@pytest.fixture(autouse=True)
def story() -> Iterator[None]:
    STORY.clear()
    yield
    STORY.clear()


def note(line: str) -> None:
    from tests.actors.stream_coordinator import test_global_formats

    test_global_formats.STORY.append(line)


class Noting(OutputFormat[int], InitializeOnMaster, FinalizeOnMaster):
    def __init__(self, name: str, fails: bool = False) -> None:
        self.name = name
        self.fails = fails

    def open(self, task_number: int, num_tasks: int) -> None:
        raise AssertionError("only tasks open it")

    def write_record(self, record: int) -> None:
        raise AssertionError("only tasks write")

    def initialize_global(self, parallelism: int) -> None:
        self.was_prepared = True
        note(f"prepare {self.name} {parallelism}")
        if self.fails:
            raise SystemExit("no such bucket")

    def finalize_global(self, parallelism: int) -> None:
        note(f"finish {self.name} {parallelism} {getattr(self, 'was_prepared', False)}")


class Coordinator:
    """The coordinator's part, of a program with two formats."""

    def __init__(self, fails: bool = False) -> None:
        env = StreamExecutionEnvironment().set_parallelism(2)
        stream = env.from_collection([1])
        for name in ("a", "b"):
            sink = stream.write_using_output_format(Noting(name, fails))
            sink.name(name).disable_chaining()
        stream.map(lambda value: value).print()
        vertices = stream_job(env.get_stream_graph()).vertices
        assert [v.name for v in vertices if v.has_global_formats] == ["a", "b"]
        self.vertices = [v for v in vertices if v.has_global_formats]
        self.error: Exception | None = None
        """Raised instead of the code."""
        self.failures: list[FlinkRayError] = []

        async def fetch(code: bytes | BlobKey, blob_server: str | None) -> bytes:
            if self.error is not None:
                raise self.error
            assert blob_server == "blobs"
            assert isinstance(code, bytes)
            return code

        codes = [VertexCode(v.vertex_id, "", v.name, v.invokable.code) for v in self.vertices]
        service = LocalRpcService("coordinator")
        self._formats = GlobalFormats(service, codes, fetch, self.failures.append)

    async def call(self, *, is_end: bool, restarts: int = 0) -> None:
        parallelism = tuple((vertex.vertex_id, 2) for vertex in self.vertices)
        await self._formats.call(GlobalFormatsCall(is_end, restarts, parallelism), "blobs")


@on_virtual_time
async def test_one_instance_of_each_output_format_prepares_and_finishes_its_output() -> None:
    coordinator = Coordinator()
    await coordinator.call(is_end=False)
    await coordinator.call(is_end=True)
    assert STORY == ["prepare a 2", "prepare b 2", "finish a 2 True", "finish b 2 True"]


@on_virtual_time
async def test_request_repeated_while_or_after_it_is_carried_out_is_carried_out_once() -> None:
    coordinator = Coordinator()
    await asyncio.gather(coordinator.call(is_end=False), coordinator.call(is_end=False))
    await coordinator.call(is_end=False)
    assert STORY == ["prepare a 2", "prepare b 2"]


@on_virtual_time
async def test_output_format_is_finished_again_after_a_restart_of_the_job() -> None:
    coordinator = Coordinator()
    await coordinator.call(is_end=True)
    await coordinator.call(is_end=True, restarts=1)
    await coordinator.call(is_end=True, restarts=1)
    assert STORY == ["finish a 2 False", "finish b 2 False"] * 2


@on_virtual_time
async def test_failure_of_an_output_format_is_reported_once_and_fails_all_further_calls() -> None:
    coordinator = Coordinator(fails=True)
    for is_end in (False, False, True):
        with pytest.raises(OperatorError, match="no such bucket") as caught:
            await coordinator.call(is_end=is_end)
    assert "output format of a" in str(caught.value)
    (failure,) = coordinator.failures
    assert str(failure) == str(caught.value)
    assert STORY == ["prepare a 2"]


@on_virtual_time
async def test_code_that_cannot_be_fetched_at_present_does_not_fail_the_output_format() -> None:
    coordinator = Coordinator()
    coordinator.error = RpcConnectionError("no blob server")
    with pytest.raises(RpcConnectionError):
        await coordinator.call(is_end=False)
    assert coordinator.failures == []
    coordinator.error = None
    await coordinator.call(is_end=False)
    assert STORY == ["prepare a 2", "prepare b 2"]


@pytest.mark.parametrize("error", [FlinkRayError("it is gone"), OSError("disk full")], ids=str)
@on_virtual_time
async def test_code_that_can_never_be_provided_is_reported_as_failure_of_the_output_format(
    error: Exception,
) -> None:
    coordinator = Coordinator()
    coordinator.error = error
    with pytest.raises(OperatorError, match=str(error)):
        await coordinator.call(is_end=False)
    assert len(coordinator.failures) == 1
