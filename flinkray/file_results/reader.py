"""What one of several readers gets of a result, and reading it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from flinkray.file_results.directory import ResultDirectory, ResultFile


@dataclass(frozen=True, slots=True)
class RowGroupSplit:
    """Some row groups of one file."""

    directory: ResultDirectory
    file: ResultFile
    row_groups: tuple[int, ...]


def share_of(
    directories: Iterable[ResultDirectory], reader: int, number_of_readers: int
) -> list[RowGroupSplit]:
    """What the *reader*-th of several gets: together they read every row once.

    Row groups are dealt out one after the other, in the order of directories and files, so that the
    shares are the same whenever they are asked for, and no file is too large for one reader.

    Raises:
        FileResultLostError: a directory is not complete.
    """
    if not 0 <= reader < number_of_readers:
        raise ValueError(f"there is no reader {reader} of {number_of_readers}")
    share = []
    number = 0
    for directory in directories:
        for file in directory.list():
            mine = []
            for row_group in range(len(file.row_groups)):
                if number % number_of_readers == reader:
                    mine.append(row_group)
                number += 1
            if mine:
                share.append(RowGroupSplit(directory, file, tuple(mine)))
    return share


def read_batches(
    splits: Iterable[RowGroupSplit], batch_size: int = 65_536
) -> Iterator[pa.RecordBatch]:
    """The rows of splits, in their order; blocking.

    Raises:
        FileResultLostError: a file is gone, or damaged.
    """
    for split in splits:
        with split.directory.open(split.file) as file:
            batches = file.iter_batches(batch_size, row_groups=list(split.row_groups))
            while True:
                with split.directory.reading(split.file):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch
