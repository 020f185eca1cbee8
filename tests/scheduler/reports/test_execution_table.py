"""The executions of a large job in little room, and jobs of 100,000 tasks in one message."""

from __future__ import annotations

from abc import abstractmethod
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.errors import FrameTooLargeError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.schema import schema_of
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint, RpcGateway, ask_timeout
from flinkray.rpc.wire import codec
from flinkray.scheduler.execution import job_archive
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.reports.execution_info import FEW, ExecutionInfo, ExecutionTable, packed
from flinkray.scheduler.reports.job_info import JobDetails, VertexInfo
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.graphs import job
from tests.scheduler.tasks_under_test import TasksUnderTest

TASKS = 100_000
MANY_TIMES = ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING", "FINISHED")

texts = st.none() | st.text(max_size=20)
times = st.none() | st.floats(allow_nan=False)
counts = st.integers(0, 2**60)
io_metrics = st.builds(
    IOMetrics, *[st.none() | counts for _ in range(4)], *[counts for _ in range(3)]
)
executions = st.builds(
    ExecutionInfo,
    st.integers(0, 2**31),
    st.integers(0, 2**31),
    st.sampled_from(ExecutionState),
    texts,
    texts,
    st.none() | st.integers(0, 2**40),
    times,
    times,
    st.dictionaries(st.sampled_from([s.name for s in ExecutionState]), st.floats(allow_nan=False)),
    texts,
    st.none() | io_metrics,
)


@given(st.lists(executions, max_size=8))
def test_execution_table_returns_all_executions_after_encoding(rows: list[ExecutionInfo]) -> None:
    many = ExecutionTable.of(rows)
    there = codec.decode(codec.encode(many))
    assert there == many
    assert list(there) == rows
    assert len(there) == len(rows)
    assert [there[index] for index in range(len(rows))] == rows
    assert list(there[1:]) == rows[1:]


def test_io_metrics_stored_by_the_first_version_are_migrated_by_position() -> None:
    schema = schema_of(ExecutionTable)
    assert schema is not None
    before = {"size": 1, "io_metrics": (b"1", b"2", b"3", b"4", b"5", b"6", b"7")}
    now = schema.migrations[1](before)
    assert now == {
        "size": 1,
        "io_metrics": {
            "records_in": b"1",
            "records_out": b"2",
            "bytes_in": b"3",
            "bytes_out": b"4",
            "busy_ms": b"5",
            "back_pressured_ms": b"6",
            "idle_ms": b"7",
        },
    }


