"""Decides where savepoints may be written and deleted by REST."""

from __future__ import annotations

import asyncio
import os
import posixpath
from urllib.parse import unquote, urlsplit

from flinkray.core.locations import without_secrets
from flinkray.core.rest_options import REST_SAVEPOINT_DIRS
from flinkray.rest.cluster import ClusterView
from flinkray.rest.errors import RestError, bad_request


class SavepointRoots:
    """The directories below which REST clients may write and delete savepoints: those in the
    endpoint's settings, and those that the cluster and its running jobs have in their own
    settings."""

    def __init__(self, cluster: ClusterView, others: tuple[str, ...]) -> None:
        self._cluster = cluster
        self._others = others

    async def check(self, location: str) -> None:
        """Check that savepoints may be written and deleted at *location*.

        Raises:
            RestError: *location* is invalid, or is not one of the directories or below one.
            RpcError: the cluster does not report its directories.
        """
        of_cluster = await self._cluster.ask(
            "list the directories for savepoints", lambda it: it.request_savepoint_directories()
        )
        roots = (*self._others, *of_cluster)
        try:
            may_be_used = await asyncio.to_thread(is_within, location, roots)
        except ValueError as error:  # UnicodeEncodeError, too
            raise bad_request(f"{location!r} is neither a path nor a URI: {error}") from None
        if not may_be_used:
            raise RestError(
                403,
                f"savepoints at {without_secrets(location)} may not be written or deleted by REST: "
                f"name a directory above it in the endpoint's {REST_SAVEPOINT_DIRS.key}, or use "
                "flinkray savepoint",
            )


def is_within(location: str, roots: tuple[str, ...]) -> bool:
    """Return whether *location*, after resolving links, is one of *roots* or below one. Blocks.
    Raises ValueError: *location* is neither a path nor a URI."""
    storage, path = _resolved(location)
    return any(
        storage == of_root and (path == root or path.startswith(root.rstrip("/") + "/"))
        for of_root, root in map(_resolved, roots)
    )


def _resolved(location: str) -> tuple[tuple[str, str], str]:
    """Return (scheme and host, normalized path) of a location. Symbolic links of local paths are
    resolved."""
    if location.startswith(("/", "~")):
        return ("", ""), os.path.realpath(os.path.expanduser(location))
    uri = urlsplit(location)
    if uri.scheme == "file":
        return ("", ""), os.path.realpath(unquote(uri.path))
    host = uri.netloc.rpartition("@")[2]
    return (uri.scheme, host), posixpath.normpath(f"/{unquote(uri.path)}").replace("//", "/")
