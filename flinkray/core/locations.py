"""Removes secrets from locations of files, so that people may see the locations."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

_OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss")


def without_secrets(location: str) -> str:
    """Return a location without secrets, for texts that people see.
    A path is returned unchanged. A URI loses its password and its query, which may contain keys. Of
    a URI that cannot be parsed, only the scheme remains."""
    if location.startswith("/"):
        return location
    try:
        parts = urlsplit(location)
    except ValueError:
        return f"{location.partition(':')[0]}:…"
    if parts.scheme in _OBJECT_STORES and "@" in parts.path:  # a secret that contains a slash
        location = (
            f"{parts.scheme}://{parts.netloc.partition(':')[0]}@{location.rpartition('@')[2]}"
        )
        parts = urlsplit(location)
    user, separator, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{name}{separator}{host}", query=""))
