"""Where hours and alerts of the flights go: Parquet files, and a table of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow.dataset as ds
from psycopg import errors

import flinkray
from flinkray.datastream.connectors import FileSink, ParquetFormat, Sink
from flinkray.datastream.connectors.file_system import BucketAssigner
from flinkray.datastream.connectors.postgresql import PostgreSqlSink
from flinkray.testing.postgres_server import (
    PostgresServer,
    PostgresServerError,
    postgres_server,
    why_not,
)

TABLE = "flights_alerts"
COLUMNS = {
    "airport": "text",
    "hour": "bigint",
    "mean_delay": "double precision",
    "usual_delay": "double precision",
    "deviation": "double precision",
}
"""Nothing in the table forbids the same row twice, so that a row that was written twice is seen."""


class OutputError(flinkray.FlinkRayError):
    """There is something already, or it cannot be made or read; the text says why."""


class Output(Protocol):
    """Where a stream ends."""

    def sink(self) -> Sink[Any]: ...

    def rows(self) -> list[dict[str, Any]]:
        """What is there, in no order."""


class Files:
    """Parquet files in a new folder, which appear when a checkpoint has them.

    Raises:
        OutputError: there is something in the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        if folder.is_dir() and any(folder.iterdir()):
            raise OutputError(
                f"{self._folder} has files already, of an earlier run: remove it, or name another "
                "folder by --output"
            )

    def __str__(self) -> str:
        return f"Parquet files in {self._folder}"

    def sink(self) -> FileSink:
        sink = FileSink.for_bulk_format(str(self._folder), ParquetFormat())
        return sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            ds.dataset(self._folder, format="parquet").to_table().to_pylist()
        )
        return rows


class Table:
    """A new table of PostgreSQL.

    Raises:
        OutputError: it is there already, or the database does not answer.
    """

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        columns = ", ".join(f"{name} {kind} not null" for name, kind in COLUMNS.items())
        try:
            with psycopg.connect(conninfo) as connection:
                connection.execute(f"CREATE TABLE {TABLE} ({columns})")
        except errors.DuplicateTable:
            raise OutputError(
                f"the database has a table {TABLE} already, of an earlier run: drop it, or name "
                "another database"
            ) from None
        except psycopg.Error as error:
            raise OutputError(f"cannot make the table {TABLE}: {error}") from error

    def __str__(self) -> str:
        return f"table {TABLE} of PostgreSQL"

    def sink(self) -> PostgreSqlSink:
        return PostgreSqlSink(self.conninfo, TABLE, tuple(COLUMNS))

    def rows(self) -> list[dict[str, Any]]:
        try:
            with psycopg.connect(self.conninfo) as connection:
                found = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}").fetchall()
        except psycopg.Error as error:
            raise OutputError(f"cannot read the table {TABLE}: {error}") from error
        return [dict(zip(COLUMNS, row, strict=True)) for row in found]


@contextmanager
def alerts_output(conninfo: str | None, folder: Path) -> Iterator[Output]:
    """A table of the database that is named; else of one that is there for as long as this lasts,
    if PostgreSQL is installed; else files in *folder*."""
    if conninfo is not None:
        yield Table(conninfo)
    elif why_not():
        print(f"{why_not()}, so alerts go to files; --postgresql names another database")
        yield Files(folder)
    else:
        with _own_server() as server:
            yield Table(server.conninfo)


@contextmanager
def _own_server() -> Iterator[PostgresServer]:
    try:
        with postgres_server() as server:
            yield server
    except PostgresServerError as error:
        raise OutputError(
            f"PostgreSQL is installed and does not start ({error}); --postgresql names another "
            "database"
        ) from error
