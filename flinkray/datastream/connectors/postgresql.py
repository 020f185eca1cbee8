"""PostgreSQL sink with exactly-once semantics; needs ``flinkray[postgresql]``.

Writers insert rows into a *staging table* beside the target table, in transactions of their own. A
committable names a batch of staged rows. The commit moves the batch: one transaction deletes the
rows in the staging table and inserts them into the target table. So staged rows are not committed,
committed rows are not staged, and a repeated commit does nothing. The server's configuration needs
no change (docs/design/0045-sinks.md).

A second table notes which jobs have gone on from the same checkpoint: the last of these jobs
writes, and the others fail.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, NamedTuple

from flinkray.streaming.errors import text_of
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.json_text import to_json
from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.sink import (
    CommitRequest,
    Committer,
    CommitterContext,
    FencedSinkError,
    Sink,
    SinkError,
    SinkUnavailableError,
    StatefulSinkWriter,
    WriterContext,
)

try:
    import psycopg
    from psycopg import sql
    from psycopg.types.json import Json
except ImportError as missing:
    raise ImportError(
        "the PostgreSQL sink needs psycopg: pip install 'flinkray[postgresql]'"
    ) from missing

logger = logging.getLogger(__name__)

BATCH = "flinkray_batch"
ROW = "flinkray_row"
"""First of the columns that staging tables have before the columns of the table itself."""

_DEFAULTS = {"connect_timeout": 5, "keepalives_idle": 10, "tcp_user_timeout": 30_000}
"""Default settings of connections, which the user's settings override.
The values are in seconds, seconds and milliseconds, in this order."""

_LONGEST_WAIT = "5s"
"""Longest wait for a lock of another client.
A setting of the user, the role or the server overrides it."""

_LONGEST_NAME = 63
"""Most bytes of a name in PostgreSQL (NAMEDATALEN)."""

_OF_JSON = (dict, list, tuple, bool)
"""Types of values that become JSON in a JSON column.
Numbers have the same text in JSON. Text must be JSON already."""

_MOST_ROWS = 10_000
"""Most rows that a writer buffers before it stages them."""


class StagedBatch(NamedTuple):
    """A batch of rows in the staging table (name, number of rows) that the committer moves into the
    target table."""

    name: str
    rows: int


class _Attempt(NamedTuple):
    """Identity of an attempt of a writer. Its text is the middle part of the names of the batches
    that the attempt stages.

    Attempt numbers begin again with a new JobMaster or parallelism, but checkpoint ids never
    decrease. An attempt is restored from the last complete checkpoint. So of two attempts of a job,
    the one that was restored from the earlier checkpoint has ended.
    """

    job_id: str
    """Id of the job. Empty: unknown, or an earlier flinkray has given the name."""
    checkpoint_id: int
    """Id of the checkpoint that the attempt is restored from."""
    unique: str

    def __str__(self) -> str:
        return f"{self.job_id}.{self.checkpoint_id}.{self.unique}"

    @staticmethod
    def of(name: str) -> _Attempt:
        job_id, checkpoint_id, unique = name.split(".") if "." in name else ("", "0", name)
        return _Attempt(job_id, int(checkpoint_id), unique)


class _Lineage(NamedTuple):
    """The state of a writer: for a run, the staged batches that belong to the checkpoint with this
    state."""

    run: str
    """Beginning of the names of the batches."""
    covered: dict[str, int]
    """Number of the first batch that the checkpoint does not cover, by attempt."""


class PostgreSqlSink(Sink[object, StagedBatch]):
    """Sink that inserts rows into a PostgreSQL table, or updates existing rows.

    Records are rows, tuples or lists with a value for each column; or rows and dictionaries whose
    fields are named as the columns; or, for a table of one column, the plain values.

    Args:
        conninfo: connection string of libpq, ``"host=db dbname=shop user=etl"`` or
            ``"postgresql://..."``.
        table: name of the table, optionally after its schema and a dot.
        columns: the columns that are written.
        key: columns with a unique index: a row replaces an existing row with the same key.
        staging_table: created if it does not exist, as is ``<staging table>_jobs``; by default
            ``<table>_flinkray``. Sinks that write the same columns of a table may share it.
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        columns: Sequence[str],
        *,
        key: Sequence[str] = (),
        staging_table: str | None = None,
    ) -> None:
        missing = [column for column in key if column not in columns]
        if not columns or missing:
            raise SinkError(
                f"a sink of table {table!r} needs columns, and those of the key among them"
                + (f": {', '.join(missing)} is missing" if missing else "")
            )
        self._database = _Database(
            conninfo, table, tuple(columns), tuple(key), staging_table or f"{table}_flinkray"
        )
        self.commits_in_order = bool(key)  # a row must not replace a later row
        name = self._database.jobs_table.rpartition(".")[2]
        if len(name.encode()) > _LONGEST_NAME:  # PostgreSQL would cut the name
            raise SinkError(
                f"a table {name} is needed beside {table}, and names of tables have at most "
                f"{_LONGEST_NAME} bytes: give a shorter staging_table"
            )

    def create_writer(self, context: WriterContext) -> _Writer:
        return _Writer(self._database, context, ())

    def restore_writer(self, context: WriterContext, states: Sequence[Any]) -> _Writer:
        return _Writer(self._database, context, states)

    def create_committer(self, context: CommitterContext) -> Committer[StagedBatch]:
        return _Committer(self._database, context.job_id)


