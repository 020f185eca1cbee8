"""Runs a program as a job in the slots of a cluster."""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from flinkray.client.attached_run import LeftRunning, Progress, ProgressLog, run_attached
from flinkray.client.client_session import ClientClosedError, ClientSession, session_of
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.in_process import close_soon, cluster_for
from flinkray.client.job_handle import JobHandle
from flinkray.client.job_result import JobExecutionResult
from flinkray.client.printed_lines import JobOutput, NoOutput, submit_attached
from flinkray.client.stream_job import stream_job, stream_vertices
from flinkray.client.stream_results import StreamResults
from flinkray.client.submission import SubmissionInterrupted
from flinkray.core.client_options import SHUTDOWN_ON_ATTACHED_EXIT
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError, FlinkRayError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.job_options import CHECKPOINTING_MODE, CHECKPOINTING_UNALIGNED, JOB_KEYS
from flinkray.core.resources import ResourceProfile
from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.datastream.common.job_client import JobClient
from flinkray.datastream.slot_sharing_group import SlotSharingGroup
from flinkray.scheduler.graph.job_graph import JobFile, JobGraph, JobVertex
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.streaming.operators.look_up import LookUpOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.execution_target import execution_target
from flinkray.streaming.program.graph import StreamGraph
from flinkray.streaming.sinks.ray_dataset import RayDatasetSink
from flinkray.streaming.sinks.sink import Sink
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.streaming.sinks.spark import SparkEpochSink
from flinkray.streaming.sources.spark import SparkSource

log = logging.getLogger(__name__)


def job_of(
    graph: StreamGraph,
    groups: dict[str, SlotSharingGroup],
    settings: dict[str, str],
    files: tuple[JobFile, ...],
    spark_stages: Mapping[JobVertexID, JobVertex] = MappingProxyType({}),
    *,
    runs_here: bool = False,
) -> JobGraph:
    """Return the job graph of a program, with the stages of *spark_stages* that the program uses.
    *files*: files that the program's functions import from or ask for. *runs_here*: whether the
    tasks will run in this process. Raises ConfigurationError: an invalid setting. StreamError: a
    part of the program cannot be sent. JobSubmissionError: the job could never run."""
    known = {key: value for key, value in settings.items() if _is_of_job(key)}
    if _stages_that_take_epochs(graph):
        known |= _with_whole_epochs(known, "to_spark")
    if any(isinstance(sink, RayDatasetSink) for sink in _sinks_of(graph)):
        known |= _with_whole_epochs(known, "RayDatasetSink")
    if any(isinstance(node.operator, LookUpOperator) for node in graph.nodes):
        known |= _with_each_row_once(known)
    configuration = ReadableConfig(known).of_job()
    profiles = _profiles(graph, groups)
    return stream_job(
        graph,
        slot_profiles=profiles,
        configuration=configuration,
        files=files,
        spark_stages=tuple(spark_stages[vertex_id] for vertex_id in spark_stages_of(graph)),
        runs_here=runs_here,
    )


def spark_stages_of(graph: StreamGraph) -> list[JobVertexID]:
    """Return the ids of the program's Spark stages, each once: stages whose rows a source reads,
    and stages to which a sink hands the rows of each checkpoint (an epoch)."""
    heads = (node.operator for node in graph.nodes)
    sources = (head.source for head in heads if isinstance(head, SourceOperator))
    read = [source.vertex_id for source in sources if isinstance(source, SparkSource)]
    return list(dict.fromkeys([*read, *_stages_that_take_epochs(graph)]))


def _stages_that_take_epochs(graph: StreamGraph) -> list[JobVertexID]:
    return [sink.vertex_id for sink in _sinks_of(graph) if isinstance(sink, SparkEpochSink)]


def _sinks_of(graph: StreamGraph) -> Iterator[Sink]:
    operators = (node.operator for node in graph.nodes)
    return (one.sink for one in operators if isinstance(one, SinkWriterOperator))


