"""Job graphs of stream programs, with one vertex for each chain of operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

from flinkray.actors.shared.chain_code import (
    BUFFER_TIMEOUTS,
    HELD_BY,
    HELD_BY_LOOK_UPS,
    OF_CLUSTER,
    PRINTED_LINES,
    TO_LOG,
    dump_chains,
)
from flinkray.client.savepoint_locations import absolute_locations
from flinkray.core.config import ReadableConfig
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID
from flinkray.core.job_options import SCHEDULER
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.checkpoint_configuration import checkpoints_of
from flinkray.scheduler.graph.job_graph import (
    BATCHES_OF,
    EPOCHS_OF,
    MASTER_HOOK,
    STREAM,
    DistributionPattern,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobFile,
    JobGraph,
    JobType,
    JobVertex,
    ResultMedium,
    ResultPartitionType,
    SchedulerMode,
    VertexOperator,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.streaming.operators.look_up import LookUpOperator
from flinkray.streaming.operators.python_stage import BatchFunctionOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.chain_plan import ChainPlan, plan_chain, ways_out
from flinkray.streaming.program.graph import Chain, StreamEdge, StreamGraph, StreamNode
from flinkray.streaming.sinks.output_format import is_global
from flinkray.streaming.sinks.result_files import ResultFilesOperator
from flinkray.streaming.sinks.simple import PrintOperator
from flinkray.streaming.sinks.sink_operators import CommitterOperator
from flinkray.streaming.sinks.spark import SparkEpochSink
from flinkray.streaming.sources.master_hook import WithMasterCheckpointHook
from flinkray.streaming.sources.result_files import ResultFilesSource
from flinkray.streaming.sources.spark_stream import SparkStreamSource

_ANY_SLOT = ResourceProfile(0, 0)


def stream_job(
    graph: StreamGraph,
    *,
    slot_profiles: Mapping[str, ResourceProfile] | None = None,
    configuration: Mapping[str, str] | None = None,
    files: tuple[JobFile, ...] = (),
    job_id: JobID | None = None,
    spark_stages: tuple[JobVertex, ...] = (),
    runs_here: bool = False,
) -> JobGraph:
    """Make the job of a stream program.

    Args:
        spark_stages: Spark stages of the job: their rows are read by sources of the program, or
            they get the rows that a stream of the program commits at each checkpoint.
        slot_profiles: slot profile by slot-sharing group; the groups that are not named take any
            slot.
        configuration: options of the job, over those of the cluster.
        files: files that the program's functions import or open.
        job_id: None: a new one.
        runs_here: whether the job's tasks will run in this process.

    Raises:
        StreamError: an operator cannot be sent to the cluster.
        JobSubmissionError: the job could never run; the text says why.
    """
    own_id = job_id or JobID.generate()
    settings = dict(configuration or {})
    own = ReadableConfig(settings)
    settings |= absolute_locations(own)
    vertices = stream_vertices(graph, own_id.hex(), slot_profiles or {}, runs_here=runs_here)
    job = JobGraph(
        own_id,
        graph.job_name,
        (*spark_stages, *vertices),  # stages come first, because slots are given in this order
        job_type=JobType.BATCH if graph.batch else JobType.STREAMING,
        scheduler_mode=SchedulerMode[own.get(SCHEDULER)],
        files=files,
        configuration=settings,
        checkpoints=None if graph.batch else checkpoints_of(ReadableConfig(settings)),
    )
    validate(job)
    return job


def stream_vertices(
    graph: StreamGraph,
    owner: str,
    slot_profiles: Mapping[str, ResourceProfile],
    *,
    runs_here: bool = False,
) -> tuple[JobVertex, ...]:
    """Return the vertices of a program; a vertex comes after the vertices whose results it reads.

    Args:
        owner: hex id from which the vertex ids are made: another owner gives other vertex ids.
        slot_profiles: slot profile by slot-sharing group; the groups that are not named take any
            slot.
        runs_here: whether the tasks will run in this process; *owner* is the id of the job then.

    Raises:
        StreamError: an operator cannot be sent to the cluster.
    """
    data_sets: dict[int, IntermediateDataSet] = {}
    result_type = (
        ResultPartitionType.BLOCKING if graph.batch else ResultPartitionType.PIPELINED_BOUNDED
    )
    chains = graph.chains()
    operator_ids = graph.operator_ids()
    for chain in chains:
        for edge in ways_out(graph, chain):
            data_sets[id(edge)] = IntermediateDataSet(IntermediateDataSetID.generate(), result_type)
    plans = [plan_chain(graph, chain) for chain in chains]
    codes = dump_chains(plans, owner if runs_here else None)
    return tuple(
        _vertex(owner, graph, chain, plan, code, operator_ids, data_sets, slot_profiles)
        for chain, plan, code in zip(chains, plans, codes, strict=True)
    )


def _vertex_id(owner: str, chain: Chain) -> JobVertexID:
    """Return the id of a chain's vertex, made from *owner* and the chain's id. A chain has the same
    id in all runs of a program, but attempts of tasks are named by their vertices and need
    different names, because several jobs may run in one process."""
    ids = bytes.fromhex(owner) + bytes.fromhex(chain.vertex_id)
    return JobVertexID.from_hex(blake2b(ids, digest_size=16).hexdigest())


def _vertex(
    owner: str,
    graph: StreamGraph,
    chain: Chain,
    plan: ChainPlan,
    code: bytes,
    operator_ids: Mapping[int, str],
    data_sets: Mapping[int, IntermediateDataSet],
    profiles: Mapping[str, ResourceProfile],
) -> JobVertex:
    timeouts = (r.buffer_timeout for r in plan.results)
    named = (OF_CLUSTER if timeout is None else str(timeout) for timeout in timeouts)
    configuration = {BUFFER_TIMEOUTS: " ".join(named)}
    if any(isinstance(node.operator, PrintOperator) for node in chain.nodes):
        configuration[PRINTED_LINES] = TO_LOG
    epochs_of = " ".join(map(str, _takers_of_epochs(chain.nodes)))
    if epochs_of:
        configuration[EPOCHS_OF] = epochs_of
    held_by = " ".join(map(str, _takers_of_source(graph, chain)))
    if held_by:
        configuration[HELD_BY] = held_by
    held_by_look_ups = " ".join(_look_ups_of_source(graph, chain, operator_ids))
    if held_by_look_ups:
        configuration[HELD_BY_LOOK_UPS] = held_by_look_ups
    head = chain.head.operator
    if isinstance(head, SourceOperator) and isinstance(head.source, SparkStreamSource):
        configuration[BATCHES_OF] = str(head.source.vertex_id)
    if isinstance(head, SourceOperator) and isinstance(head.source, WithMasterCheckpointHook):
        configuration[MASTER_HOOK] = "true"
    group = chain.head.slot_sharing_group
    return JobVertex(
        _vertex_id(owner, chain),
        chain.name,
        chain.parallelism,
        profiles.get(group, _ANY_SLOT),
        Invokable(STREAM, code, configuration),
        chain.head.max_parallelism if chain.head.has_own_max_parallelism else None,
        slot_sharing_group=group,
        results=(
            *(data_sets[id(edge)] for edge in ways_out(graph, chain)),
            *_written_files(chain),
        ),
        inputs=(
            *(_input(edge, operator_ids, data_sets) for edge in chain.head.inputs),
            *_read_files(chain),
        ),
        operators=tuple(
            VertexOperator(operator_ids[node.id], node.name, node.uid, node.uid_hash)
            for node in chain.nodes
        ),
        non_parallel=any(node.non_parallel for node in chain.nodes),
        has_global_formats=any(is_global(node.operator) for node in chain.nodes),
    )


def _takers_of_epochs(nodes: Iterable[StreamNode]) -> Iterator[JobVertexID]:
    for node in nodes:
        operator = node.operator
        if isinstance(operator, CommitterOperator) and isinstance(operator.sink, SparkEpochSink):
            yield operator.sink.vertex_id


def _takers_of_source(graph: StreamGraph, chain: Chain) -> Iterator[JobVertexID]:
    """Yield the Spark stages that get, once per checkpoint, the rows of the stream that begins at
    the chain's source. Yields nothing in batch mode, and no stages behind another Spark stage,
    because their rows come from another source."""
    if chain.head.inputs or graph.batch:
        return
    source = chain.head
    yield from _takers_of_epochs(
        node for node in graph.nodes if any(it is source for it in graph.upstream_of(node))
    )


def _look_ups_of_source(
    graph: StreamGraph, chain: Chain, operator_ids: Mapping[int, str]
) -> Iterator[str]:
    """Yield the ids of the operators that look up records of the chain's source in a table. Yields
    nothing if the source feeds the table of a look-up (it must be read to its end), or in batch
    mode, where tables are read first."""
    look_ups = [node for node in graph.nodes if isinstance(node.operator, LookUpOperator)]
    tables = (it for node in look_ups for it in _upstream_of_input(graph, node, 1))
    if chain.head.inputs or graph.batch or any(it is chain.head for it in tables):
        return
    for node in look_ups:
        if any(it is chain.head for it in _upstream_of_input(graph, node, 0)):
            yield operator_ids[node.id]


def _upstream_of_input(graph: StreamGraph, node: StreamNode, index: int) -> Iterator[StreamNode]:
    for edge in node.inputs:
        if edge.input_index == index:
            yield edge.source
            yield from graph.upstream_of(edge.source)


def _written_files(chain: Chain) -> Iterator[IntermediateDataSet]:
    for node in chain.nodes:
        if isinstance(node.operator, ResultFilesOperator | BatchFunctionOperator):
            yield IntermediateDataSet(
                node.operator.data_set_id, ResultPartitionType.BLOCKING, ResultMedium.FILES
            )


def _read_files(chain: Chain) -> Iterator[JobEdge]:
    head = chain.head.operator
    data_sets: tuple[IntermediateDataSetID, ...] = ()
    if isinstance(head, BatchFunctionOperator):
        data_sets = head.data_sets
    elif isinstance(head, SourceOperator) and isinstance(head.source, ResultFilesSource):
        data_sets = (head.source.data_set_id,)
    for data_set_id in data_sets:
        yield JobEdge(data_set_id, DistributionPattern.ALL_TO_ALL)


def _input(
    edge: StreamEdge,
    operator_ids: Mapping[int, str],
    data_sets: Mapping[int, IntermediateDataSet],
) -> JobEdge:
    pointwise = edge.partitioner.pointwise
    return JobEdge(
        data_sets[id(edge)].data_set_id,
        DistributionPattern.POINTWISE if pointwise else DistributionPattern.ALL_TO_ALL,
        edge.partitioner.name,
        operator_ids[edge.source.id],
        edge.output_tag,
        edge.input_index,
    )
