"""Converts a job's plan to JSON, in the format of Flink's ``/jobs/<id>/plan``."""

from __future__ import annotations

import json
from typing import Any

from flinkray.scheduler.graph.job_graph import JobEdge, JobGraph, JobVertex
from flinkray.scheduler.graph.validation import topological_order


def json_plan(job_graph: JobGraph) -> str:
    """Return the plan as JSON, with the vertices in topological order.

    Raises:
        JobSubmissionError: the graph has no topological order.
    """
    order = topological_order(job_graph)
    producers = {
        result.data_set_id: (vertex, result.result_type)
        for vertex in order
        for result in vertex.results
    }

    def input_of(number: int, edge: JobEdge) -> dict[str, Any]:
        vertex, result_type = producers[edge.source]
        return {
            "num": number,
            "id": vertex.vertex_id.hex(),
            "ship_strategy": edge.ship_strategy or edge.pattern.value,
            "exchange": result_type.value.lower(),
        }

    def node_of(vertex: JobVertex) -> dict[str, Any]:
        node: dict[str, Any] = {
            "id": vertex.vertex_id.hex(),
            "parallelism": vertex.parallelism,
            "operator": "",
            "operator_strategy": "",
            "description": vertex.name,
            "optimizer_properties": {},
        }
        if vertex.inputs:
            node["inputs"] = [input_of(i, edge) for i, edge in enumerate(vertex.inputs)]
        return node

    plan = {
        "jid": job_graph.job_id.hex(),
        "name": job_graph.name,
        "type": job_graph.job_type.value,
        "nodes": [node_of(vertex) for vertex in order],
    }
    return json.dumps(plan, separators=(",", ":"))
