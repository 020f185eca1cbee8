"""The lines that tasks print are shown by their client: in order, and all of them."""

from __future__ import annotations

import pytest

from flinkray.actors.stream_coordinator import printed_lines_store
from flinkray.datastream import DataStream, StreamExecutionEnvironment
from flinkray.testing.threaded_cluster import ThreadedCluster


def on(cluster: ThreadedCluster) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    return env.set_parallelism(2)


def spread(env: StreamExecutionEnvironment, count: int) -> DataStream:
    """Numbers, to both subtasks."""
    return env.from_collection(range(count)).rebalance().map(lambda n: n)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the client writes.  Tasks, which are threads here, have another standard output."""
    texts: list[str] = []
    monkeypatch.setattr("flinkray.client.printed_lines.write_text", texts.append)
    return texts


def lines_of(shown: list[str]) -> list[str]:
    return "".join(shown).splitlines()


def test_all_lines_are_shown_in_the_order_of_each_subtask_before_execute_returns(
    cluster: ThreadedCluster, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    env = on(cluster)
    spread(env, 200_000).print("n")

    env.execute()

    by_subtask: dict[str, list[int]] = {}
    for line in lines_of(shown):
        subtask, _, number = line.partition("> ")
        by_subtask.setdefault(subtask, []).append(int(number))
    assert sorted(by_subtask) == ["n:1", "n:2"]
    assert all(numbers == sorted(numbers) for numbers in by_subtask.values())
    assert sorted(by_subtask["n:1"] + by_subtask["n:2"]) == list(range(200_000))
    assert capsys.readouterr().out == ""


def test_lines_are_shown_once_on_standard_output(
    cluster: ThreadedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    env = on(cluster).set_parallelism(1)
    env.from_collection(["Übung", "\udc80", "x" * 2**20]).print()
    env.execute()
    assert capsys.readouterr().out == "Übung\n\\udc80\n" + "x" * 2**20 + "\n"


def test_lines_of_a_program_without_a_waiting_client_are_in_the_task_logs(
    cluster: ThreadedCluster, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    env = on(cluster)
    spread(env, 100).print()
    env.execute_async().get_job_execution_result().result()
    assert lines_of(shown) == []
    assert len(capsys.readouterr().out.splitlines()) == 100


def test_lines_dropped_for_a_slow_client_are_replaced_by_a_count(
    cluster: ThreadedCluster, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is always too slow here."""
    monkeypatch.setattr(printed_lines_store, "MOST_KEPT", 1000)
    monkeypatch.setattr(printed_lines_store, "PATIENCE", 0.0)
    monkeypatch.setattr(printed_lines_store, "READ_WAIT", 0.0)
    env = on(cluster)
    spread(env, 100_000).print()

    env.execute()

    lines = lines_of(shown)
    notes = [line for line in lines if line.startswith("… ")]
    left_out = sum(int(note.split()[1]) for note in notes if "left out here" in note)
    assert notes
    assert all("see the log of StreamCoordinator-" in note for note in notes)
    assert left_out + len(lines) - len(notes) == 100_000


def test_client_whose_standard_output_is_closed_still_waits_for_its_job(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(text: str) -> None:
        raise BrokenPipeError("the pager has ended")

    monkeypatch.setattr("flinkray.client.printed_lines.write_text", write)
    env = on(cluster)
    spread(env, 100).print()
    env.execute()
    assert "is not shown any more: the pager has ended" in caplog.text
