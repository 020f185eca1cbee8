"""Results of vertices that lie as Parquet files in the cluster's storage.

A result that Spark writes or reads cannot stay in the processes that produced it.  Each attempt of
a producer has a directory of its own; what belongs to the result is what its manifest lists, which
is written last.  So a directory without a manifest is of an attempt that did not finish, and a file
that is listed and not there is lost, never silently missing.
"""

from flinkray.file_results.batches import MicroBatch, MicroBatchColumnsError, PublishedBatches
from flinkray.file_results.commit_log import FileCommitLog
from flinkray.file_results.directory import FileResultLostError, ResultDirectory, register_files
from flinkray.file_results.epochs import Epoch, EpochPart, Epochs, EpochsDone, stream_execution
from flinkray.file_results.layout import (
    commit_log_location,
    data_of_job,
    epochs_location,
    look_ups_location,
    partition_location,
    published_location,
    results_of_job,
    whole_location,
)
from flinkray.file_results.look_ups import LookUpNotes
from flinkray.file_results.published import (
    NonDeterministicSourceError,
    Publication,
    PublishedPartition,
    PublishedPartitions,
    digest_of,
)
from flinkray.file_results.query_checkpoint import QueryCheckpoint, QueryCheckpointError
from flinkray.file_results.reader import RowGroupSplit, read_batches, share_of
from flinkray.file_results.writer import ResultSchemaError, ResultWriter

__all__ = [
    "Epoch",
    "EpochPart",
    "Epochs",
    "EpochsDone",
    "FileCommitLog",
    "FileResultLostError",
    "LookUpNotes",
    "MicroBatch",
    "MicroBatchColumnsError",
    "NonDeterministicSourceError",
    "Publication",
    "PublishedBatches",
    "PublishedPartition",
    "PublishedPartitions",
    "QueryCheckpoint",
    "QueryCheckpointError",
    "ResultDirectory",
    "ResultSchemaError",
    "ResultWriter",
    "RowGroupSplit",
    "commit_log_location",
    "data_of_job",
    "digest_of",
    "epochs_location",
    "look_ups_location",
    "partition_location",
    "published_location",
    "read_batches",
    "register_files",
    "results_of_job",
    "share_of",
    "stream_execution",
    "whole_location",
]