class _Database(NamedTuple):
    """Settings and statements that writers and committers share."""

    conninfo: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    staging_table: str

    @property
    def jobs_table(self) -> str:
        """The name of the table with notes about jobs, beside the staging table. A row (run, job)
        says that the job has written batches of the run; the order of these rows is the order in
        which the jobs began. A row (batch, job) says that the job has removed the batch. A *run* is
        the beginning of batch names, shared by jobs that were restored from one another."""
        return f"{self.staging_table}_jobs"

    def connect(self) -> psycopg.Connection[Any]:
        """Connect to the database. Raises psycopg.OperationalError."""
        parts = _DEFAULTS | psycopg.conninfo.conninfo_to_dict(self.conninfo)
        # prepared statements do not work with connection pools
        connection = psycopg.connect(**parts, autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]
        try:
            (commit,) = connection.execute("SHOW synchronous_commit").fetchone() or ("on",)
            if commit == "off":  # a batch that is reported as staged must be durable
                connection.execute("SET synchronous_commit TO on")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def failing_clearly(self, what: str) -> Iterator[None]:
        """Context manager: raise SinkError, whose text says *what* failed, in place of errors of
        the server or the library. SinkUnavailableError is raised if a retry may help."""
        try:
            yield
        except psycopg.Error as error:
            kind = SinkError if _is_lasting(error) else SinkUnavailableError
            raise kind(f"cannot {what}: {_text_of(error)}") from error

    def limit_waits(self, connection: psycopg.Connection[Any]) -> None:
        """Limit waits for locks in this transaction. A longer wait raises psycopg.OperationalError.
        The limit ends with the transaction, because behind a connection pool the next transaction
        may use another server process."""
        connection.execute(
            sql.SQL(
                "SELECT set_config(name, {}, true) FROM pg_settings "
                "WHERE name = 'lock_timeout' AND source = 'default'"
            ).format(_LONGEST_WAIT)
        )

    def move(self, connection: psycopg.Connection[Any], batch: str) -> int:
        """Move the staged rows of a batch into the table; return their number."""
        columns = _names(self.columns)
        if self.key:
            others = [column for column in self.columns if column not in self.key]
            rows = sql.SQL(
                "SELECT DISTINCT ON ({same}) {columns} FROM moved ORDER BY {same}, {row} DESC "
                "ON CONFLICT ({key}) DO {update}"
            ).format(
                same=self._same_key(connection),
                key=_names(self.key),
                columns=columns,
                row=sql.Identifier(ROW),
                update=sql.SQL("UPDATE SET {}").format(
                    sql.SQL(", ").join(
                        sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(c)) for c in others
                    )
                )
                if others
                else sql.SQL("NOTHING"),
            )
        else:
            rows = sql.SQL("SELECT {} FROM moved ORDER BY {}").format(columns, sql.Identifier(ROW))
        statement = sql.SQL(
            "WITH moved AS (DELETE FROM {stage} WHERE {batch} = {name} RETURNING *), "
            "inserted AS (INSERT INTO {table} ({columns}) {rows}) SELECT count(*) FROM moved"
        ).format(
            stage=_name(self.staging_table),
            batch=sql.Identifier(BATCH),
            name=batch,
            table=_name(self.table),
            columns=columns,
            rows=rows,
        )
        found = connection.execute(statement).fetchone()
        assert found is not None
        return int(found[0])

    def _same_key(self, connection: psycopg.Connection[Any]) -> sql.Composed:
        """Return the SQL expressions, separated by commas, that are all equal for two rows if and
        only if the unique index takes the rows as equal. The index may have other collations than
        the columns. Nulls differ from each other unless the index is declared with NULLS NOT
        DISTINCT."""
        found = connection.execute(
            sql.SQL(
                "SELECT i.indexrelid, to_jsonb(i) ->> 'indnullsnotdistinct' = 'true', "
                "a.attname, n.nspname, c.collname FROM pg_index i CROSS JOIN LATERAL "
                "unnest(i.indkey::int2[], i.indcollation::oid[]) WITH ORDINALITY "
                "AS k (attnum, coll, place) "
                "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
                "LEFT JOIN pg_collation c ON c.oid = k.coll "
                "LEFT JOIN pg_namespace n ON n.oid = c.collnamespace "
                "WHERE i.indrelid = to_regclass({}) AND i.indisunique AND i.indisvalid "
                "AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts"
            ).format(_name(self.table).as_string(connection))
        )
        indexes: dict[int, dict[str, sql.Composable]] = {}
        nulls_are_same = {}
        for index, are_same, column, *collation in found.fetchall():
            of_index = indexes.setdefault(index, {})
            of_index[column] = sql.Identifier(column)
            if collation[1] is not None:
                of_index[column] += sql.SQL(" COLLATE ") + sql.Identifier(*collation)
            nulls_are_same[index] = are_same
        fitting = [index for index, columns in indexes.items() if columns.keys() == {*self.key}]
        if fitting:
            same = [indexes[fitting[0]][column] for column in self.key]
        else:  # for example, a view
            same = [sql.Identifier(column) for column in self.key]
        if not any(nulls_are_same[index] for index in fitting):
            has_null = sql.SQL(" OR ").join(
                sql.SQL("{} IS NULL").format(sql.Identifier(column)) for column in self.key
            )
            same.append(sql.SQL("CASE WHEN {} THEN {} END").format(has_null, sql.Identifier(ROW)))
        return sql.SQL(", ").join(same)

    def claim(self, connection: psycopg.Connection[Any], run: str, job_id: str) -> None:
        """Note that from now on only this job may write batches whose names begin with *run*.
        Raises FencedSinkError: another job has noted the same after this job's first claim."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", [run])
        connection.execute(
            sql.SQL("INSERT INTO {} (run, job) VALUES ({}, {}) ON CONFLICT DO NOTHING").format(
                _name(self.jobs_table), run, job_id
            )
        )
        self.check_owner(connection, run, job_id)

    def check_owner(self, connection: psycopg.Connection[Any], run: str, job_id: str) -> None:
        """Check that no other job has called :meth:`claim` for *run* after this job. Raises
        FencedSinkError: another job has."""
        later = connection.execute(
            sql.SQL(
                "SELECT later.job FROM {jobs} later JOIN {jobs} mine USING (run) WHERE "
                "run = {run} AND mine.job = {job} AND later.number > mine.number "
                "ORDER BY later.number DESC LIMIT 1"
            ).format(jobs=_name(self.jobs_table), run=run, job=job_id)
        ).fetchone()
        if later is not None:
            raise FencedSinkError(
                f"table {self.table} is written by job {later[0]} now, which went on from a "
                f"checkpoint or savepoint of job {job_id} or from the same as that: end one of "
                "the two; of what this job has not committed, the other one writes what comes "
                "after that checkpoint"
            )

    def batches(self, connection: psycopg.Connection[Any], prefix: str) -> list[tuple[str, str]]:
        """Return (name, attempt) of each staged batch whose name begins with *prefix*."""
        found = connection.execute(
            sql.SQL("SELECT DISTINCT {batch} FROM {stage} WHERE {batch} LIKE {like}").format(
                batch=sql.Identifier(BATCH), stage=_name(self.staging_table), like=f"{prefix}%"
            )
        )
        return [(name, name.split("/")[1]) for (name,) in found.fetchall()]

    def remove(
        self, connection: psycopg.Connection[Any], batches: Sequence[str], job_id: str
    ) -> None:
        """Delete the rows of staged batches that must not be committed, and note the removal.
        A savepoint may still name a batch that is not staged any more. By the note,
        :meth:`check_not_removed` knows whether the batch was removed or moved into the table."""
        if not batches:
            return
        connection.execute(
            sql.SQL("DELETE FROM {} WHERE {} = ANY({})").format(
                _name(self.staging_table), sql.Identifier(BATCH), list(batches)
            )
        )
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (run, job) SELECT unnest({}::text[]), {} ON CONFLICT DO NOTHING"
            ).format(_name(self.jobs_table), list(batches), job_id)
        )

    def check_not_removed(self, connection: psycopg.Connection[Any], batch: StagedBatch) -> None:
        """Check that a batch without staged rows was moved into the table, and not removed.
        Raises FencedSinkError: the batch was removed, so its rows are not in the table."""
        found = connection.execute(
            sql.SQL("SELECT job FROM {} WHERE run = {}").format(_name(self.jobs_table), batch.name)
        ).fetchone()
        if found is not None:
            raise FencedSinkError(
                f"{batch.rows} rows for table {self.table} are in this checkpoint or savepoint "
                f"that are not staged any more: after it was taken, job {found[0]} went on from an "
                "earlier checkpoint, and wrote them again if it came so far.  Start from a later "
                "savepoint or checkpoint.  If these rows are in the table or not needed, DELETE "
                f"FROM {self.jobs_table} WHERE run = '{batch.name}', and start again"
            )

    def prepare(self, connection: psycopg.Connection[Any]) -> dict[str, _Column]:
        """Create the staging table and the table of jobs if they are missing, and return the
        columns of the target table by name. Raises SinkError: the target table or one of its
        columns is missing, or rows that are staged do not fit its column types."""
        with connection.transaction():
            self.limit_waits(connection)
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [self.staging_table]
            )
            there = _columns_of(connection, self.table)
            missing = [column for column in self.columns if column not in there]
            if not there or missing:
                what = f"has no column {missing[0]!r}" if there else "is not there"
                raise SinkError(
                    f"table {self.table} {what} in database {connection.info.dbname!r}: create it, "
                    "or correct the name"
                )
            connection.execute(
                sql.SQL(
                    'CREATE TABLE IF NOT EXISTS {} ({} text COLLATE "C" NOT NULL, {} bigint '
                    "NOT NULL, {}, PRIMARY KEY ({}, {}))"
                ).format(
                    _name(self.staging_table),
                    sql.Identifier(BATCH),
                    sql.Identifier(ROW),
                    sql.SQL(", ").join(
                        sql.SQL("{} {} {}").format(
                            sql.Identifier(column),
                            sql.SQL(there[column].type),
                            sql.SQL("NOT NULL" if there[column].is_required else ""),
                        )
                        for column in self.columns
                    ),
                    sql.Identifier(BATCH),
                    sql.Identifier(ROW),
                )
            )
            self._adapt_staging_table(connection, there)
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (run text NOT NULL, job text NOT NULL, "
                    "number bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (run, job))"
                ).format(_name(self.jobs_table))
            )
            return there

    def _adapt_staging_table(
        self, connection: psycopg.Connection[Any], there: Mapping[str, _Column]
    ) -> None:
        """Give the columns of the staging table the types of the target table, if they differ: with
        old types, new values would be cut. Staged rows are converted. *there*: the columns of the
        target table. Raises SinkError: staged rows cannot be converted."""
        staged = _columns_of(connection, self.staging_table)
        altered = [column for column in self.columns if staged.get(column) != there[column]]
        if not altered:
            return
        stage = _name(self.staging_table)
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(stage))
        (has_rows,) = connection.execute(
            sql.SQL("SELECT EXISTS (SELECT FROM {})").format(stage)
        ).fetchone() or (True,)
        for column in altered:
            was, now = staged.get(column), there[column]
            if was is None and has_rows:
                raise self._cannot_be_changed(column, "it has rows without that")
            changes = sql.SQL(", ").join(_changes(column, was, now, has_rows))
            try:
                connection.execute(sql.SQL("ALTER TABLE {} {}").format(stage, changes))
            except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
                raise self._cannot_be_changed(column, _text_of(error)) from error

    def _cannot_be_changed(self, column: str, why: str) -> SinkError:
        return SinkError(
            f"{self.staging_table} was made when column {column!r} of table {self.table} was "
            f"another one, and cannot be changed: {why}.  Change the table back, and let the job "
            "that staged rows there go on and end.  Or if no job is to go on from its checkpoints, "
            f"DROP TABLE {self.staging_table}"
        )


class _Column(NamedTuple):
    """Column of a table, with the properties that staged values depend on."""

    type: str
    """Type of the column as in SQL statements."""
    is_required: bool
    is_json: bool


def _columns_of(connection: psycopg.Connection[Any], table: str) -> dict[str, _Column]:
    """Return the columns of a table by name; empty if the table does not exist."""
    found = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, "
        "CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END "
        "IN ('json'::regtype, 'jsonb'::regtype) "
        "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
        "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped",
        [_name(table).as_string(connection)],
    )
    return {name: _Column(*properties) for name, *properties in found.fetchall()}


def _changes(
    column: str, was: _Column | None, now: _Column, has_rows: bool
) -> Iterator[sql.Composed]:
    """Yield the SQL clauses that change a column of a staging table from *was* to *now*."""
    required = sql.SQL("NOT NULL")
    name = sql.Identifier(column)
    if was is None:
        yield sql.SQL("ADD COLUMN {} {} {}").format(
            name, sql.SQL(now.type), required if now.is_required else sql.SQL("")
        )
        return
    if was.type != now.type:
        using = sql.SQL("" if has_rows else "USING NULL")  # from any type to any other
        yield sql.SQL("ALTER COLUMN {} TYPE {} {}").format(name, sql.SQL(now.type), using)
    if was.is_required != now.is_required:
        verb = sql.SQL("SET" if now.is_required else "DROP")
        yield sql.SQL("ALTER COLUMN {} {} {}").format(name, verb, required)


def _name(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


_LASTING = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.NotSupportedError,
    psycopg.ProgrammingError,
)
_LASTING_ANSWER = re.compile(
    r"FATAL: .*(does not exist|authentication failed|pg_hba\.conf|permission denied|not permitted)"
)
"""Messages with which the server refuses a client for good; the library has no codes for them."""


def _is_lasting(error: psycopg.Error) -> bool:
    """Return whether a repetition would raise the error again, so that a restart of the job does
    not help."""
    answers = [line for line in str(error).splitlines() if "FATAL:" in line]
    # the library may have retried without encryption, and this retry may be refused
    is_refused = bool(answers) and all(map(_LASTING_ANSWER.search, answers))
    return isinstance(error, _LASTING) or is_refused


def _text_of(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


class _Writer(StatefulSinkWriter[StagedBatch, _Lineage]):
    """Writer that stages rows. Every error fails the writer's attempt. The next attempt removes the
    rows that this attempt has staged since the last checkpoint; the job then stages these rows
    again."""

    def __init__(self, database: _Database, context: WriterContext, states: Sequence[Any]) -> None:
        self._database = database
        self._job_id = context.job_id
        self._restored_checkpoint_id = context.restored_checkpoint_id
        unique = uuid.uuid4().hex
        self._attempt = str(_Attempt(context.job_id, context.restored_checkpoint_id, unique))
        self._lineages = [_Lineage(*state) for state in states] or [_Lineage(uuid.uuid4().hex, {})]
        self._number = 0
        """Number of the present batch."""
        self._staged = 0
        """Number of staged rows of the present batch."""
        self._rows: list[Sequence[Any]] = []
        self._connection: psycopg.Connection[Any] | None = None
        with ExitStack() as opened:
            what = f"begin to write into table {database.table}"
            opened.enter_context(database.failing_clearly(what))
            connection = opened.enter_context(closing(database.connect()))
            there = database.prepare(connection)
            with connection.transaction():
                for run in sorted(lineage.run for lineage in self._lineages):
                    database.claim(connection, run, context.job_id)
                self._lineages = [self._cleaned(connection, each) for each in self._lineages]
            opened.pop_all()
            self._connection = connection
        self._are_json = [there[column].is_json for column in database.columns]
        columns = (BATCH, ROW, *database.columns)
        self._copy = sql.SQL("COPY {} ({}) FROM STDIN").format(
            _name(database.staging_table), _names(columns)
        )

    def _cleaned(self, connection: psycopg.Connection[Any], lineage: _Lineage) -> _Lineage:
        """Remove the batches of the run that must not be committed: those that the attempts in
        *lineage* staged after the restored checkpoint, and those of attempts that are not in
        *lineage*. Batches of attempts of this job that began at the restored checkpoint or later
        stay; the committer removes them when it knows that these attempts have failed. Returns
        *lineage* without the attempts that have no staged batches any more."""
        run, covered = lineage
        left: dict[str, int] = {}
        removed = []
        for name, attempt in self._database.batches(connection, f"{run}/"):
            if attempt in covered:
                if int(name.rpartition("/")[2]) < covered[attempt]:
                    left[attempt] = covered[attempt]
                else:
                    removed.append(name)
                continue
            other = _Attempt.of(attempt)
            is_of_this_job = other.job_id == self._job_id and other.job_id
            if not is_of_this_job or other.checkpoint_id < self._restored_checkpoint_id:
                removed.append(name)
        self._database.remove(connection, removed, self._job_id)
        return _Lineage(run, left)

    @property
    def _batch(self) -> str:
        return f"{self._lineages[0].run}/{self._attempt}/{self._number}"

    def write(self, block: Block) -> None:
        records = iter(block.values)
        self.reading = block, records  # for error messages
        self._rows += [self._row(value) for value in records]
        if len(self._rows) >= _MOST_ROWS:
            self._stage()

    def _row(self, value: Any) -> Sequence[Any]:
        columns = self._database.columns
        if isinstance(value, Row) and value._fields is not None:
            value = value.as_dict()
        if isinstance(value, Mapping) and not (len(columns) == 1 and columns[0] not in value):
            try:
                fields: Sequence[Any] = [value[column] for column in columns]
            except KeyError as missing:
                raise SinkError(
                    f"a record for table {self._database.table} has no field {missing}: {value!r}"
                ) from missing
        elif isinstance(value, Row | tuple | list):
            fields = list(value)
        else:
            fields = [value]
        if len(fields) != len(columns):
            raise SinkError(
                f"a record for {len(columns)} columns of table {self._database.table} has "
                f"{len(fields)} fields: {value!r}"
            )
        return [
            self._json(field) if isinstance(field, _OF_JSON if is_json else dict) else field
            for field, is_json in zip(fields, self._are_json, strict=True)
        ]

    def _json(self, field: Any) -> Json:
        try:
            text = to_json(field)
        except (TypeError, ValueError) as error:
            raise SinkError(
                f"{text_of(field)} of a record for table {self._database.table} cannot be written "
                f"as JSON: {error}"
            ) from error
        return Json(field, lambda _: text)

    def _stage(self) -> None:
        if not self._rows:
            return
        connection, batch = self._connection, self._batch
        assert connection is not None
        first = self._staged
        with (
            self._database.failing_clearly(
                f"write rows for table {self._database.table} into {self._database.staging_table}"
            ),
            connection.transaction(),
            connection.cursor() as cursor,
            cursor.copy(self._copy) as copy,
        ):
            for place, row in enumerate(self._rows):
                copy.write_row((batch, first + place, *row))
        self._staged += len(self._rows)
        self._rows = []

    def prepare_commit(self, end_of_input: bool) -> list[StagedBatch]:
        self._stage()
        if not self._staged:
            return []
        batch = StagedBatch(self._batch, self._staged)
        self._number += 1
        self._staged = 0
        return [batch]

    def snapshot_state(self, checkpoint_id: int) -> list[_Lineage]:
        (run, covered), *others = self._lineages
        return [_Lineage(run, {**covered, self._attempt: self._number}), *others]

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Committer(Committer[StagedBatch]):
    """Committer that moves staged rows. While the server is away or another client holds a lock,
    commits are tried again, and later commits wait. So rows keep their order, and one call does not
    wait for a lock again and again."""

    def __init__(self, database: _Database, job_id: str) -> None:
        self._database = database
        self._job_id = job_id
        self._connection: psycopg.Connection[Any] | None = None

    def commit(self, requests: Sequence[CommitRequest[StagedBatch]]) -> None:
        hindrance: SinkError | None = None
        for request in requests:
            if hindrance is not None:
                request.retry_later(hindrance)
                continue
            try:
                self._move(request)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                # the server is away, its disk is full, or another client holds a lock
                hindrance = SinkError(
                    f"rows cannot be moved from {self._database.staging_table} to "
                    f"{self._database.table} now: {_text_of(error)}"
                )
                request.retry_later(hindrance)
                if self._connection is None or self._connection.broken:
                    self.close()
            except psycopg.Error as error:
                request.signal_failed_with_unknown_reason(
                    SinkError(f"table {self._database.table} refuses rows: {_text_of(error)}")
                )

    def _move(self, request: CommitRequest[StagedBatch]) -> None:
        if self._connection is None:
            with ExitStack() as opened:  # the committer may run before any writer
                connection = opened.enter_context(closing(self._database.connect()))
                self._database.prepare(connection)
                opened.pop_all()
            self._connection = connection
        name, rows = request.committable
        with self._connection.transaction():
            self._database.limit_waits(self._connection)
            moved = self._database.move(self._connection, name)
            self._database.check_owner(self._connection, name.split("/")[0], self._job_id)
            if not moved:
                self._database.check_not_removed(self._connection, request.committable)
            if moved not in (0, rows):
                raise SinkError(
                    f"{moved} of {rows} rows of batch {name} are in "
                    f"{self._database.staging_table}: somebody else has changed that table"
                )
            self._remove_of_failed(self._connection, name)
        if not moved:
            request.signal_already_committed()

    def _remove_of_failed(self, connection: psycopg.Connection[Any], batch: str) -> None:
        """Remove the batches of attempts that began at the same checkpoint as the attempt that
        staged *batch*, but failed. They have failed because a later checkpoint, which covers the
        attempt of *batch*, is complete. Does nothing unless *batch* is the first batch of its
        attempt."""
        run, attempt, number = batch.split("/")
        of_batch = _Attempt.of(attempt)
        if int(number) or not of_batch.checkpoint_id or of_batch.job_id != self._job_id:
            return
        same = f"{run}/{self._job_id}.{of_batch.checkpoint_id}."
        found = self._database.batches(connection, same)
        failed = [name for name, other in found if other != attempt]
        self._database.remove(connection, failed, self._job_id)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