def _with_whole_epochs(settings: Mapping[str, str], what: str) -> dict[str, str]:
    """Return the options that a program needs whose sink *what* takes the rows of each checkpoint
    together: aligned checkpoints and EXACTLY_ONCE. They override the cluster's options. Without
    them, rows that came before a checkpoint might be missing in the rows of this checkpoint. Raises
    ConfigurationError: *settings* have other values."""
    configuration = ReadableConfig(settings)
    if configuration.get(CHECKPOINTING_UNALIGNED):
        raise ConfigurationError(
            f"{CHECKPOINTING_UNALIGNED.key} is true, and {what} needs aligned checkpoints: the "
            "rows of each have to be complete when it is"
        )
    if configuration.get(CHECKPOINTING_MODE) != "EXACTLY_ONCE":
        raise ConfigurationError(
            f"{CHECKPOINTING_MODE.key} is {configuration.get(CHECKPOINTING_MODE)}, and {what} "
            "hands over each row once: it needs EXACTLY_ONCE"
        )
    return {CHECKPOINTING_UNALIGNED.key: "false", CHECKPOINTING_MODE.key: "EXACTLY_ONCE"}


def _with_each_row_once(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the option EXACTLY_ONCE, which a program with a look-up table needs: if a row of the
    table is read twice, its key is refused as a duplicate. Raises ConfigurationError: *settings*
    have another mode."""
    mode = ReadableConfig(settings).get(CHECKPOINTING_MODE)
    if mode != "EXACTLY_ONCE":
        raise ConfigurationError(
            f"{CHECKPOINTING_MODE.key} is {mode}, and each row of a spark_table has to be read "
            "once: it needs EXACTLY_ONCE"
        )
    return {CHECKPOINTING_MODE.key: "EXACTLY_ONCE"}


def vertices_of(
    graph: StreamGraph,
    groups: dict[str, SlotSharingGroup],
    settings: dict[str, str],
    owner: str,
) -> tuple[JobVertex, ...]:
    """Return the vertices of a program that is one stage of a job
    (:func:`~flinkray.client.stream_job.stream_vertices`). *owner*: hex id from which the vertex ids
    are derived. Raises ConfigurationError: the program sets something for the whole job.
    StreamError: a part of the program cannot be sent."""
    for key in settings:
        if _is_of_job(key):
            raise ConfigurationError(
                f"{graph.job_name!r} sets {key}, which belongs to the whole job: leave it to the "
                "BatchJob, whose restart_strategy holds for all stages and which has no checkpoints"
            )
    if _stages_that_take_epochs(graph):
        raise ConfigurationError(
            f"{graph.job_name!r} is a stage of a BatchJob and calls to_spark: return the stream, "
            "and add a stage with BatchJob.spark that has it as an input"
        )
    if spark_stages_of(graph):
        raise ConfigurationError(
            f"{graph.job_name!r} is a stage of a BatchJob and calls from_spark or looks up a "
            "spark_table: add a stage with BatchJob.spark, and read that as an input"
        )
    return stream_vertices(graph, owner, _profiles(graph, groups))


def _is_of_job(key: str) -> bool:
    """Return whether the setting *key* of a program becomes an option of the job. Other settings
    are used while the program is built, or only Flink knows them."""
    return key.startswith("restart-strategy.") or key in JOB_KEYS


def _profiles(
    graph: StreamGraph, groups: dict[str, SlotSharingGroup]
) -> dict[str, ResourceProfile]:
    """Return the resources of the groups' slots. *groups*: registered at the environment.
    Raises ConfigurationError: a group is given different resources."""
    for name, group in groups.items():
        profile = group.slot_profile()
        if profile is not None:
            graph.set_slot_profile(name, profile)
    return graph.slot_profiles


def run(
    cluster: ClusterClient | None, job: JobGraph, settings: dict[str, str]
) -> JobExecutionResult:
    """Submit the job, report its progress, and return its result when it has ended. *cluster* None:
    run the job on a new cluster in this process, which ends with the job. Raises
    ConfigurationError: ``execution.shutdown-on-attached-exit`` in *settings* is neither true nor
    false. JobSubmissionError: the job could never run. JobExecutionError, with the user's
    traceback: the job failed. JobCancelledError. KeyboardInterrupt: Ctrl-C was pressed. The job has
    then ended, unless Ctrl-C was pressed a second time during the wait for the end."""
    if cluster is None:
        with cluster_for(job) as own:
            return _run(own, job, _progress(is_in_process=True))
    if _ends_with_its_client(cluster, settings):
        job = session_of(cluster).ending_with_client(
            job, f"{SHUTDOWN_ON_ATTACHED_EXIT.key} is true"
        )
    return _run(cluster, job, _progress())


def _run(cluster: ClusterClient, job: JobGraph, progress: Progress) -> JobExecutionResult:
    try:
        ended, was_interrupted = run_attached(cluster, job, progress)
    except LeftRunning:
        left = f"left job {job.job_id} while it was being cancelled"
        raise KeyboardInterrupt(left) from None
    finally:
        session_of(cluster).detach(job.job_id)
    if was_interrupted:
        raise KeyboardInterrupt(f"job {job.job_id} ended: {ended.status.name}")
    return JobExecutionResult.of(ended)


def _ends_with_its_client(cluster: ClusterClient, settings: dict[str, str]) -> bool:
    key = SHUTDOWN_ON_ATTACHED_EXIT.key
    if key in settings:
        return SHUTDOWN_ON_ATTACHED_EXIT.read(settings[key])
    return session_of(cluster).settings.shutdown_on_attached_exit


def _progress(*, is_in_process: bool = False) -> Progress:
    """Return an object that receives the progress of the program and shows it to the user.
    *is_in_process*: the JobMaster runs in this process and logs the failures here itself."""
    progress: Progress | None = execution_target().progress
    return progress or ProgressLog(time.monotonic, shows_failures=not is_in_process)


def start(cluster: ClusterClient | None, job: JobGraph) -> JobClient:
    """Submit the job and return its client. *cluster* None: start a cluster in this process, which
    ends with the job. Raises JobSubmissionError: the job could never run."""
    if cluster is not None:
        return ClusterJobClient(cluster, cluster.submit(job))
    own = cluster_for(job)
    try:
        return InProcessJobClient(own, own.submit(job))
    except BaseException:
        own.close()
        raise


class ClusterJobClient(JobClient):
    """Client of a program that runs as a job of a cluster. If this process ends, the program runs
    on."""

    def __init__(self, cluster: ClusterClient, handle: JobHandle) -> None:
        self._session = session_of(cluster)
        self._handle = handle
        self._ended: Future[JobExecutionResult] | None = None

    def get_job_id(self) -> JobID:
        return self._handle.job_id

    def get_job_status(self) -> Future[JobStatus]:
        job_id = self._handle.job_id
        return self._session.start(self._status(job_id))

    async def _status(self, job_id: JobID) -> JobStatus:
        return await self._session.ask_async(
            f"get the status of job {job_id}", lambda gateway: gateway.request_job_status(job_id)
        )

    def cancel(self) -> Future[None]:
        return self._session.start(self._cancel())

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> Future[str]:
        return self._session.start(self._handle.trigger_savepoint_async(savepoint_directory))

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> Future[str]:
        return self._session.start(
            self._handle.stop_with_savepoint_async(
                savepoint_directory, drain=advance_to_end_of_event_time
            )
        )

    async def _cancel(self) -> None:
        job_id = self._handle.job_id
        await self._session.end_job(job_id)

    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        if self._ended is None:
            self._ended = self._session.start(_result(self._session, self._handle.job_id))
        return self._ended


async def _result(session: ClientSession, job_id: JobID) -> JobExecutionResult:
    """Wait for the job's end and return its result. A function, because the traceback of an error
    would keep the object of a method (the job's client) alive."""
    return JobExecutionResult.of(await session.job_result(job_id))


class InProcessJobClient(ClusterJobClient):
    """Client of a program on a cluster of threads in this process.
    The cluster ends when the program has ended and the caller has dropped the client. A failure of
    the program is logged, because the caller may never ask for the result."""

    def __init__(self, cluster: ClusterClient, handle: JobHandle) -> None:
        super().__init__(cluster, handle)
        awaited = ["the end of the program", "the end of this object"]

        def over() -> None:
            awaited.pop()
            if not awaited:
                close_soon(cluster)

        def ended(result: Future[JobResult]) -> None:
            if not result.cancelled() and result.exception() is None:
                told = result.result()
                if told.failure is not None:
                    log.error("job %s (%s) failed: %s", told.job_id, told.name, told.failure)
            over()

        weakref.finalize(self, over).atexit = False
        self._session.start(self._session.job_result(handle.job_id)).add_done_callback(ended)


class ClusterResults(CloseableIterator):
    """Results of a program on a cluster. The program waits while the caller takes no results.
    The program is cancelled when the results are closed or garbage-collected, or when their client
    is closed or lost."""

    def __init__(self, cluster: ClusterClient | None, job: JobGraph) -> None:
        """Submit the job. *cluster* None: start a cluster in this process, which ends with the
        results."""
        self._own: ClusterClient | None = None
        if cluster is None:
            self._own = cluster = cluster_for(job)
        self._session = session_of(cluster)
        self._handle = cluster.job(job.job_id)
        self._values: deque[Any] = deque()
        self._progress = _progress(is_in_process=self._own is not None)
        self._is_closed = False
        self._output: JobOutput = NoOutput()
        end = partial(self._session.end_attached, job.job_id)
        if self._own is not None:
            end = partial(close_soon, self._own)
        self._forget = weakref.finalize(self, end)
        try:
            job = self._session.ending_with_client(job, "nobody else can read its results")
            self._output = submit_attached(cluster, job, self._progress.clear)
            self._results = self._session.run(self._open())
        except (FlinkRayError, SubmissionInterrupted):
            self._has_ended()
            raise
        except KeyboardInterrupt:  # no caller has the results yet
            self._forget()
            raise

    @property
    def job_id(self) -> JobID:
        return self._handle.job_id

    async def _open(self) -> StreamResults:
        job_id = self._handle.job_id
        session = self._session
        return StreamResults(
            session.rpc_service,
            job_id,
            lambda: session.source_coordinator(job_id),
            session.job_result(job_id),
        )

    def __next__(self) -> Any:
        while not self._values:
            batch = None if self._is_closed else self._next_batch()
            if batch is None:
                self._has_ended()
                raise StopIteration
            self._values.extend(batch)
        return self._values.popleft()

    def _next_batch(self) -> list[Any] | None:
        batch = self._session.start(self._results.next())
        try:
            return self._handle.watched(batch, self._progress.show, self._progress.interval)
        except KeyboardInterrupt:
            self.close()
            raise KeyboardInterrupt(f"job {self._handle.job_id} was cancelled") from None
        except FlinkRayError:
            self._handle.look_once_more(self._progress.show)
            with suppress(FlinkRayError):  # the first error is the one to report
                self.close()
            raise

    def _has_ended(self) -> None:
        self._is_closed = True
        self._forget.detach()
        self._output.finish()
        self._session.detach(self._handle.job_id)
        if self._own is not None:
            self._own.close()

    def close(self) -> None:
        if not self._is_closed:
            self._values.clear()
            with suppress(ClientClosedError):  # the closed client has ended the program
                self._session.run(self._end())
            self._has_ended()

    async def _end(self) -> None:
        self._results.close()
        await self._session.end_job(self._handle.job_id)
