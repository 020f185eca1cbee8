"""Defines a sink that keeps its input, for tests of stream programs."""

from __future__ import annotations

import threading
from typing import Any

from flinkray.streaming.functions.functions import SinkFunction
from flinkray.streaming.records.typeinfo import TypeInformation, stringifier


class DataStreamTestSinkFunction(SinkFunction[Any]):
    """Keeps the values of a stream for a test, which reads them after ``execute``.

    Pass the sink to ``add_sink``. PyFlink's tests have a sink like this one.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> sink = DataStreamTestSinkFunction()
    >>> _ = env.from_collection([("a", 1), ("b", 2)]).map(lambda v: v).add_sink(sink)
    >>> _ = env.execute("demo")
    >>> sink.get_results(True)
    ["('a', 1)", "('b', 2)"]
    """

    shared = True
    """All subtasks of a program in this process use the same object."""

    def __init__(self) -> None:
        self._results: list[Any] = []
        self._lock = threading.Lock()
        self._text = stringifier(None)

    def set_input_type(self, type_info: TypeInformation | None) -> None:
        """Set the declared type of the stream, which decides how values are written as texts.
        Called by ``add_sink``."""
        self._text = stringifier(type_info)

    def invoke(self, value: Any) -> None:
        with self._lock:
            self._results.append(value)

    def get_results(self, is_python_object: bool = False, stringify: bool = True) -> list[Any]:
        """Return the values that have arrived since the last call.

        Args:
            is_python_object: format values as Python does; False: in Java's notation (``+I[a,
                1]``).
            stringify: return texts; False, for Python objects: return the values themselves.
        """
        with self._lock:
            results, self._results = self._results, []
        if is_python_object:
            return [str(value) for value in results] if stringify else results
        return [self._text(value) for value in results]

    def clear(self) -> None:
        """Drop the values that have arrived so far."""
        self.get_results()
