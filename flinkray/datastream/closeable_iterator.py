"""Iterator over a program's results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TypeVar

from flinkray.datastream.type_variables import T

_Self = TypeVar("_Self", bound="CloseableIterator")


class CloseableIterator(Iterator[T]):
    """Iterator over the results of a running program.

    The program runs only as far as results are asked for; closing the iterator ends the program.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> with env.from_collection([1, 2, 3]).execute_and_collect() as results:
    ...     next(results)
    1
    """

    def next(self) -> T:
        """Return the next result.

        Raises:
            StopIteration: there is none.
        """
        return next(self)

    @abstractmethod
    def close(self) -> None:
        """End the program. Results that were not taken are dropped."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
