"""Taking large user code out of a job graph."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.blobs import BlobKey
from flinkray.scheduler.job_graph import JobGraph


def offload(graph: JobGraph, min_size: int) -> tuple[JobGraph, dict[BlobKey, bytes]]:
    """The graph with keys in place of the largest pieces of user code, and these pieces.

    As many as it takes until what is left in the graph is at most *min_size* bytes together.
    """
    codes = {
        index: code
        for index, vertex in enumerate(graph.vertices)
        if isinstance(code := vertex.invokable.code, bytes)
    }
    blobs: dict[BlobKey, bytes] = {}
    vertices = list(graph.vertices)
    left = sum(map(len, codes.values()))
    for index, code in sorted(codes.items(), key=lambda item: len(item[1]), reverse=True):
        if left <= min_size:
            break
        key = BlobKey.of(code)
        blobs[key] = code
        vertex = vertices[index]
        vertices[index] = replace(vertex, invokable=replace(vertex.invokable, code=key))
        left -= len(code)
    return replace(graph, vertices=tuple(vertices)), blobs
