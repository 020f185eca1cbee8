"""Stream programs on Ray: tasks in processes of their own, channels between them."""

from __future__ import annotations

import os
import re
import sys
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.util.state import list_actors

import flinkray
from flinkray.actors.shared.exported_metrics import (
    CLUSTER,
    DESCRIPTIONS,
    JOB,
    TASK,
    exported_name,
)
from flinkray.actors.task_process.task_metrics import IS_HELD
from flinkray.client import ClusterClient
from flinkray.client.cli_output import job_details
from flinkray.core.errors import JobCancelledError, JobExecutionError
from flinkray.datastream import (
    AggregateFunction,
    GlobalAggregatesLostError,
    MapFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TimestampAssigner,
    WatermarkStrategy,
)
from flinkray.datastream.common.io import FinalizeOnMaster, InitializeOnMaster, OutputFormat
from flinkray.datastream.connectors import DiscardingSink, FileSink
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.waiting import wait_until
from tests.datastream.differential import assert_as_expected, build_together, seeded_programs
from tests.datastream.stuck_functions import StuckAt
from tests.system.observer import kill, live_actors

pytestmark = [pytest.mark.ray]

CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "2",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "task.cancellation.interval": "200 ms",
    "rpc.metrics.export-interval": "200 ms",
}


@pytest.fixture(scope="module")
def streams(ray_cluster: object) -> Iterator[ClusterClient]:
    configuration = flinkray.Configuration(CONFIGURATION)
    with flinkray.connect(cluster_id="streams", configuration=configuration) as client:
        yield client


def on(client: ClusterClient) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(cluster=client).set_parallelism(2)


class Word:
    """Not importable where the tasks are: it travels with the functions."""

    def __init__(self, text: str) -> None:
        self.text = text


def counts(client: ClusterClient) -> list[Any]:
    words = on(client).from_collection(["to be", "or not", "to be"]).flat_map(str.split).map(Word)
    same = words.rebalance().filter(lambda word: isinstance(word, Word))
    return list(same.map(lambda word: (word.text, os.getpid())).execute_and_collect())


def task_processes() -> dict[str, int]:
    """Name and pid of those of the cluster that live."""
    actors = list_actors(
        address=ray.get_runtime_context().gcs_address,
        filters=[("state", "=", "ALIVE"), ("class_name", "=", "TaskProcess")],
        detail=True,
        limit=1000,
    )
    mine = (a for a in actors if a.ray_namespace == "flinkray-streams")
    return {a.name: a.pid for a in mine if a.name is not None and a.pid is not None}


def test_records_of_the_programs_own_classes_travel_between_processes(
    streams: ClusterClient,
) -> None:
    found = counts(streams)
    assert sorted(text for text, _ in found) == ["be", "be", "not", "or", "to", "to"]
    assert len({pid for _, pid in found}) == 2


class Texts(AggregateFunction[Word, "list[str]", "list[str]"]):
    """The texts of all words."""

    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: Word, accumulator: list[str]) -> list[str]:
        return [*accumulator, value.text]

    def get_result(self, accumulator: list[str]) -> list[str]:
        return accumulator

    def merge(self, acc_a: list[str], acc_b: list[str]) -> list[str]:
        return acc_a + acc_b


