"""Sources and sinks, and the interfaces for user-defined ones."""

from __future__ import annotations

from flinkray.core.clock import Clock
from flinkray.datastream.connectors.file_system import FileSink, FileSource
from flinkray.streaming.records.elements import Block
from flinkray.streaming.sinks.file_formats import (
    CsvFormat,
    FileFormat,
    JsonFormat,
    ParquetFormat,
    TextFormat,
)
from flinkray.streaming.sinks.file_policies import BucketAssigner, BucketContext, RollingPolicy
from flinkray.streaming.sinks.ray_dataset import RayDatasetSink
from flinkray.streaming.sinks.simple import CallbackSink, CollectSink, DiscardingSink
from flinkray.streaming.sinks.sink import (
    CommitRequest,
    Committer,
    CommitterContext,
    DeliveryGuarantee,
    Sink,
    SinkError,
    SinkWriter,
    StatefulSinkWriter,
    WriterContext,
)
from flinkray.streaming.sources.collection import (
    ArrowSource,
    CollectionSource,
    IteratorSource,
    NumberSequenceSource,
)
from flinkray.streaming.sources.files import RecordFormat
from flinkray.streaming.sources.generated import DataGeneratorSource, SocketSource
from flinkray.streaming.sources.master_hook import (
    MasterTriggerRestoreHook,
    WithMasterCheckpointHook,
)
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    OfSplit,
    Polled,
    ReaderContext,
    SequentialReader,
    Source,
    SourceReader,
    SplitEnumerator,
)

__all__ = [
    "END_OF_INPUT",
    "NOTHING_NOW",
    "ArrowSource",
    "Block",
    "Boundedness",
    "BucketAssigner",
    "BucketContext",
    "CallbackSink",
    "Clock",
    "CollectSink",
    "CollectionSource",
    "CommitRequest",
    "Committer",
    "CommitterContext",
    "CsvFormat",
    "DataGeneratorSource",
    "DeliveryGuarantee",
    "DiscardingSink",
    "EnumeratorContext",
    "FileFormat",
    "FileSink",
    "FileSource",
    "FixedSplitsEnumerator",
    "IteratorSource",
    "JsonFormat",
    "MasterTriggerRestoreHook",
    "NumberSequenceSource",
    "OfSplit",
    "ParquetFormat",
    "Polled",
    "RayDatasetSink",
    "ReaderContext",
    "RecordFormat",
    "RollingPolicy",
    "SequentialReader",
    "Sink",
    "SinkError",
    "SinkWriter",
    "SocketSource",
    "Source",
    "SourceReader",
    "SplitEnumerator",
    "StatefulSinkWriter",
    "TextFormat",
    "WithMasterCheckpointHook",
    "WriterContext",
]
