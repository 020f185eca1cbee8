"""Taking large user code and files out of a job graph."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.blobs import BlobKey
from flinkray.scheduler.graph.job_graph import JobGraph


def offload(graph: JobGraph, min_size: int) -> tuple[JobGraph, dict[BlobKey, bytes]]:
    """The graph with keys in place of the largest pieces of user code and files, and these pieces.

    As many as it takes until what is left in the graph is at most *min_size* bytes together.
    """
    vertices, files = list(graph.vertices), list(graph.files)
    contents = [vertex.invokable.code for vertex in vertices] + [file.content for file in files]
    pieces = {index: piece for index, piece in enumerate(contents) if isinstance(piece, bytes)}
    blobs: dict[BlobKey, bytes] = {}
    left = sum(map(len, pieces.values()))
    for index, piece in sorted(pieces.items(), key=lambda item: len(item[1]), reverse=True):
        if left <= min_size:
            break
        key = BlobKey.of(piece)
        blobs[key] = piece
        if index < len(vertices):
            vertex = vertices[index]
            vertices[index] = replace(vertex, invokable=replace(vertex.invokable, code=key))
        else:
            place = index - len(vertices)
            files[place] = replace(files[place], content=key)
        left -= len(piece)
    return replace(graph, vertices=tuple(vertices), files=tuple(files)), blobs
