"""Rows into PostgreSQL's real server, each once, whatever dies."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flinkray.core.errors import JobExecutionError
from flinkray.datastream import Configuration, Row, StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.connectors import SinkError
from flinkray.streaming.sinks.sink_operators import FIRST_PAUSE
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.held_numbers import LET_OUT, PARTS, HeldNumbers, crash_after_each_part
from tests.datastream.tallies import settings
from tests.streaming.sinks.sink_harness import SinkHarness, SinkState

psycopg = pytest.importorskip("psycopg")

from flinkray.datastream.connectors import postgresql  # noqa: E402
from flinkray.datastream.connectors.postgresql import PostgreSqlSink  # noqa: E402
from flinkray.testing.postgres_server import PostgresServer, postgres_server, why_not  # noqa: E402

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

COUNT = 6000
JOB = "1" * 32


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def table(server: PostgresServer) -> str:
    """Empty, of two columns."""
    execute(server, "DROP TABLE IF EXISTS numbers, numbers_flinkray, numbers_flinkray_jobs")
    execute(server, "CREATE TABLE numbers (n bigint NOT NULL CHECK (n >= 0), name varchar(9))")
    return "numbers"


def execute(server: PostgresServer, statement: str) -> list[Any]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def rows_of(server: PostgresServer, table: str = "numbers") -> list[Any]:
    return execute(server, f"SELECT * FROM {table} ORDER BY 1, 2")


def staged(server: PostgresServer) -> int:
    ((count,),) = execute(server, "SELECT count(*) FROM numbers_flinkray")
    return int(count)


@contextmanager
def locked(server: PostgresServer, statement: str) -> Iterator[None]:
    """By another session, which the server ends after a while: no test hangs."""
    limit = f"{server.conninfo} options='-c idle_in_transaction_session_timeout=3s'"
    connection = psycopg.connect(limit)
    try:
        connection.execute(statement)
        yield
        connection.rollback()  # fails if it was ended
    finally:
        connection.close()


def sink_of(server: PostgresServer, **settings: Any) -> PostgreSqlSink:
    return PostgreSqlSink(server.conninfo, "numbers", ["n", "name"], **settings)


def test_rows_are_visible_when_their_checkpoint_is_complete(
    server: PostgresServer, table: str
) -> None:
    h = SinkHarness(sink_of(server))
    h.process((1, "a"), Row(n=2, name=None), {"name": "c", "n": 3}, [4, "it's\t\\N"])
    h.checkpoint()
    h.process((5, "e"))
    assert rows_of(server) == []
    assert staged(server) == 4
    h.complete()
    assert rows_of(server) == [(1, "a"), (2, None), (3, "c"), (4, "it's\t\\N")]
    h.finish()
    h.close()
    assert rows_of(server)[4:] == [(5, "e")]
    assert staged(server) == 0


def test_restart_commits_rows_covered_by_the_checkpoint_and_removes_the_rest(
    server: PostgresServer, table: str
) -> None:
    first = SinkHarness(sink_of(server))
    first.process((1, "covered"))
    state = first.checkpoint()
    first.process((2, "lost"))
    first.checkpoint()
    second = SinkHarness(sink_of(server), state)  # the first one does not know that it is over
    assert rows_of(server) == [(1, "covered")]
    assert staged(server) == 0
    second.process((2, "again"))
    second.checkpoint()
    third = SinkHarness(sink_of(server), state)  # the second one was never in a checkpoint
    assert rows_of(server) == [(1, "covered")]
    third.finish()
    assert staged(server) == 0
    for h in (first, second, third):
        h.close()
    assert rows_of(server) == [(1, "covered")]


def state_of_one_checkpoint(server: PostgresServer) -> SinkState:
    """Nothing is staged in it."""
    first = SinkHarness(sink_of(server), job_id=JOB)
    state = first.checkpoint()
    first.close()
    return state


def test_postgresql_attempt_that_starts_late_removes_no_rows_of_its_successor(
    server: PostgresServer, table: str
) -> None:
    """The process of the attempt was suspended, and a successor was restored from the same
    checkpoint meanwhile."""
    state = state_of_one_checkpoint(server)
    successor = SinkHarness(sink_of(server), state, job_id=JOB)
    successor.process((1, "a"))
    first = successor.checkpoint().checkpoint_id  # is complete, though nobody was told
    successor.process((2, "b"))
    successor.checkpoint()
    late = SinkHarness(sink_of(server), state, job_id=JOB)
    late.process((1, "nobody's"))
    late.checkpoint()
    successor.complete(first)
    assert rows_of(server) == [(1, "a")]
    assert staged(server) == 1, "the late one's are removed, and not those of the successor"
    successor.finish()
    assert rows_of(server) == [(1, "a"), (2, "b")]
    late.close()
    successor.close()


def test_rows_staged_by_failed_attempts_are_removed_at_a_later_restore(
    server: PostgresServer, table: str
) -> None:
    state = state_of_one_checkpoint(server)
    failed = SinkHarness(sink_of(server), state, job_id=JOB)
    failed.process((1, "failed"))
    failed.checkpoint()
    failed.close()
    second = SinkHarness(sink_of(server), state, job_id=JOB)
    later = second.checkpoint()
    assert staged(server) == 1
    third = SinkHarness(sink_of(server), later, job_id=JOB)
    assert staged(server) == 0
    for h in (second, third):
        h.close()


def test_savepoint_whose_staged_rows_another_attempt_removed_is_refused(
    server: PostgresServer, table: str
) -> None:
    """Only people know whether the rows were written again, so no row is lost silently."""
    state = state_of_one_checkpoint(server)
    first = SinkHarness(sink_of(server), state, job_id=JOB)
    first.process((1, "a"))
    savepoint = first.checkpoint()
    first.close()
    again = SinkHarness(sink_of(server), state, job_id=JOB)  # from the checkpoint before
    again.process((2, "b"))
    again.checkpoint()
    again.complete()
    again.close()
    with pytest.raises(SinkError, match=r"1 rows .* are not staged any more: .* job 1+ went on"):
        SinkHarness(sink_of(server), savepoint, job_id="2" * 32)
    (command,) = execute(server, "SELECT run FROM numbers_flinkray_jobs WHERE run LIKE '%/%'")
    execute(server, f"DELETE FROM numbers_flinkray_jobs WHERE run = '{command[0]}'")
    SinkHarness(sink_of(server), savepoint, job_id="2" * 32).close()
    assert rows_of(server) == [(2, "b")]


def test_later_of_two_jobs_from_one_checkpoint_writes_and_the_other_fails(
    server: PostgresServer, table: str
) -> None:
    """Neither job loses a row silently or writes a row of the other job again."""
    first = SinkHarness(sink_of(server), job_id="1")
    first.process((1, "covered"))
    state = first.checkpoint()
    second = SinkHarness(sink_of(server), state, job_id="2")
    second.process((2, "second"))
    of_second = second.checkpoint()
    third = SinkHarness(sink_of(server), state, job_id="3")
    third.process((2, "third"))
    third.checkpoint()
    second.process((3, "second"))
    second.checkpoint()
    for fenced, job in ((first, "1"), (second, "2")):
        fenced.process((9, "nobody"))
        fenced.checkpoint()
        with pytest.raises(
            SinkError, match=f"table numbers is written by job 3 now, .* of job {job} or"
        ):
            fenced.complete()
        fenced.close()
    writer_alone = of_second._replace(committer=second_state(server))
    for restarted in (of_second, writer_alone):
        with pytest.raises(SinkError, match="is written by job 3 now"):
            SinkHarness(sink_of(server), restarted, job_id="2")
    third.complete()
    assert rows_of(server) == [(1, "covered"), (2, "third")]
    third.finish()
    third.close()


def test_job_started_from_a_savepoint_can_be_restarted_several_times(
    server: PostgresServer, table: str
) -> None:
    first = SinkHarness(sink_of(server), job_id="1")
    state = first.checkpoint()
    first.close()
    for number in range(3):
        again = SinkHarness(sink_of(server), state, job_id="2")
        again.process((number, "a"))
        state = again.checkpoint()
        again.complete()
        again.close()
    assert [n for n, _ in rows_of(server)] == [0, 1, 2]


def test_postgresql_rows_of_a_checkpoint_stay_staged_until_their_commit_is_restored(
    server: PostgresServer, table: str
) -> None:
    """The writer may be restored twice before the committer."""
    first = SinkHarness(sink_of(server))
    first.process((1, "covered"))
    state = first.checkpoint()
    first.close()
    for _ in range(2):
        writer = SinkHarness(sink_of(server), state._replace(committer=second_state(server)))
        assert staged(server) == 1
        state = state._replace(writer=writer.snapshot(state.checkpoint_id))
        writer.close()
    last = SinkHarness(sink_of(server), state)
    last.close()
    assert rows_of(server) == [(1, "covered")]


def second_state(server: PostgresServer) -> Any:
    """Of a committer that has nothing to commit."""
    h = SinkHarness(sink_of(server))
    state = h.checkpoint().committer
    h.close()
    return state


def test_row_with_a_key_replaces_the_earlier_row_of_that_key(
    server: PostgresServer, table: str
) -> None:
    execute(server, "ALTER TABLE numbers ADD PRIMARY KEY (n)")
    h = SinkHarness(sink_of(server, key=["n"]))
    h.process((1, "a"), (2, "b"), (1, "c"))
    h.checkpoint()
    h.complete()
    assert rows_of(server) == [(1, "c"), (2, "b")]
    h.process((2, "d"))
    h.finish()
    h.close()
    assert rows_of(server) == [(1, "c"), (2, "d")]


def test_rows_committed_again_do_not_replace_rows_of_a_later_checkpoint(
    server: PostgresServer, table: str
) -> None:
    """The second checkpoint is committed again after its connection was lost."""
    execute(server, "ALTER TABLE numbers ADD PRIMARY KEY (n)")
    h = SinkHarness(sink_of(server, key=["n"]))
    for name in ("v1", "v2", "v3"):
        h.process((1, name))
        h.checkpoint()
        h.complete()
        if name == "v1":
            operator: Any = h.committer.operator
            pid = operator._committer._connection.info.backend_pid
            execute(server, f"SELECT pg_terminate_backend({pid}, 5000)")
    assert h.committer.operator.is_retrying
    h.committer.processing_time(FIRST_PAUSE)
    assert rows_of(server) == [(1, "v3")]
    assert not h.committer.operator.is_retrying
    h.close()


def test_keyed_postgresql_rows_wait_for_an_earlier_checkpoint_that_meets_a_lock(
    server: PostgresServer, table: str
) -> None:
    """Both checkpoints become complete at the same time."""
    execute(server, "ALTER TABLE numbers ADD PRIMARY KEY (n)")
    execute(server, "INSERT INTO numbers VALUES (1, 'v0'), (2, 'w0')")
    conninfo = f"{server.conninfo} options='-c lock_timeout=20ms'"
    h = SinkHarness(PostgreSqlSink(conninfo, "numbers", ["n", "name"], key=["n"]))
    h.process((1, "v1"), (2, "w1"))
    h.checkpoint()
    h.process((2, "w2"))
    h.checkpoint()
    with locked(server, "SELECT * FROM numbers WHERE n = 1 FOR UPDATE"):
        h.complete()
    assert rows_of(server) == [(1, "v0"), (2, "w0")]
    h.committer.processing_time(FIRST_PAUSE)
    assert rows_of(server) == [(1, "v1"), (2, "w2")]
    h.close()


# --- what the table is like -----------------------------------------------------------------------


def fill(server: PostgresServer, table: str, columns: list[str], *rows: Any, **more: Any) -> None:
    """By a job of its own."""
    h = SinkHarness(PostgreSqlSink(server.conninfo, table, columns, **more))
    try:
        h.process(*rows)
        h.finish()
    finally:
        h.close()


def new_table(server: PostgresServer, name: str, columns: str) -> None:
    execute(server, f'DROP TABLE IF EXISTS "{name}", "{name}_flinkray", "{name}_flinkray_jobs"')
    execute(server, f'CREATE TABLE "{name}" ({columns})')


PRECISE = (decimal.Decimal("1.23456"), 1.23456789012345, datetime.datetime(2020, 1, 1, 1, 1, 1, 9))


def test_rows_written_after_alter_table_have_the_new_precision_of_the_columns(
    server: PostgresServer,
) -> None:
    new_table(server, "widened", "p numeric(10, 2), f real, t timestamp(0), n int NOT NULL")
    fill(server, "widened", ["p", "f", "t", "n"], (1, 1.0, PRECISE[2], 1))
    execute(
        server,
        "ALTER TABLE widened ALTER p TYPE numeric(20, 5), ALTER f TYPE double precision, "
        "ALTER t TYPE timestamp, ALTER n TYPE jsonb USING '[]', ALTER n DROP NOT NULL, "
        "ADD a text NOT NULL DEFAULT ''",
    )
    fill(server, "widened", ["p", "f", "t", "n", "a"], (*PRECISE, None, "a"))
    assert execute(server, "SELECT * FROM widened WHERE n IS NULL") == [(*PRECISE, None, "a")]
    execute(server, "ALTER TABLE widened ALTER a DROP NOT NULL, ALTER f SET NOT NULL")
    with pytest.raises(SinkError, match=r'write rows .* null value in column "f"'):
        fill(server, "widened", ["p", "f", "t", "n", "a"], (*PRECISE[:1], None, None, None, None))


def test_staged_rows_are_converted_when_the_table_changes_its_types(
    server: PostgresServer, table: str
) -> None:
    first = SinkHarness(sink_of(server))
    first.process((1, "a"))
    state = first.checkpoint()
    first.close()
    execute(server, "ALTER TABLE numbers ALTER name TYPE varchar(20), ALTER n TYPE numeric(9, 1)")
    second = SinkHarness(sink_of(server), state)
    second.process((decimal.Decimal("1.5"), "longer than nine"))
    second.finish()
    second.close()
    assert rows_of(server) == [(1, "a"), (decimal.Decimal("1.5"), "longer than nine")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("ALTER name TYPE integer USING 0", "cannot be cast automatically to type integer"),
        ("ADD more integer", "it has rows without that"),
    ],
)
def test_postgresql_staging_table_that_no_longer_fits_is_reported_with_a_remedy(
    change: str, reason: str, server: PostgresServer, table: str
) -> None:
    first = SinkHarness(sink_of(server))
    first.process((1, "a"))
    first.checkpoint()
    first.close()
    execute(server, f"ALTER TABLE numbers {change}")
    columns = ["n", "more" if "more" in change else "name"]
    text = f"numbers_flinkray was made when column '{columns[1]}' .*{reason}.*"
    with pytest.raises(SinkError, match=text + "DROP TABLE numbers_flinkray"):
        fill(server, "numbers", columns, (1, 1))
    execute(server, "DROP TABLE numbers_flinkray")
    fill(server, "numbers", columns, (1, 1))
    assert execute(server, f"SELECT n, {columns[1]} FROM numbers") == [(1, 1)]


@pytest.mark.parametrize(
    ("index", "kept"),
    [("UNIQUE (k, n)", [1, 2, 4]), ("UNIQUE NULLS NOT DISTINCT (n, k)", [2, 4])],
)
def test_postgresql_keys_with_a_null_are_equal_only_if_index_has_nulls_not_distinct(
    index: str, kept: list[int], server: PostgresServer
) -> None:
    new_table(server, "nulls", f"k text, n int, v int, {index}")
    if "NOT DISTINCT" in index and server_version(server) < 15:
        pytest.skip("PostgreSQL 15 is the first to know such an index")
    rows = [(None, 1, 1), (None, 1, 2), ("a", 1, 3), ("a", 1, 4)]
    fill(server, "nulls", ["k", "n", "v"], *rows, key=["k", "n"])
    assert execute(server, "SELECT v FROM nulls ORDER BY v") == [(v,) for v in kept]


@pytest.mark.parametrize(
    ("column", "index", "kept"),
    [
        ("text COLLATE {}", "k", [2]),
        ("text COLLATE {}", 'k COLLATE "C"', [1, 2]),
        ("text", "k COLLATE {}", [2]),
    ],
)
def test_keys_are_compared_by_the_collation_of_the_index(
    column: str, index: str, kept: list[int], server: PostgresServer
) -> None:
    execute(
        server,
        "CREATE COLLATION IF NOT EXISTS any_case "
        "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    )
    new_table(server, "cases", f"v int UNIQUE, k {column}".format("any_case"))
    execute(server, f"CREATE UNIQUE INDEX ON cases ({index})".format("any_case"))
    fill(server, "cases", ["k", "v"], ("a", 1), ("A", 2), key=["k"])
    assert execute(server, "SELECT v FROM cases ORDER BY v") == [(v,) for v in kept]


def test_rows_written_to_a_view_replace_each_other_by_the_key_of_its_table(
    server: PostgresServer, table: str
) -> None:
    execute(server, "ALTER TABLE numbers ADD PRIMARY KEY (n)")
    execute(server, "CREATE OR REPLACE VIEW seen AS SELECT * FROM numbers")
    try:
        fill(server, "seen", ["n", "name"], (1, "a"), (1, "b"), key=["n"])
        assert rows_of(server) == [(1, "b")]
    finally:
        execute(server, "DROP VIEW seen")


@pytest.mark.parametrize("kind", ["json", "jsonb", "tags"])
@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ([], []),
        ([1, "a", None], [1, "a", None]),
        (("a", []), ["a", []]),
        ({}, {}),
        (True, True),
        (1.5, 1.5),
        (decimal.Decimal("1.5"), 1.5),
        ('{"text": "of JSON"}', {"text": "of JSON"}),
        ("null", None),
    ],
)
def test_json_columns_take_values_of_each_kind(
    kind: str, value: Any, seen: Any, server: PostgresServer
) -> None:
    execute(server, "DROP TABLE IF EXISTS documents; DROP DOMAIN IF EXISTS tags CASCADE")
    execute(server, "CREATE DOMAIN tags AS jsonb")
    new_table(server, "documents", f"d {kind}, a int[]")
    fill(server, "documents", ["d", "a"], (value, []))
    assert execute(server, "SELECT d, a FROM documents WHERE d IS NOT NULL") == [(seen, [])]


def test_table_and_column_names_may_have_any_character(server: PostgresServer) -> None:
    new_table(server, "50 % off", '"vat %" int PRIMARY KEY, "{}%s" int')
    columns = ["vat %", "{}%s"]
    h = SinkHarness(PostgreSqlSink(server.conninfo, "50 % off", columns, key=["vat %"]))
    h.process((1, 2))
    state = h.checkpoint()
    h.process((2, 3))
    h.checkpoint()
    h.close()
    SinkHarness(PostgreSqlSink(server.conninfo, "50 % off", columns, key=["vat %"]), state).close()
    assert execute(server, 'SELECT * FROM "50 % off"') == [(1, 2)]
    assert execute(server, 'SELECT * FROM "50 % off_flinkray"') == []


def server_version(server: PostgresServer) -> int:
    with psycopg.connect(server.conninfo) as connection:
        return int(connection.info.server_version) // 10_000


def test_values_of_many_types_are_written_unchanged(server: PostgresServer) -> None:
    execute(server, "DROP TABLE IF EXISTS kinds, kinds_flinkray")
    execute(
        server,
        "CREATE TABLE kinds (id serial, b boolean, f double precision, d numeric(6, 2), "
        "t timestamp, y bytea, j jsonb, a integer[])",
    )
    columns = ["b", "f", "d", "t", "y", "j", "a"]
    row = (
        True,
        0.5,
        decimal.Decimal("1.25"),
        datetime.datetime(2026, 1, 2, 3),
        b"\0x",
        {"k": 1},
        [1, 2],
    )
    h = SinkHarness(PostgreSqlSink(server.conninfo, "public.kinds", columns))
    h.process(row)
    h.finish()
    h.close()
    assert execute(server, "SELECT * FROM kinds") == [(1, *row)]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (("one", "a"), 'invalid input syntax for type bigint: "one".*column n'),
        ((None, "a"), 'null value in column "n"'),
        ((1, "longer than nine"), "value too long for type character varying"),
        ((1,), "for 2 columns of table numbers has 1 fields"),
        ({"n": 1}, "has no field 'name'"),
        ((object(), "a"), "cannot adapt type 'object'"),
        ((1, {"k": b""}), r"\{'k': b''\} of a record for table numbers cannot be written as JSON"),
        ((1, {1: 2, "1": 3}), "an object has the name '1' more than once"),
    ],
)
def test_row_that_does_not_fit_the_table_fails_when_it_is_written(
    value: Any, text: str, server: PostgresServer, table: str
) -> None:
    h = SinkHarness(sink_of(server))

    def write() -> None:
        h.process(value)
        h.checkpoint()

    try:
        with pytest.raises(SinkError, match=text):
            write()
    finally:
        h.close()
    assert rows_of(server) == []


def test_table_name_that_makes_a_staging_name_too_long_is_refused() -> None:
    long = "n" * 50
    with pytest.raises(SinkError, match=f"{long}_flinkray_jobs .* give a shorter staging_table"):
        PostgreSqlSink("host=db", long, ["n"])
    PostgreSqlSink("host=db", f"{long}.{long}", ["n"], staging_table=f"{long}.staged")


def test_missing_table_is_reported_by_name(server: PostgresServer) -> None:
    with pytest.raises(SinkError, match="table absent is not there in database 'postgres'"):
        SinkHarness(PostgreSqlSink(server.conninfo, "absent", ["n"]))
    with pytest.raises(SinkError, match="columns, and those of the key among them"):
        PostgreSqlSink(server.conninfo, "numbers", ["n"], key=["m"])


def test_unreachable_server_is_reported_when_the_sink_starts(tmp_path: Path) -> None:
    sink = PostgreSqlSink(f"host={tmp_path}", "numbers", ["n"])
    with pytest.raises(SinkError, match=r"begin to write into table numbers: .*No such file"):
        SinkHarness(sink)


def test_rows_refused_by_the_table_fail_the_job_and_stay_staged(
    server: PostgresServer, table: str
) -> None:
    h = SinkHarness(sink_of(server))
    h.process((-1, "a"))
    state = h.checkpoint()
    with pytest.raises(SinkError, match=r'refuses rows: .*"numbers_n_check"'):
        h.complete()
    h.close()
    execute(server, "ALTER TABLE numbers DROP CONSTRAINT numbers_n_check")
    SinkHarness(sink_of(server), state).close()
    assert rows_of(server) == [(-1, "a")]


def test_commit_is_repeated_when_the_server_is_back(server: PostgresServer, table: str) -> None:
    h = SinkHarness(sink_of(server))
    h.process((1, "a"))
    h.checkpoint()
    h.process((2, "b"))
    h.checkpoint()
    server.stop()
    try:
        h.complete()
        assert h.committer.operator.is_retrying
    finally:
        server.start()
    h.committer.processing_time(FIRST_PAUSE)
    assert rows_of(server) == [(1, "a"), (2, "b")]
    h.close()


def test_lock_of_another_database_session_is_logged_and_does_not_block_the_task(
    server: PostgresServer,
    table: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgresql, "_LONGEST_WAIT", "20ms")
    h = SinkHarness(sink_of(server))
    for number in range(2):
        h.process((number, "a"))
        h.checkpoint()
    with locked(server, "LOCK TABLE numbers IN SHARE MODE"):
        h.complete()
        assert h.committer.operator.is_retrying
    waited, behind = [record.args[-1] for record in caplog.records if type(record.args) is tuple]
    assert "cannot be moved from numbers_flinkray to numbers now: " in str(waited)
    assert "lock timeout" in str(waited)
    assert behind is waited, "one call waits once"
    h.committer.processing_time(FIRST_PAUSE)
    assert rows_of(server) == [(0, "a"), (1, "a")]
    h.close()


def test_writer_that_cannot_get_its_lock_in_time_fails_to_start(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "_LONGEST_WAIT", "20ms")
    with (
        locked(server, "SELECT pg_advisory_xact_lock(hashtextextended('numbers_flinkray', 0))"),
        pytest.raises(SinkError, match=r"begin to write into table numbers: .*lock timeout"),
    ):
        SinkHarness(sink_of(server))


@pytest.mark.parametrize(
    ("options", "limit"),
    [("", "5s"), ("-c lock_timeout=7s", "7s"), ("-c lock_timeout=0", "0")],
)
def test_lock_waits_are_limited_unless_the_user_sets_a_timeout(
    options: str, limit: str, server: PostgresServer
) -> None:
    sink = PostgreSqlSink(f"{server.conninfo} options='{options}'", "numbers", ["n"])
    with sink._database.connect() as connection:
        with connection.transaction():
            sink._database.limit_waits(connection)
            assert connection.execute("SHOW lock_timeout").fetchone() == (limit,)
        after = connection.execute("SHOW lock_timeout").fetchone()
        assert after == ("0" if limit == "5s" else limit,), "a pool gives it to somebody else"


def test_staged_postgresql_rows_that_were_changed_from_outside_are_not_moved(
    server: PostgresServer, table: str
) -> None:
    h = SinkHarness(sink_of(server))
    h.process((1, "a"), (2, "b"))
    h.checkpoint()
    execute(server, "DELETE FROM numbers_flinkray WHERE n = 1")
    with pytest.raises(SinkError, match="1 of 2 rows of batch"):
        h.complete()
    h.close()
    assert rows_of(server) == []


# --- on a cluster ---------------------------------------------------------------------------------

# An interrupt that ends the thread of a crashed process may come between the opening of a file or
# connection and its being kept; of a real process nothing would be left.
interrupted = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def begin(
    cluster: ThreadedCluster,
    server: PostgresServer,
    options: dict[str, str],
    parallelism: int,
    **sink: Any,
) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(options))
    env.set_parallelism(parallelism)
    source = HeldNumbers(lambda n: (n, str(n)), COUNT, 8000.0)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows")
    rows.rebalance().sink_to(sink_of(server, **sink)).uid("table")
    return env.execute_async("rows")


def test_job_fails_without_restart_once_another_job_writes_to_its_table(
    own_cluster: ThreadedCluster, server: PostgresServer, table: str, tmp_path: Path
) -> None:
    job = begin(own_cluster, server, settings(tmp_path / "checkpoints", "50 ms"), 2)
    LET_OUT[0] = 1
    wait_until(lambda: rows_of(server), 300, "rows")
    later = "INSERT INTO numbers_flinkray_jobs (run, job) SELECT run, 'another' FROM "
    execute(server, f"{later} numbers_flinkray_jobs WHERE run NOT LIKE '%/%'")
    LET_OUT[0] = PARTS
    with pytest.raises(JobExecutionError, match="table numbers is written by job another now"):
        job.get_job_execution_result().result(300)
    assert own_cluster.client.job(job.get_job_id()).details().restarts == 0


def assert_each_once(server: PostgresServer) -> None:
    counts = Counter(n for n, _ in rows_of(server))
    lost = [n for n in range(COUNT) if n not in counts]
    doubled = [n for n, times in counts.items() if times > 1]
    assert (lost[:5], len(lost), doubled[:5], len(doubled)) == ([], 0, [], 0)


@pytest.mark.parametrize(
    ("kind", "parallelism"), [("TaskProcess", 2), ("TaskExecutor", 1), ("JobMaster", 2)]
)
@interrupted
def test_table_gets_each_row_once_whichever_process_dies(
    kind: str,
    parallelism: int,
    own_cluster: ThreadedCluster,
    server: PostgresServer,
    table: str,
    tmp_path: Path,
) -> None:
    """E2E-04"""
    job = begin(own_cluster, server, settings(tmp_path / "checkpoints", "50 ms"), parallelism)
    crash_after_each_part(own_cluster, kind, lambda: len(rows_of(server)))
    job.get_job_execution_result().result(300)
    assert_each_once(server)
    assert staged(server) == 0


@interrupted
def test_table_gets_each_row_once_although_the_server_fails(
    own_cluster: ThreadedCluster, server: PostgresServer, table: str, tmp_path: Path
) -> None:
    job = begin(own_cluster, server, settings(tmp_path / "checkpoints", "50 ms"), 2)
    LET_OUT[0] = 1
    wait_until(lambda: rows_of(server), 300, "rows")
    server.stop()
    LET_OUT[0] = PARTS
    server.start()
    job.get_job_execution_result().result(300)
    assert_each_once(server)


def test_error_of_a_postgresql_server_without_free_connections_is_temporary() -> None:
    """The library retries without encryption, and the server refuses the retry for another
    reason."""
    full = 'connection to server at "db", port 5432 failed: FATAL: sorry, too many clients already'
    again = (
        'connection to server at "db", port 5432 failed: FATAL: no pg_hba.conf entry for host '
        '"10.0.0.1", user "u", database "d", no encryption'
    )
    assert not postgresql._is_lasting(psycopg.OperationalError(f"{full}\n{again}"))
    assert postgresql._is_lasting(psycopg.OperationalError(again))
