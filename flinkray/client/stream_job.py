"""Job graphs of stream programs: one vertex for each chain of operators."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from flinkray.actors.shared.chain_code import BUFFER_TIMEOUTS, dump_chain
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    STREAM,
    DistributionPattern,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobFile,
    JobGraph,
    JobType,
    JobVertex,
    ResultPartitionType,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.streaming.program.chain_plan import plan_chain, ways_out
from flinkray.streaming.program.graph import Chain, StreamEdge, StreamGraph

_ANY_SLOT = ResourceProfile(0, 0)


def stream_job(
    graph: StreamGraph,
    *,
    slot_profiles: Mapping[str, ResourceProfile] | None = None,
    configuration: Mapping[str, str] | None = None,
    files: tuple[JobFile, ...] = (),
    job_id: JobID | None = None,
) -> JobGraph:
    """The job of a stream program.

    Args:
        slot_profiles: of slot-sharing groups that want a certain one; others take any slot.
        configuration: options of the job, over those of the cluster.
        files: that its functions import from or ask for.
        job_id: a new one when None.

    Raises:
        StreamError: an operator cannot be sent to the cluster.
        JobSubmissionError: the job could never run; the text says why.
    """
    profiles = slot_profiles or {}
    data_sets: dict[int, IntermediateDataSet] = {}
    result_type = (
        ResultPartitionType.BLOCKING if graph.batch else ResultPartitionType.PIPELINED_BOUNDED
    )
    chains = graph.chains()
    for chain in chains:
        for edge in ways_out(graph, chain):
            data_sets[id(edge)] = IntermediateDataSet(IntermediateDataSetID.generate(), result_type)
    own_id = job_id or JobID.generate()
    job = JobGraph(
        own_id,
        graph.job_name,
        tuple(_vertex(own_id, graph, chain, data_sets, profiles) for chain in chains),
        job_type=JobType.BATCH if graph.batch else JobType.STREAMING,
        files=files,
        configuration=dict(configuration or {}),
    )
    validate(job)
    return job


def _vertex_id(job_id: JobID, chain: Chain) -> JobVertexID:
    """Chains are called alike in all runs of a program; attempts of tasks, which are called by
    their vertices, must not be, as several jobs may run in one process."""
    ids = bytes.fromhex(job_id.hex()) + bytes.fromhex(chain.vertex_id)
    return JobVertexID.from_hex(blake2b(ids, digest_size=16).hexdigest())


def _vertex(
    job_id: JobID,
    graph: StreamGraph,
    chain: Chain,
    data_sets: Mapping[int, IntermediateDataSet],
    profiles: Mapping[str, ResourceProfile],
) -> JobVertex:
    plan = plan_chain(graph, chain)
    timeouts = (-1 if r.buffer_timeout is None else r.buffer_timeout for r in plan.results)
    group = chain.head.slot_sharing_group
    return JobVertex(
        _vertex_id(job_id, chain),
        chain.name,
        chain.parallelism,
        profiles.get(group, _ANY_SLOT),
        Invokable(STREAM, dump_chain(plan), {BUFFER_TIMEOUTS: " ".join(map(str, timeouts))}),
        chain.head.max_parallelism,
        slot_sharing_group=group,
        results=tuple(data_sets[id(edge)] for edge in ways_out(graph, chain)),
        inputs=tuple(_input(edge, data_sets) for edge in chain.head.inputs),
    )


def _input(edge: StreamEdge, data_sets: Mapping[int, IntermediateDataSet]) -> JobEdge:
    pointwise = edge.partitioner.pointwise
    return JobEdge(
        data_sets[id(edge)].data_set_id,
        DistributionPattern.POINTWISE if pointwise else DistributionPattern.ALL_TO_ALL,
        edge.partitioner.name,
    )
