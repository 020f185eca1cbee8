"""Locations of files, as people may see them."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

_OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss")


def without_secrets(location: str) -> str:
    """A path as it is; of a URI, neither the password nor the query, which may have keys in it.  Of
    what looks like a URI and cannot be read, the scheme."""
    if location.startswith("/"):
        return location
    try:
        parts = urlsplit(location)
    except ValueError:
        return f"{location.partition(':')[0]}:…"
    if parts.scheme in _OBJECT_STORES and "@" in parts.path:  # a secret with a slash in it
        location = (
            f"{parts.scheme}://{parts.netloc.partition(':')[0]}@{location.rpartition('@')[2]}"
        )
        parts = urlsplit(location)
    user, separator, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{name}{separator}{host}", query=""))
