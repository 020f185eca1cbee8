"""Results of vertices that are stored as Parquet files in the cluster's storage.

A result that Spark writes or reads cannot stay in the processes that produced it. Each attempt of a
producer has its own directory. The manifest, which is written last, lists the files of the result:
without a manifest, the attempt did not finish, and a listed file that is missing is lost.

Names are loaded at first use: code that only computes locations does not load Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.lazy_door import lazy_door

if TYPE_CHECKING:
    from flinkray.file_results.batches import MicroBatch, MicroBatchColumnsError, PublishedBatches
    from flinkray.file_results.commit_log import FileCommitLog
    from flinkray.file_results.epochs import Epoch, EpochPart, Epochs, EpochsDone
    from flinkray.file_results.layout import (
        commit_log_location,
        data_of_job,
        delete_directory,
        epochs_location,
        look_ups_location,
        partition_location,
        published_location,
        results_of_job,
        stream_execution,
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
    from flinkray.file_results.result_files import (
        FileResultLostError,
        ResultDirectory,
        ResultSchemaError,
        ResultWriter,
        RowGroupSplit,
        list_files,
        read_batches,
        register_files,
        share_of,
    )
else:  # not for type checkers, which would take each misspelt name for an object
    __getattr__ = lazy_door(__name__)

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
    "delete_directory",
    "digest_of",
    "epochs_location",
    "list_files",
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