class Gathering(MapFunction[str, Any]):
    """Returns its process and the texts of all subtasks so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.aggregates = runtime_context.get_global_aggregate_manager()
        self.texts = Texts()

    def map(self, value: str) -> Any:
        texts = self.aggregates.update_global_aggregate("texts", Word(value), self.texts)
        return os.getpid(), texts


def test_tasks_in_several_processes_share_a_global_aggregate(streams: ClusterClient) -> None:
    """JM-16: its values and its function are of classes that only the program has."""
    letters = on(streams).from_collection(list("abcd")).rebalance().map(Gathering())
    found = list(letters.execute_and_collect())
    assert len({pid for pid, _ in found}) == 2
    longest = max((texts for _, texts in found), key=len)
    assert sorted(longest) == list("abcd")
    assert sorted(texts for _, texts in found) == [longest[:n] for n in (1, 2, 3, 4)]


class GatheringAgain(Gathering):
    """Adds its value, and again once a file is there."""

    def __init__(self, folder: Path) -> None:
        self.added, self.go = str(folder / "added"), str(folder / "go")

    def map(self, value: str) -> Any:
        super().map(value)
        Path(self.added).touch()
        wait_until(Path(self.go).exists, 300, "the kill")
        try:
            return super().map(value)
        except GlobalAggregatesLostError:
            return "lost", super().map(value)[1]


@pytest.mark.kill
def test_kill_of_the_stream_coordinator_begins_a_new_global_aggregate(
    streams: ClusterClient, tmp_path: Path
) -> None:
    env = on(streams).set_parallelism(1)
    results = env.from_collection(["a"]).map(GatheringAgain(tmp_path)).execute_and_collect()
    wait_until((tmp_path / "added").exists, 300, "the first value to be added")
    actors = [a for a in live_actors() if a.namespace == "flinkray-streams"]
    for pid in [actor.pid for actor in actors if actor.kind == "StreamCoordinator"]:
        kill(pid)
    (tmp_path / "go").touch()
    assert list(results) == [("lost", ["a"])]


class Noting(OutputFormat[str], InitializeOnMaster, FinalizeOnMaster):
    """Notes each call, with the process, as a file. Its first attempt to finish is stuck."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def note(self, text: str) -> None:
        Path(self.folder, f"{text} {os.getpid()}").touch()

    def initialize_global(self, parallelism: int) -> None:
        self.note(f"prepare {parallelism}")

    def open(self, task_number: int, num_tasks: int) -> None:
        self.note(f"open {task_number}")

    def write_record(self, record: str) -> None:
        self.note(f"write {record}")

    def finalize_global(self, parallelism: int) -> None:
        is_first = not any(noted(self.folder, "finish"))
        self.note(f"finish {parallelism}")
        if is_first:
            wait_until(lambda: False, 300, "the kill")


def noted(folder: str | Path, prefix: str) -> Iterator[tuple[str, int]]:
    """(text, pid) of the notes that begin so."""
    for path in Path(folder).glob(f"{prefix}*"):
        text, _, pid = path.name.rpartition(" ")
        yield text, int(pid)


@pytest.mark.kill
@pytest.mark.smoke
def test_output_is_finished_although_the_process_that_finishes_it_is_killed(
    streams: ClusterClient, tmp_path: Path
) -> None:
    """EG-11."""
    env = on(streams)
    env.from_collection(["a", "b"]).write_using_output_format(Noting(tmp_path))
    job = streams.job(env.execute_async().get_job_id())
    wait_until(lambda: any(noted(tmp_path, "finish")), 300, "the output to be finished")
    (first,) = dict(noted(tmp_path, "finish")).values()
    kill(first)
    job.result(timeout=300)
    finished = [pid for _, pid in noted(tmp_path, "finish 2")]
    assert len(finished) == 2, "by two processes"
    assert [*noted(tmp_path, "prepare")] == [("prepare 2", first)]
    assert sorted(text for text, _ in noted(tmp_path, "write")) == ["write a", "write b"]
    of_tasks = {pid for _, pid in noted(tmp_path, "open")}
    assert len(of_tasks) == 2
    assert of_tasks.isdisjoint(finished)


def test_random_stream_programs_give_the_results_of_a_naive_evaluator(
    streams: ClusterClient,
) -> None:
    """Twelve programs run as one job, in two processes that exchange records."""
    programs = seeded_programs(range(12))
    with build_together(programs, on(streams)).execute_and_collect() as values:
        assert_as_expected(programs, values)


class Pricing(MapFunction[Any, Any]):
    """Imports what only came along with the program."""

    def open(self, runtime_context: Any) -> None:
        from pricing_of_streams import price  # type: ignore[import-not-found]

        cache = runtime_context.get_distributed_cache()
        self.price, self.factor = price, int(Path(cache.get_file("factor")).read_text())

    def map(self, value: Any) -> Any:
        return self.price(value) * self.factor