def execution(index: int, random: Random) -> ExecutionInfo:
    """As hard to compress as a real one: no two times are the same."""
    at = 1.8e9 + 100 * random.random()
    entered = {}
    for name in MANY_TIMES:
        at += 5 * random.random()
        entered[name] = at
    where = f"TaskExecutor-{index % 1000:08x}-0-1 bundle 0 on 10.0.0.{index % 250}"
    records, ms = random.randrange(10**6), random.randrange(10**5)
    metrics = IOMetrics(records, records // 3, 9 * records, 4 * records, ms, ms // 7, ms // 2)
    return ExecutionInfo(
        index, 1, ExecutionState.FINISHED, where,
        start_time=entered["DEPLOYING"], end_time=at, state_timestamps=entered, io_metrics=metrics,
    )  # fmt: skip


def test_every_watermark_value_is_equal_after_encoding_in_an_execution_table() -> None:
    watermarks = (None, -(2**63) + 1, -2, -1, 0, 1, 2**63 - 1)
    every = tuple(
        ExecutionInfo(
            n, 0, ExecutionState.RUNNING, None, io_metrics=IOMetrics(1, 2, 3, 4, 5, 6, 7, at)
        )
        for n, at in enumerate(watermarks)
    )
    held = ExecutionInfo(
        len(every), 0, ExecutionState.RUNNING, None, io_metrics=IOMetrics(1, 2, 3, 4, 5, 6, 7, 8, 1)
    )
    every = (*every, held)
    unmeasured = ExecutionInfo(len(every), 0, ExecutionState.RUNNING, None)
    assert tuple(ExecutionTable.of((*every, unmeasured))) == (*every, unmeasured)


def large_job(number: int, *, pack: bool) -> JobDetails:
    """With one earlier attempt of each task."""
    random = Random(1)
    current, prior = (tuple(execution(index, random) for index in range(number)) for _ in range(2))
    vertex = VertexInfo(
        JobVertexID(bytes(16)),
        "many",
        number,
        packed(current) if pack else current,
        prior_executions=packed(prior) if pack else prior,
    )
    return JobDetails(JobID(bytes(16)), "large", JobStatus.FINISHED, 0.0, 1.0, {}, 1, (vertex,))


class ArchiveGateway(RpcGateway):
    """Takes and gives details, as Dispatchers and JobMasters do."""

    @abstractmethod
    @ask_timeout(120.0)
    async def put(self, details: JobDetails) -> None: ...

    @abstractmethod
    @ask_timeout(120.0)
    async def get(self) -> JobDetails: ...


class Archive(RpcEndpoint, ArchiveGateway):
    async def put(self, details: JobDetails) -> None:
        self.details = details

    async def get(self) -> JobDetails:
        return self.details


async def test_details_of_100_000_tasks_are_sent_as_one_message_and_received_as_one() -> None:
    network = LocalNetwork()
    host, caller = LocalRpcService("host", network), LocalRpcService("caller", network)
    archive = Archive(host, "archive")
    archive.start()
    gateway = await caller.connect(archive.address, ArchiveGateway)
    details = large_job(TASKS, pack=True)
    await gateway.put(details)
    answer = await gateway.get()
    assert answer == details
    random = Random(1)
    assert answer.vertices[0].executions[0] == execution(0, random)
    assert len(answer.vertices[0].prior_executions) == TASKS
    # one by one they would not
    with pytest.raises(FrameTooLargeError):
        await gateway.put(large_job(TASKS // 2, pack=False))
    await caller.close()
    await host.close()


def test_executions_are_packed_into_a_table_only_for_a_vertex_of_high_parallelism() -> None:
    for parallelism, kind in ((FEW, tuple), (FEW + 1, ExecutionTable)):
        tasks = TasksUnderTest(job(a=parallelism)).run()
        (vertex,) = tasks.scheduler.details().vertices
        assert type(vertex.executions) is kind
        assert [e.subtask_index for e in vertex.executions] == list(range(parallelism))
        assert {e.state for e in vertex.executions} == {ExecutionState.RUNNING}


def test_job_progress_of_10_000_tasks_takes_as_few_bytes_as_that_of_10_tasks() -> None:
    sizes = []
    for number in (10, 10_000):
        progress = TasksUnderTest(job(a=number)).run().scheduler.progress()
        (vertex,) = progress.vertices
        assert (vertex.name, vertex.parallelism, vertex.tasks) == ("a", number, {"RUNNING": number})
        sizes.append(len(codec.encode(progress)))
    assert sizes[1] <= sizes[0] + 4, "bytes of the number itself, twice"


def test_job_overview_of_10_000_tasks_takes_as_few_bytes_as_that_of_10_tasks() -> None:
    sizes = []
    for number in (10, 10_000):
        tasks = TasksUnderTest(job(a=number)).run()
        overview = tasks.scheduler.overview()
        assert (overview.status, overview.tasks) == (JobStatus.RUNNING, {"RUNNING": number})
        sizes.append(len(codec.encode(overview)))
    assert sizes[1] <= sizes[0] + 2, "bytes of the number itself"


def test_number_of_earlier_attempts_in_the_job_details_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_archive, "PRIORS_SHOWN", 5)
    tasks = TasksUnderTest(job(a=2, restart_strategy=FixedDelayRestart(9, 1.0))).run()
    for _ in range(4):
        tasks.fail("a1")
        tasks.restart()
    (vertex,) = tasks.scheduler.details().vertices
    shown = [(e.subtask_index, e.attempt_number) for e in vertex.prior_executions]
    assert shown == [(0, 2), (0, 3)]
