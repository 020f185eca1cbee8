"""Divides a result among several readers, and reads a share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from flinkray.file_results.directory import ResultDirectory, ResultFile


@dataclass(frozen=True, slots=True)
class RowGroupSplit:
    """Some row groups of one Parquet file, which one reader reads."""

    directory: ResultDirectory
    file: ResultFile
    row_groups: tuple[int, ...]


def share_of(
    directories: Iterable[ResultDirectory], reader: int, number_of_readers: int
) -> list[RowGroupSplit]:
    """Return the share of reader number *reader*. Together, the readers read every row once.

    Row groups are dealt out in turn, in the order of directories and files. So the shares are the
    same in every call, and one large file is read by several readers.
    Raises FileResultLostError if a directory is not complete.
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
    """Yield the rows of the splits, in their order; blocks.
    Raises FileResultLostError if a file is missing or damaged."""
    for split in splits:
        with split.directory.open(split.file) as file:
            batches = file.iter_batches(batch_size, row_groups=list(split.row_groups))
            while True:
                with split.directory.reading(split.file):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch
