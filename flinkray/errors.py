"""Every exception of flinkray that a user may catch, in one tree below :class:`FlinkRayError`.

An exception is loaded when it is used. Only :class:`SubmissionInterrupted` is outside the tree: it
is a KeyboardInterrupt, so ``except Exception`` does not catch Ctrl-C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.lazy_door import lazy_door

if TYPE_CHECKING:
    from flinkray.blob.gateway import BlobStoreError
    from flinkray.checkpoint.errors import (
        CheckpointAccessError,
        CheckpointNotFoundError,
        CheckpointStorageError,
        CheckpointStorageFullError,
        CorruptCheckpointError,
        IncompleteCheckpointError,
        NoSuchBucketError,
        StorageHangsError,
        UnknownCheckpointFormatError,
        UnusableLocationError,
    )
    from flinkray.client.client_session import ClientClosedError
    from flinkray.client.cluster import ClusterStartError
    from flinkray.client.job_files import JobFileError
    from flinkray.client.loop_thread import LoopEndedError
    from flinkray.client.pipeline_loader import PipelineNotFoundError
    from flinkray.client.queryable_state import KvStateNotFoundAgainError
    from flinkray.client.ray_runtime import (
        ClusterNotFoundError,
        RayStartError,
    )
    from flinkray.client.stream_results import ResultsLostError
    from flinkray.client.submission import SubmissionInterrupted
    from flinkray.core.errors import (
        ConfigurationError,
        DuplicateJobSubmissionError,
        EndpointNotStartedError,
        FencingTokenError,
        FlinkRayError,
        FrameTooLargeError,
        HandlerCancelledError,
        HandshakeError,
        JobCancelledError,
        JobError,
        JobExecutionError,
        JobNotFinishedError,
        JobNotFoundError,
        JobStateError,
        JobSubmissionError,
        NoResourceAvailableError,
        ProcessExistsError,
        RecipientUnreachableError,
        RemoteError,
        RpcConnectionError,
        RpcError,
        RpcSerializationError,
        RpcTimeoutError,
        StoredFormatError,
        SuppressRestartsError,
        UnfulfillableSlotRequestError,
        UnreadableRecordError,
        UnsupportedEnvironmentError,
    )
    from flinkray.core.kv_states import (
        KvStateJobNotFoundError,
        KvStateNameClashError,
        MalformedKvStateError,
        UnknownKeyOrNamespaceError,
        UnknownKvStateIdError,
        UnknownKvStateKeyGroupLocationError,
        UnknownKvStateLocationError,
    )
    from flinkray.file_results.batches import MicroBatchColumnsError
    from flinkray.file_results.commit_log import CommitLogError
    from flinkray.file_results.published import NonDeterministicSourceError
    from flinkray.file_results.query_checkpoint import QueryCheckpointError
    from flinkray.file_results.result_files import FileResultLostError, ResultSchemaError
    from flinkray.ha.checkpoint_stores import CheckpointStoreFencedError
    from flinkray.ha.entries import DamagedEntryError
    from flinkray.ha.leader_election import LeaderElectionError
    from flinkray.ha.stores import (
        JobStoreFencedError,
        JobStoreStateError,
        StoreError,
    )
    from flinkray.ha.zookeeper.client import ZooKeeperError
    from flinkray.scheduler.checkpoints.failures import (
        CheckpointError,
        StateRestoreError,
        StopWithSavepointError,
    )
    from flinkray.spark.epochs import EpochColumnsError
    from flinkray.spark.inputs import NoColumnsError
    from flinkray.spark.jvm import SparkStartError
    from flinkray.spark.publishing import UnsupportedSparkTypeError
    from flinkray.spark.result import InvalidStageResultError
    from flinkray.spark.session_requests import (
        SparkSessionEndedError,
        SparkSessionMismatchError,
    )
    from flinkray.spark.tables import TableKeyError
    from flinkray.state.disk.rocksdb import StateStorageError
    from flinkray.state.errors import (
        StateError,
        StateMigrationError,
    )
    from flinkray.state.immutable_states import ReadOnlyStateError
    from flinkray.state.key_encoding import UnsupportedKeyError
    from flinkray.state.value_encoding import UnreadableValuesError
    from flinkray.state_reader.reader import StateNotFoundError
    from flinkray.state_reader.writer import BootstrapError
    from flinkray.streaming.errors import (
        FileNotReadyError,
        StreamError,
        UnavailableError,
        UnpicklableRecordsError,
        UnreadableRecordsError,
    )
    from flinkray.streaming.functions.async_functions import AsyncTimeoutError
    from flinkray.streaming.functions.global_aggregates import (
        GlobalAggregateError,
        GlobalAggregatesLostError,
    )
    from flinkray.streaming.functions.models import (
        ModelError,
        ModelFailedError,
        ModelResultError,
        ModelUnavailableError,
    )
    from flinkray.streaming.functions.runtime_context import CachedFileError
    from flinkray.streaming.network import BatchTooLargeError
    from flinkray.streaming.operator_errors import OperatorError
    from flinkray.streaming.operators.look_up import DuplicateKeyError
    from flinkray.streaming.sinks.sink import (
        FencedSinkError,
        SinkError,
        SinkUnavailableError,
    )
    from flinkray.streaming.sinks.spark import EpochOfAnotherJobError
    from flinkray.streaming.sources.spark_stream import (
        MicroBatchesOfAnotherJobError,
        MicroBatchLostError,
    )
    from flinkray.user_code import UserCodeError
else:  # not for type checkers, which would take each misspelt name for an object
    __getattr__ = lazy_door(__name__)

__all__ = [
    "AsyncTimeoutError",
    "BatchTooLargeError",
    "BlobStoreError",
    "BootstrapError",
    "CachedFileError",
    "CheckpointAccessError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CheckpointStorageError",
    "CheckpointStorageFullError",
    "CheckpointStoreFencedError",
    "ClientClosedError",
    "ClusterNotFoundError",
    "ClusterStartError",
    "CommitLogError",
    "ConfigurationError",
    "CorruptCheckpointError",
    "DamagedEntryError",
    "DuplicateJobSubmissionError",
    "DuplicateKeyError",
    "EndpointNotStartedError",
    "EpochColumnsError",
    "EpochOfAnotherJobError",
    "FencedSinkError",
    "FencingTokenError",
    "FileNotReadyError",
    "FileResultLostError",
    "FlinkRayError",
    "FrameTooLargeError",
    "GlobalAggregateError",
    "GlobalAggregatesLostError",
    "HandlerCancelledError",
    "HandshakeError",
    "IncompleteCheckpointError",
    "InvalidStageResultError",
    "JobCancelledError",
    "JobError",
    "JobExecutionError",
    "JobFileError",
    "JobNotFinishedError",
    "JobNotFoundError",
    "JobStateError",
    "JobStoreFencedError",
    "JobStoreStateError",
    "JobSubmissionError",
    "KvStateJobNotFoundError",
    "KvStateNameClashError",
    "KvStateNotFoundAgainError",
    "LeaderElectionError",
    "LoopEndedError",
    "MalformedKvStateError",
    "MicroBatchColumnsError",
    "MicroBatchLostError",
    "MicroBatchesOfAnotherJobError",
    "ModelError",
    "ModelFailedError",
    "ModelResultError",
    "ModelUnavailableError",
    "NoColumnsError",
    "NoResourceAvailableError",
    "NoSuchBucketError",
    "NonDeterministicSourceError",
    "OperatorError",
    "PipelineNotFoundError",
    "ProcessExistsError",
    "QueryCheckpointError",
    "RayStartError",
    "ReadOnlyStateError",
    "RecipientUnreachableError",
    "RemoteError",
    "ResultSchemaError",
    "ResultsLostError",
    "RpcConnectionError",
    "RpcError",
    "RpcSerializationError",
    "RpcTimeoutError",
    "SinkError",
    "SinkUnavailableError",
    "SparkSessionEndedError",
    "SparkSessionMismatchError",
    "SparkStartError",
    "StateError",
    "StateMigrationError",
    "StateNotFoundError",
    "StateRestoreError",
    "StateStorageError",
    "StopWithSavepointError",
    "StorageHangsError",
    "StoreError",
    "StoredFormatError",
    "StreamError",
    "SubmissionInterrupted",
    "SuppressRestartsError",
    "TableKeyError",
    "UnavailableError",
    "UnfulfillableSlotRequestError",
    "UnknownCheckpointFormatError",
    "UnknownKeyOrNamespaceError",
    "UnknownKvStateIdError",
    "UnknownKvStateKeyGroupLocationError",
    "UnknownKvStateLocationError",
    "UnpicklableRecordsError",
    "UnreadableRecordError",
    "UnreadableRecordsError",
    "UnreadableValuesError",
    "UnsupportedEnvironmentError",
    "UnsupportedKeyError",
    "UnsupportedSparkTypeError",
    "UnusableLocationError",
    "UserCodeError",
    "ZooKeeperError",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
