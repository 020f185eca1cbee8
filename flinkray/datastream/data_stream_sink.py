"""The sink at the end of a stream, on which a program sets name, uid and parallelism."""

from __future__ import annotations

from flinkray.datastream.operator_settings import OperatorSettings
from flinkray.streaming.program.transformations import OperatorTransformation


class DataStreamSink(OperatorSettings):
    """The sink at the end of a stream, whose settings a program may change.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> sink = env.from_collection([1]).print().name("out").uid("out-1").set_parallelism(1)
    >>> _ = env.execute("demo")
    1
    """

    def __init__(self, transformation: OperatorTransformation) -> None:
        self._transformation = transformation
