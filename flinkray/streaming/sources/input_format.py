"""Input formats: inputs that are divided into splits, which are read record by record."""

from __future__ import annotations

import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

from flinkray.core import cloud_pickle
from flinkray.core.clock import Clock
from flinkray.core.error_text import summary_of
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sources.collection import ThreadedIteratorReader
from flinkray.streaming.sources.source import (
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
)

logger = logging.getLogger(__name__)

OT = TypeVar("OT", covariant=True, default=Any)
InputT = TypeVar("InputT", default=Any)


class InputFormat(ABC, Generic[OT, InputT]):
    """Divides an input into splits, and reads the records of a split, for ``env.create_input``.

    The format is pickled: each subtask has its own copy, and another copy creates the splits, also
    in a run in one process. A split is any value that can be pickled; :meth:`open` gets a copy. A
    subtask reads one split after the other. :meth:`open`, :meth:`reached_end`, :meth:`next_record`
    and :meth:`close` are called in a thread that the split has to itself, and may block.
    """

    @abstractmethod
    def create_input_splits(self, min_num_splits: int) -> Sequence[InputT]:
        """Return a list of the splits of the whole input, in the order in which to read them.
        Called when the job begins, and again only if the job begins anew without a checkpoint.
        *min_num_splits* is the parallelism of the readers. Fewer splits leave subtasks idle."""

    @abstractmethod
    def open(self, split: InputT) -> None:
        """Begin to read a split."""

    @abstractmethod
    def reached_end(self) -> bool:
        """Return whether the split has no more records. Called before each record."""

    @abstractmethod
    def next_record(self) -> OT | None:
        """Return the next record of the split. None: the split has no more records."""

    def close(self) -> None:
        """Release what :meth:`open` has acquired. Also called if reading the split failed.
        After a failure, an error of this method is only logged."""
        return

    def get_produced_type(self) -> TypeInformation[OT] | None:
        """Return the type of the records. None: unknown."""
        return None


class InputFormatSplit(NamedTuple):
    """A pickled split of an input format, of which the first *offset* records have been read.
    The split stays pickled, because :meth:`InputFormat.open` may change the object that it gets."""

    split: bytes
    offset: int


class InputFormatSource(Source[OT, InputFormatSplit]):
    """Reads an input format. Splits go, in their order, to the subtask that asks next. After a
    restart, a split that was read in part is read from its beginning, and the records before the
    offset are skipped. So a format must return the same records of a split in the same order."""

    waits_for_splits = True

    def __init__(self, input_format: InputFormat[OT]) -> None:
        self._format = input_format

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def get_produced_type(self) -> TypeInformation[OT] | None:
        return self._format.get_produced_type()

    def create_enumerator(
        self, context: EnumeratorContext[InputFormatSplit], clock: Clock
    ) -> SplitEnumerator[InputFormatSplit]:
        return _InputFormatEnumerator(context, self._copy_of_format())

    def create_reader(self, context: ReaderContext) -> SourceReader[InputFormatSplit]:
        return _InputFormatReader(context, self._copy_of_format())

    def _copy_of_format(self) -> InputFormat[OT]:
        """Return a copy of the format: in a run in one process, all subtasks use the same source
        object."""
        try:
            pickled = cloud_pickle.dumps(self._format)
        except Exception as error:
            raise StreamError(
                f"the input format {type(self._format).__name__} cannot be sent to its tasks: "
                f"{summary_of(error)}; make what it refers to in open()"
            ) from error
        copy: InputFormat[OT] = pickle.loads(pickled)
        return copy


class _InputFormatEnumerator(FixedSplitsEnumerator[InputFormatSplit]):
    """Creates the splits when a run begins, unless the run continues from a checkpoint."""

    def __init__(
        self, context: EnumeratorContext[InputFormatSplit], input_format: InputFormat
    ) -> None:
        super().__init__(context, ())
        self._format = input_format
        self._is_restored = False

    def restore(self, checkpoint: Any) -> None:
        super().restore(checkpoint)
        self._is_restored = True

    def start(self) -> None:
        if self._is_restored:
            return
        splits = self._format.create_input_splits(self.context.current_parallelism())
        if not isinstance(splits, Sequence) or isinstance(splits, (str, bytes, bytearray)):
            raise StreamError(
                f"create_input_splits of {type(self._format).__name__} must return a list of "
                f"splits: it returned a {type(splits).__name__}"
            )
        self._remaining = [InputFormatSplit(self._pickled(split), 0) for split in splits]

    def _pickled(self, split: object) -> bytes:
        try:
            return cloud_pickle.dumps(split)
        except Exception as error:
            raise StreamError(
                f"create_input_splits of {type(self._format).__name__} must return splits that can "
                f"be pickled: a {type(split).__name__} cannot: {summary_of(error)}"
            ) from error


class _InputFormatReader(ThreadedIteratorReader[InputFormatSplit]):
    """Reads each split in a thread of its own, because the format may block."""

    def __init__(self, context: ReaderContext, input_format: InputFormat) -> None:
        super().__init__(context)
        self._format = input_format
        self._split = b""
        self._is_closed = False

    def open_split(self, split: InputFormatSplit) -> None:
        self._split, offset = split
        self.begin(lambda: _records(self._format, split, lambda: self._is_closed), offset)

    def remaining(self) -> InputFormatSplit:
        return InputFormatSplit(self._split, self.offset)

    def close(self) -> None:
        self._is_closed = True
        super().close()


def _records(
    input_format: InputFormat[OT], split: InputFormatSplit, is_closed: Callable[[], bool]
) -> Iterator[OT]:
    try:
        yield from _records_left(input_format, split, is_closed)
    except BaseException:
        try:
            input_format.close()
        except Exception:
            name = type(input_format).__name__
            logger.warning("close() of %s failed after an error", name, exc_info=True)
        raise
    input_format.close()


def _records_left(
    input_format: InputFormat[OT], split: InputFormatSplit, is_closed: Callable[[], bool]
) -> Iterator[OT]:
    """Yield the records of a split from its offset on. Ends early, even while earlier records are
    skipped, when *is_closed* returns true."""
    input_format.open(pickle.loads(split.split))
    read = 0
    while not is_closed() and not input_format.reached_end():
        record = input_format.next_record()
        if record is None:
            return
        read += 1
        if read > split.offset:
            yield record
