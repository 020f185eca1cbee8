"""How programs in the slots of a cluster end that have no end of their own: by Ctrl-C, by a
cancellation, by being forgotten; and what is left of them: nothing."""

from __future__ import annotations

import gc
import signal
import socket
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from flinkray.core.errors import JobExecutionError
from flinkray.datastream import MapFunction, StreamExecutionEnvironment
from flinkray.datastream.common import Duration
from flinkray.datastream.connectors import DiscardingSink, FileSink, FileSource
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until

CONFIGURATION = {"taskmanager.numberOfTaskSlots": "2", "restart-strategy.type": "none"}


@pytest.fixture
def env(cluster: ThreadedCluster) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)


def last_status(cluster: ThreadedCluster) -> JobStatus:
    return cluster.client.list_jobs()[-1].status


class CtrlC(MapFunction[Any, Any]):
    """At the first record, as often as it is told."""

    def map(self, value: Any) -> Any:
        if value == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return value


def executed(env: StreamExecutionEnvironment) -> None:
    env.from_sequence(1, 10**12).map(CtrlC()).sink_to(DiscardingSink())
    env.execute()


def collected(env: StreamExecutionEnvironment) -> None:
    for _ in (
        env.from_sequence(1, 10**12).map(CtrlC()).filter(lambda v: v < 1).execute_and_collect()
    ):
        pass


@pytest.mark.parametrize("run", [executed, collected])
def test_ctrl_c_cancels_the_program_that_is_waited_for(
    run: Callable[[StreamExecutionEnvironment], None],
    env: StreamExecutionEnvironment,
    cluster: ThreadedCluster,
) -> None:
    with pytest.raises(KeyboardInterrupt) as interrupted:
        run(env)
    job = cluster.client.list_jobs()[-1]
    assert job.status is JobStatus.CANCELED
    assert str(job.job_id) in str(interrupted.value)
    assert interrupted.value.__suppress_context__ or interrupted.value.__context__ is None


def test_program_is_cancelled_when_its_results_iterator_is_discarded(
    env: StreamExecutionEnvironment, cluster: ThreadedCluster
) -> None:
    results = iter(env.from_sequence(1, 10**12).execute_and_collect())
    assert next(results) == 1
    del results
    gc.collect()
    wait_until(lambda: last_status(cluster) is JobStatus.CANCELED, 150, "the end of the program")


def test_new_files_in_a_watched_directory_are_read_until_cancellation(
    env: StreamExecutionEnvironment, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    source = FileSource(tmp_path, discovery_interval=Duration.of_millis(50))
    lines = env.set_parallelism(2).from_source(source, None, "watched").map(str.upper)
    with lines.execute_and_collect() as results:
        assert sorted(islice(results, 2)) == ["ONE", "TWO"]
        (tmp_path / ".b").write_text("three\n")
        (tmp_path / ".b").rename(tmp_path / "b.txt")
        assert next(results) == "THREE"
    assert last_status(cluster) is JobStatus.CANCELED


def test_cancelled_program_leaves_no_visible_half_written_file(
    env: StreamExecutionEnvironment, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.txt").write_text("one\n")
    env.from_source(FileSource(source, discovery_interval=50)).sink_to(FileSink(out))
    job = env.execute_async()
    wait_until(lambda: bool(list(out.glob(".part-*"))), 300, "a file to be written")
    job.cancel().result(300)
    assert list(out.glob("[!.]*")) == []


def test_a_cancelled_program_closes_its_connection_to_a_text_server(
    env: StreamExecutionEnvironment, cluster: ThreadedCluster
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines = env.socket_text_stream("127.0.0.1", server.getsockname()[1])
        results = lines.map(str.upper).execute_and_collect()
        server.settimeout(60)
        with server.accept()[0] as connection:
            connection.settimeout(60)
            connection.sendall(b"one\ntwo\nthr")
            assert list(islice(results, 2)) == ["ONE", "TWO"]
            results.close()
            assert connection.recv(1) == b""
    assert last_status(cluster) is JobStatus.CANCELED


def test_error_for_an_unreachable_text_server_names_the_server_and_the_operator(
    env: StreamExecutionEnvironment,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env.socket_text_stream("127.0.0.1", port).print()
    with pytest.raises(JobExecutionError) as failed:
        env.execute()
    text = str(failed.value)
    assert f"UnavailableError: cannot connect to 127.0.0.1:{port}: " in text
    assert "in operator 'Source: Socket Stream', subtask 1/1" in text
    assert "  File " not in text, "nothing of the framework"
