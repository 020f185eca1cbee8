"""Defines the functions of Spark stages, and fetches their code for a driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flinkray.blob import BlobClient, BlobOwner
from flinkray.core.errors import RpcConnectionError
from flinkray.rpc import RpcService
from flinkray.spark.gateway import SparkStageDescriptor

SparkFunction = Callable[..., Any]
"""Function that takes a SparkSession and a DataFrame for each input; returns a DataFrame or
None."""

SparkEpochFunction = Callable[..., Any]
"""Function that takes a DataFrame and the id of the checkpoint of its rows, and returns None."""


async def fetch_code(rpc_service: RpcService, stage: SparkStageDescriptor) -> bytes:
    """Return the pickled function of a stage: from *stage*, or from the blob server if *stage* has
    only its key. Raises BlobNotFoundError, BlobCorruptError, BlobStoreError or RpcError, as
    :class:`BlobClient` does."""
    if isinstance(stage.code, bytes):
        return stage.code
    if stage.blob_server is None:
        raise RpcConnectionError(f"{stage.job_text}: no blob server is known to have its code")
    client = BlobClient(rpc_service, stage.blob_server)
    return await client.get(BlobOwner.of_job(stage.job_id), stage.code)