def test_each_program_uses_its_own_modules_and_cached_files(
    streams: ClusterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second program gets its own module: its processes have not imported the module of the
    first program."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for number, large in ((2, ""), (3, "x" * 2**20)):
        folder = tmp_path / str(number)
        folder.mkdir()
        code = f"filling = {large!r}\ndef price(value):\n    return value + {number}\n"
        (folder / "pricing_of_streams.py").write_text(code)
        (folder / "factor.txt").write_text("10")
        env = on(streams)
        env.add_python_file(str(folder / "pricing_of_streams.py"))
        env.register_cached_file(str(folder / "factor.txt"), "factor")
        priced = env.from_sequence(1, 4).rebalance().map(Pricing()).execute_and_collect()
        assert sorted(priced) == [(v + number) * 10 for v in range(1, 5)]


class Opening(MapFunction[Any, Any]):
    """Finds what came along where PyFlink has it."""

    def open(self, runtime_context: Any) -> None:
        self.words = Path("models/words.txt").read_text()

    def map(self, value: Any) -> Any:
        return self.words


def test_archives_are_unpacked_in_the_working_directory_of_tasks(
    streams: ClusterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of sources and sinks still are relative to the working directory of the program."""
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("words.txt", "to be")
    (tmp_path / "lines.txt").write_text("1\n2\n")
    monkeypatch.chdir(tmp_path)
    env = on(streams)
    env.add_python_archive("models.zip", "models")
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.read_text_file("lines.txt").rebalance().map(Opening()).sink_to(FileSink("out"))
    env.execute()
    parts = [part.read_text() for part in tmp_path.glob("out/**/*.txt")]
    assert "".join(parts).split() == ["to", "be", "to", "be"]


def test_client_shows_the_lines_that_tasks_print(
    streams: ClusterClient, capsys: pytest.CaptureFixture[str]
) -> None:
    env = on(streams)
    env.from_sequence(1, 20).rebalance().map(lambda n: n).print()
    env.execute()
    shown = [line.partition("> ") for line in capsys.readouterr().out.splitlines()]
    assert sorted(int(number) for _, _, number in shown) == list(range(1, 21))
    for subtask in ("1", "2"):
        own = [int(number) for name, _, number in shown if name == subtask]
        for of_one_source in ([n for n in own if n <= 10], [n for n in own if n > 10]):
            assert of_one_source == sorted(of_one_source)


def figures_of(job: str | None) -> dict[str, dict[str, float]]:
    """At the metrics endpoint of Ray's node: by name and vertex (or metric), all subtasks.
    None: those of the cluster."""
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=150) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = {}
    for name, tags_text, value in re.findall(
        r"^ray_(flinkray_(?:task|job)manager_\w+)\{(.*)\} (\S+)$", text, re.M
    ):
        tags: dict[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', tags_text))
        if (tags["cluster_id"], tags.get("job_name")) == ("streams", job):
            of_name = found.setdefault(name, {})
            key = tags.get("metric", tags.get("vertex", tags.get("state", "")))
            of_name[key] = of_name.get(key, 0.0) + float(value)
    return found


def every(scope: str) -> set[str]:
    return {exported_name(scope, name) for name in DESCRIPTIONS[scope]}


class Hits(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.hits = runtime_context.get_metrics_group().counter("hits")

    def map(self, value: Any) -> Any:
        self.hits.inc()
        return value


def test_rays_metrics_endpoint_has_all_metrics_of_cluster_job_and_tasks(
    streams: ClusterClient, tmp_path: Path
) -> None:
    """The metrics of a job vanish with the job, except its final state."""
    env = on(streams).set_parallelism(1)
    env.enable_checkpointing(300)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
    by_value = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Itself())
    numbers = env.from_sequence(1, 10**12).assign_timestamps_and_watermarks(by_value)
    numbers.rebalance().map(Hits()).name("hits").sink_to(DiscardingSink()).name("end")
    job = f"figures-{uuid.uuid4().hex}"
    client = env.execute_async(job)
    names = every(TASK) | every(JOB)
    names.remove(exported_name(TASK, IS_HELD))  # of sources in front of Spark
    wait_until(lambda: names <= figures_of(job).keys(), 300, "all figures of the job")
    wait_until(lambda: every(CLUSTER) <= figures_of(None).keys(), 300, "those of the cluster")
    found, cluster = figures_of(job), figures_of(None)

    client.cancel().result(300)

    state = exported_name(JOB, "state")
    wait_until(lambda: figures_of(job).keys() == {state}, 300, "all but how it has ended to go")
    (vertex,) = found[f"{TASK}num_records_in"]
    (source,) = found[f"{TASK}current_output_watermark"]
    assert vertex.startswith("hits")
    assert source.startswith("Source: ")
    watermark = found[f"{TASK}current_input_watermark"][vertex]
    assert 0 < watermark <= found[f"{TASK}current_output_watermark"][source]
    assert watermark <= found[f"{TASK}num_records_in"][vertex] + 10**6
    assert found[f"{TASK}user_metric"]["hits.0.hits"] > 0
    assert found[f"{TASK}num_records_out"][source] >= found[f"{TASK}num_records_in"][vertex]
    shares = (
        "busy_time_ms_per_second",
        "idle_time_ms_per_second",
        "back_pressured_time_ms_per_second",
    )
    assert sum(found[TASK + share][vertex] for share in shares) == pytest.approx(1000, abs=1)
    assert found[f"{TASK}accumulate_busy_time_ms"][vertex] > 0
    assert found[f"{JOB}number_of_completed_checkpoints"][""] >= 1
    assert found[f"{JOB}last_checkpoint_duration"][""] > 0
    assert found[f"{JOB}num_restarts"][""] == 0
    assert found[state] == {"RUNNING": 1}
    assert figures_of(job)[state] == {"CANCELED": 1}
    assert cluster[f"{CLUSTER}num_running_jobs"][""] == 1
    assert cluster[f"{CLUSTER}task_slots_total"][""] > cluster[f"{CLUSTER}task_slots_available"][""]


class Itself(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value)


def test_each_program_runs_in_new_processes_that_end_with_the_program(
    streams: ClusterClient,
) -> None:
    pids = [{pid for _, pid in counts(streams)} for _ in range(3)]
    assert len(set.union(*pids)) == 6
    wait_until(lambda: not any(map(psutil.pid_exists, set.union(*pids))), 100, "their ends")


@pytest.mark.kill
@pytest.mark.smoke
def test_program_is_restarted_after_a_kill_of_task_processes_and_counts_once(
    streams: ClusterClient, tmp_path: Path
) -> None:
    """FO-01."""
    marker = tmp_path / "stuck"
    env = on(streams)
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    numbers = env.from_sequence(1, 1000).map(StuckAt(500, marker)).map(lambda v: (v % 3, v))
    results = numbers.key_by(lambda v: v[0]).sum(1).execute_and_collect()
    wait_until(marker.exists, 300, "a task to be stuck")
    for pid in task_processes().values():
        kill(pid)
    assert set(results) == {(r, sum(v for v in range(1, 1001) if v % 3 == r)) for r in range(3)}


def test_a_program_that_is_stuck_in_user_code_can_be_cancelled(
    streams: ClusterClient, tmp_path: Path
) -> None:
    marker = tmp_path / "stuck"
    env = on(streams)
    numbers = env.from_sequence(1, 1000).rebalance().map(StuckAt(500, marker)).rebalance()
    numbers.map(lambda v: v).sink_to(DiscardingSink())
    client = env.execute_async()
    wait_until(marker.exists, 300, "a task to be stuck")
    assert client.get_job_status().result(300) == "RUNNING"
    job = streams.job(client.get_job_id())

    def are_measured() -> bool:
        return [vertex.measured for vertex in job.details().vertices] == [2, 2, 2]

    wait_until(are_measured, 300, "all tasks to have told what they have done")
    running = job.details()
    client.cancel().result(300)
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result(300)
    cancelled = job.details()
    for details in (running, cancelled):
        source, stuck, end = details.vertices
        assert (source.measured, stuck.measured, end.measured) == (2, 2, 2)
        assert source.io_metrics is not None
        assert stuck.io_metrics is not None
        assert source.io_metrics.records_in is None
        assert source.io_metrics.records_out
        assert stuck.io_metrics.records_in
        assert f"  {stuck.io_metrics.records_in}  " in job_details(details, 0.0)


def test_error_of_a_function_names_the_operator_and_the_subtask(streams: ClusterClient) -> None:
    env = on(streams)
    env.from_sequence(0, 5).rebalance().map(lambda v: 1 // v).name("divide").print()
    with pytest.raises(JobExecutionError) as failed:
        env.execute()
    text = str(failed.value)
    assert "failed: Traceback" in text
    assert "ZeroDivisionError" in text
    assert "in operator 'divide', subtask" in text


def test_record_that_cannot_be_sent_fails_the_job_and_names_its_operator(
    streams: ClusterClient,
) -> None:
    env = on(streams)
    generators = env.from_sequence(1, 9).map(lambda v: (v, (n for n in range(v)))).name("divide")
    generators.rebalance().map(lambda v: v).sink_to(DiscardingSink())
    with pytest.raises(JobExecutionError) as failed:
        env.execute()
    text = str(failed.value)
    assert "cannot be pickled: TypeError: cannot pickle 'generator' object" in text
    assert "in operator 'divide', subtask " in text
    assert "on record (" in text
    assert "which came from Source: Number Sequence Source (" in text


def test_program_is_canceled_when_the_client_that_reads_its_results_is_closed(
    streams: ClusterClient,
) -> None:
    with flinkray.connect(cluster_id="streams") as reader:
        results = on(reader).from_sequence(1, 10**12).rebalance().map(str).execute_and_collect()
        assert isinstance(next(results), str)
    assert streams.list_jobs()[-1].status is JobStatus.CANCELED
    results.close()
    assert list(results) == []
