"""File sources and sinks: a module of PyFlink's.

>>> StreamFormat.text_line_format()
StreamFormat(file_format='text', encoding='UTF-8')
>>> import pathlib, tempfile
>>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
>>> file = pathlib.Path(tempfile.mkdtemp(), "lines.txt")
>>> _ = file.write_text("to be\\nor not\\n")
>>> source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(file))
>>> env = StreamExecutionEnvironment.get_execution_environment()
>>> lines = env.from_source(
...     source.process_static_file_set().build(), WatermarkStrategy.no_watermarks(), "lines"
... )
>>> lines.execute_and_collect(limit=2)
['to be', 'or not']

>>> OutputFileConfig.builder().with_part_prefix("words").with_part_suffix(".txt").build()
OutputFileConfig(part_prefix='words', part_suffix='.txt')
>>> directory = tempfile.mkdtemp()
>>> sink = (
...     FileSink.for_row_format(directory, Encoder.simple_string_encoder())
...     .with_output_file_config(OutputFileConfig("words", ".txt"))
...     .with_rolling_policy(RollingPolicy.default_rolling_policy(part_size=1 << 20))
...     .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
...     .with_bucket_check_interval(10_000)
...     .build()
... )
>>> _ = env.from_collection(["a", "b"]).sink_to(sink)
>>> _ = env.execute()
>>> [file.read_text() for file in pathlib.Path(directory).glob("words-*-0.txt")]
['a\\nb\\n']
"""

from flinkray.streaming.records.serialization import Encoder
from flinkray.streaming.sinks.file_policies import BucketAssigner, RollingPolicy
from flinkray.streaming.sinks.files import (
    FileSink,
    FileSinkBuilder,
    OutputFileConfig,
    OutputFileConfigBuilder,
)
from flinkray.streaming.sources.files import (
    FileEnumeratorProvider,
    FileSource,
    FileSourceBuilder,
    FileSplitAssignerProvider,
    StreamFormat,
)

__all__ = [
    "BucketAssigner",
    "Encoder",
    "FileEnumeratorProvider",
    "FileSink",
    "FileSinkBuilder",
    "FileSource",
    "FileSourceBuilder",
    "FileSplitAssignerProvider",
    "OutputFileConfig",
    "OutputFileConfigBuilder",
    "RollingPolicy",
    "StreamFormat",
]
