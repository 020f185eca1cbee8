"""Every kind of stored record, with specimens in which every stored type occurs.

A specimen is fixed: ids and times are constants, so that it is written the same way each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flinkray.actors.gateways.messages import ArchivedJob, StoredJob
from flinkray.blob.store import StoredBlob
from flinkray.checkpoint.handles import (
    CarriedFile,
    ChannelStateHandle,
    FileState,
    InlineState,
    KeyedStateHandle,
    KeyedStatePart,
    NamedOperatorState,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    TaskState,
)
from flinkray.checkpoint.metadata import (
    CheckpointedEdge,
    CheckpointedOperator,
    CheckpointedSubtask,
    CheckpointMetadata,
    MasterState,
    SnapshotKind,
)
from flinkray.checkpoint.state_format import (
    KeyedStateHeader,
    OperatorStateHeader,
    StoredColumns,
    StoredOperatorState,
    StoredTable,
)
from flinkray.core.blobs import BlobKey
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID, TriggerID, WorkerGroupId
from flinkray.core.records import decode_record, encode_record
from flinkray.core.resources import ResourceProfile
from flinkray.ha.checkpoint_stores import (
    CheckpointCount,
    CheckpointOwner,
    CompletedCheckpointPointer,
)
from flinkray.ha.entries import decode_entry, encode_entry
from flinkray.ha.epoch_directory import EpochContents, EpochEntry
from flinkray.rpc.ray.directory import ProcessRecord
from flinkray.scheduler.graph.checkpoint_configuration import (
    CheckpointConfiguration,
    CheckpointRetentionPolicy,
)
from flinkray.scheduler.graph.job_graph import (
    AttachedClient,
    DistributionPattern,
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobFile,
    JobFileUse,
    JobGraph,
    JobType,
    JobVertex,
    NoRestart,
    ParallelismBounds,
    ResultPartitionType,
    SchedulerMode,
    VertexOperator,
)
from flinkray.scheduler.reports.checkpoint_statistics import (
    CheckpointsOverview,
    CheckpointStatistics,
    CheckpointStatus,
)
from flinkray.scheduler.reports.execution_info import ExecutionInfo, ExecutionTable
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobResult,
    JobSettings,
    StageProgressInfo,
    VertexInfo,
)
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.state.snapshots import RecordForm, SerializerSnapshot
from flinkray.streaming.sources.source_progress import EnumeratorState

JOB = JobID(b"the specimen job")
PROFILE = ResourceProfile(1.5, 2**30, {"GPU": 0.5, "custom": 2.0})
BEGIN = 1_700_000_000.25


def _data_set(number: int, result_type: ResultPartitionType) -> IntermediateDataSet:
    return IntermediateDataSet(IntermediateDataSetID(bytes([number]) * 16), result_type)


def _vertex(number: int, invokable: Invokable, **others: Any) -> JobVertex:
    vertex_id = JobVertexID(bytes([number]) * 16)
    return JobVertex(vertex_id, f"vertex {number}", number, PROFILE, invokable, **others)


def streaming_job() -> StoredJob:
    """Every type of a job graph but the restart strategies that another specimen has."""
    pipelined = _data_set(1, ResultPartitionType.PIPELINED)
    bounded = _data_set(2, ResultPartitionType.PIPELINED_BOUNDED)
    source = _vertex(
        1,
        Invokable("stream", b"opaque code", {"fetch.size": "1m"}),
        max_parallelism=128,
        results=(pipelined, bounded),
        has_global_formats=True,
    )
    sink = _vertex(
        2,
        Invokable("python", BlobKey(bytes(range(32)), 5_000_000)),
        min_parallelism=2,
        derived_max_parallelism=256,
        slot_sharing_group="sinks",
        co_location_group="together",
        inputs=(
            JobEdge(
                pipelined.data_set_id, DistributionPattern.ALL_TO_ALL, "HASH", "ab" * 16, "late", 1
            ),
            JobEdge(bounded.data_set_id, DistributionPattern.POINTWISE),
        ),
    )
    graph = JobGraph(
        JOB,
        "a stream",
        (source, sink),
        FixedDelayRestart(3, 2.5),
        JobType.STREAMING,
        SchedulerMode.ADAPTIVE,
        restart_all=True,
        files=(
            JobFile("library.zip", JobFileUse.IMPORT, b"opaque archive", is_directory=True),
            JobFile("tool", JobFileUse.CACHE, BlobKey(bytes(32), 0), is_executable=True),
            JobFile("data/models", JobFileUse.ARCHIVE, b"opaque archive"),
        ),
        client=AttachedClient("a client", 50.0, "its results are collected"),
    )
    together = ExceptionEntry(BEGIN + 2, "the reader failed", task="vertex 2 (1/2)")
    cause = ExceptionEntry(
        BEGIN + 1, "the client is lost", "Traceback ...", "vertex 1 (1/1)", "node-1", (together,)
    )
    return StoredJob(graph, BEGIN, cancel_requested=True, cancel_cause=cause, has_run=True)


def batch_job(restart: NoRestart | FailureRateRestart | ExponentialDelayRestart) -> StoredJob:
    """A job with a restart strategy."""
    blocking = _data_set(3, ResultPartitionType.BLOCKING)
    stage = _vertex(3, Invokable("spark", b"opaque stage"), results=(blocking,))
    graph = JobGraph(
        JOB, "a batch", (stage,), restart, JobType.BATCH, SchedulerMode.DEFAULT
    )  # fmt: skip
    return StoredJob(graph, BEGIN)


def configured_job() -> StoredJob:
    """A job that has what its user has set."""
    stored = batch_job(NoRestart())
    configuration = {"restart-strategy.type": "failure-rate"}
    return replace(stored, graph=replace(stored.graph, configuration=configuration))


def checkpointed_job() -> StoredJob:
    """A job that takes checkpoints."""
    stored = streaming_job()
    operators = (
        VertexOperator("ab" * 16, "source", "orders", "cd" * 16),
        VertexOperator("ef" * 16, "map"),
    )
    source, sink = stored.graph.vertices
    checkpoints = CheckpointConfiguration(
        60.0, 300.0, 5.0, 1, 3, -1, CheckpointRetentionPolicy.RETAIN_ON_FAILURE, True, True, 2.5
    )
    graph = replace(
        stored.graph,
        vertices=(replace(source, operators=operators), sink),
        checkpoints=checkpoints,
    )
    return replace(stored, graph=graph)


def _execution(number: int, state: ExecutionState) -> ExecutionInfo:
    return ExecutionInfo(
        number,
        number % 3,
        state,
        f"TaskExecutor-{number} bundle 0 on 10.0.0.1",
        executor_actor_id="ab" * 16,
        executor_pid=4000 + number,
        start_time=BEGIN + number,
        end_time=BEGIN + number + 1 if state.is_terminal else None,
        state_timestamps={"DEPLOYING": BEGIN + number, state.name: BEGIN + number + 0.5},
        failure="out of memory" if state is ExecutionState.FAILED else None,
        io_metrics=(
            IOMetrics(None, 10 * number, None, 100 * number, 1, 2, 3, -number) if number else None
        ),
    )


def _checkpoints() -> CheckpointsOverview:
    at = int(BEGIN * 1000)
    complete = CheckpointStatistics(
        3,
        CheckpointStatus.COMPLETED,
        False,
        at,
        0.5,
        4,
        4,
        1000,
        100,
        "/checkpoints/chk-3/_metadata",
    )
    failed = CheckpointStatistics(
        4, CheckpointStatus.FAILED, False, at, 1.5, 4, 3, failure="no room"
    )
    saved = CheckpointStatistics(
        5, CheckpointStatus.COMPLETED, True, at, 2.5, 4, 4, 1000, 1000, "/savepoints/1/_metadata"
    )
    running = CheckpointStatistics(6, CheckpointStatus.IN_PROGRESS, False, at, None, 4, 1)
    history = (running, saved, failed, complete)
    return CheckpointsOverview(1, 2, 1, 3, complete, saved, failed, 2, history)


def archived_job(status: JobStatus) -> ArchivedJob:
    """A job that ended so, with executions in every state, as they are and in columns."""
    executions = tuple(_execution(n, state) for n, state in enumerate(ExecutionState))
    vertex = VertexInfo(
        JobVertexID(b"v" * 16),
        "map",
        len(executions),
        executions,
        (StageProgressInfo(7, "count", 8, 2, 5, 1),),
        completed_stages=3,
        completed_tasks=40,
        failed_tasks=1,
        max_parallelism=128,
        prior_executions=ExecutionTable.of(executions),
        tasks={state.name: 1 for state in ExecutionState},
        io_metrics=IOMetrics(1, 2, 3, 4, 5, 6, 7, 8, 2),
        measured=1,
    )
    details = JobDetails(
        JOB,
        "a job",
        status,
        BEGIN,
        BEGIN + 60,
        {each.name: BEGIN + n for n, each in enumerate(JobStatus)},
        restarts=2,
        vertices=(vertex,),
        pending_reason="2 of 4 slots are missing",
        exceptions=(ExceptionEntry(BEGIN + 3, "boom", "Traceback ..."),),
        worker_group=WorkerGroupId("cd" * 16),
        plan='{"nodes": []}',
        checkpoints=_checkpoints(),
        failovers=3,
    )
    result = JobResult(
        JOB,
        "a job",
        status,
        60.0,
        failure="boom" if status is JobStatus.FAILED else None,
        failure_traceback="Traceback ..." if status is JobStatus.FAILED else None,
        result_location="/storage/data/1",
        num_rows=42,
        schema_json='{"type": "struct"}',
        cancel_cause="its client is lost" if status is JobStatus.CANCELED else None,
    )
    if status is JobStatus.FINISHED:
        trigger_id = TriggerID.from_hex("ef" * 16)
        result = result.with_savepoint("/savepoints/savepoint-0123ab-efefefefefef", trigger_id)
    bounds = ParallelismBounds(vertex.vertex_id, 1, len(executions))
    checkpoints = CheckpointConfiguration(interval=10.0, is_unaligned=True)
    settings = JobSettings(FixedDelayRestart(3), "rocksdb", checkpoints, True, (bounds,))
    return ArchivedJob(result, details, settings)


def _subtask_state() -> OperatorSubtaskState:
    """With state of every kind."""
    operator_state = OperatorStateHandle(
        FileState("0e41", 30_000),
        tuple(NamedOperatorState(f"a {mode.value}", mode, (41, 90)) for mode in OperatorStateMode),
    )
    parts = (
        KeyedStatePart(FileState("../shared/9b52", 100_000_000), True),
        KeyedStatePart(InlineState(b"opaque changes"), False),
    )
    return OperatorSubtaskState(
        (operator_state,),
        (KeyedStateHandle(0, 63, parts),),
        (ChannelStateHandle(0, 1, FileState("77aa", 40_000)),),
        (ChannelStateHandle(0, 2, InlineState(b"opaque data")),),
        (CarriedFile("rows of an epoch", FileState("88bb", 50_000), 0x1234_5678),),
    )


def checkpoint_metadata(kind: SnapshotKind) -> CheckpointMetadata:
    """A checkpoint in which everything occurs."""
    running = CheckpointedOperator(
        "ab" * 16,
        "sum",
        "sum of orders",
        2,
        128,
        (CheckpointedSubtask(0, _subtask_state()),),
        InlineState(b"opaque enumerator"),
    )
    finished = CheckpointedOperator(
        "cd" * 16, "source", None, 1, 128, (CheckpointedSubtask(0, OperatorSubtaskState(), True),)
    )
    hook = MasterState("a hook", b"opaque state")
    edge = CheckpointedEdge("cd" * 16, 1, "ab" * 16, 0, "cd" * 16, "late", 1, "HASH")
    return CheckpointMetadata(
        JOB, 7, 1_700_000_000_250, kind, (running, finished), (hook,), "0.9.0", (edge,)
    )


SERIALIZER = SerializerSnapshot(
    "columns",
    1,
    '{"type": "Integer", "expires": false}',
    (RecordForm("orders:Customer", ("number",)),),
    (RecordForm("Row", ("id", "name")),),
    ("orders.Opaque",),
)


@dataclass(frozen=True)
class Kind:
    """What is stored in one place."""

    record_type: type
    specimens: dict[str, object]
    """By a name of their own; they are of the record type."""
    encode: Callable[[object], bytes]
    decode: Callable[[bytes, type], object]


KINDS = {
    "job-graph": Kind(
        StoredJob,
        {
            "stream": streaming_job(),
            "configured": configured_job(),
            "checkpointed": checkpointed_job(),
            "no-restart": batch_job(NoRestart()),
            "failure-rate": batch_job(FailureRateRestart(3, 30.0, 0.5)),
            "exponential-delay": batch_job(ExponentialDelayRestart(0.5, 30.0, 2.0, 600.0, 0.2, 9)),
        },
        encode_entry,
        decode_entry,
    ),
    "job-result": Kind(
        ArchivedJob,
        {
            "finished": archived_job(JobStatus.FINISHED),
            "failed": archived_job(JobStatus.FAILED),
            "canceled": archived_job(JobStatus.CANCELED),
        },
        encode_entry,
        decode_entry,
    ),
    "blob": Kind(StoredBlob, {"marker": StoredBlob((0, 1_000_000))}, encode_entry, decode_entry),
    "checkpoint-metadata": Kind(
        CheckpointMetadata,
        {kind.value: checkpoint_metadata(kind) for kind in SnapshotKind},
        encode_entry,
        decode_entry,
    ),
    "task-state": Kind(
        TaskState,
        {"running": TaskState({"ab" * 16: _subtask_state()}), "finished": TaskState({}, True)},
        encode_record,
        decode_record,
    ),
    "keyed-state": Kind(
        KeyedStateHeader,
        {
            "header": KeyedStateHeader(
                0,
                63,
                (StoredTable("sum", "value", False, True, SERIALIZER),),
                ("timers",),
                (StoredColumns("panes", "numbers", True, False, 17, ("orders.Opaque",)),),
                bytes(range(26)),
            )
        },
        encode_record,
        decode_record,
    ),
    "operator-state": Kind(
        OperatorStateHeader,
        {"header": OperatorStateHeader((StoredOperatorState("splits", SERIALIZER),))},
        encode_record,
        decode_record,
    ),
    "enumerator-state": Kind(
        EnumeratorState,
        {"files": EnumeratorState(SERIALIZER, b"\x93\x00\x01\x02")},
        encode_record,
        decode_record,
    ),
    "checkpoint-pointer": Kind(
        CompletedCheckpointPointer,
        {"completed": CompletedCheckpointPointer(JOB, 7, "s3://bucket/job/chk-7/_metadata")},
        encode_entry,
        decode_entry,
    ),
    "checkpoint-count": Kind(
        CheckpointCount, {"seven": CheckpointCount(JOB, 7)}, encode_entry, decode_entry
    ),
    "checkpoint-owner": Kind(
        CheckpointOwner, {"job-master": CheckpointOwner(JOB, "ab" * 16)}, encode_entry, decode_entry
    ),
    "epoch-contents": Kind(
        EpochContents,
        {
            "checkpoints": EpochContents(
                (EpochEntry("1.checkpoint", None), EpochEntry("2.checkpoint", b"record"))
            )
        },
        encode_entry,
        decode_entry,
    ),
    "process": Kind(
        ProcessRecord,
        {
            "actor": ProcessRecord(
                "incarnation-1",
                "ab" * 28,
                "10.0.0.1",
                4711,
                "@flinkray-1",
                True,
                "cd" * 16,
                "JobMaster-1",
                4242,
            ),
            "driver": ProcessRecord(
                "incarnation-2", None, "10.0.0.2", 4712, None, False, None, "client-1", 4243
            ),
        },
        encode_record,
        decode_record,
    ),
}
"""Ray's key-value store also holds a cluster's secret (random bytes) and the names of prestarted
processes (keys without a value), which have no types."""
