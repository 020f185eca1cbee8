"""The token of the REST endpoint: where it is stored, who may read it, how it is created."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError
from flinkray.core.rest_options import REST_SSL_KEY, REST_TOKEN, REST_TOKEN_FILE

_RANDOM_BYTES = 32
_LARGEST = 64 * 1024
"""How many bytes of a secret file are read."""


def default_token_file(cluster_id: str) -> Path:
    """Return the path of the file for the token that a cluster's endpoint creates, in the state
    folder of the user who runs the endpoint. Raises ConfigurationError: the user has no home
    directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise ConfigurationError(
            f"no token can be kept: {error}; name a file as {REST_TOKEN_FILE.key}"
        ) from error
    return folder / "flinkray" / f"rest-{cluster_id}.token"


def given_token(configuration: ReadableConfig) -> str | None:
    """Return the token that the configuration names, directly or by a file. None: it names none.
    Raises ConfigurationError: it names both, or a file without a token or that others can read."""
    path = configuration.get(REST_TOKEN_FILE)
    if path is None:
        return configuration.get(REST_TOKEN)
    if configuration.get(REST_TOKEN) is not None:
        raise ConfigurationError(
            f"{REST_TOKEN.key} and {REST_TOKEN_FILE.key} are two places of one token: leave one out"
        )
    return _token_in(Path(path), f"{path} ({REST_TOKEN_FILE.key})")


def created_token(cluster_id: str) -> str:
    """Return the token in the default file of a cluster. If the file is missing, create it with
    a new token. Raises ConfigurationError: the file cannot be created or read, or others can
    read it."""
    path = default_token_file(cluster_id)
    try:
        if not path.exists():
            _create(path, secrets.token_urlsafe(_RANDOM_BYTES))
    except OSError as error:
        raise ConfigurationError(
            f"the token of the REST endpoint cannot be kept at {path}: {error}; name a file as "
            f"{REST_TOKEN_FILE.key}"
        ) from error
    return _token_in(path, str(path))


def known_token(cluster_id: str) -> str:
    """Return the token in the default file of a cluster, which an endpoint has created. Raises
    ConfigurationError: there is no file, or it cannot be read, or others can read it."""
    path = default_token_file(cluster_id)
    if not path.exists():
        raise ConfigurationError(
            f"there is no {path}: no flinkray rest of this user has served cluster {cluster_id!r} "
            f"without {REST_TOKEN_FILE.key}"
        )
    return _token_in(path, str(path))


def check_key_file(path: str) -> None:
    """Check the key file of the certificate. Raises ConfigurationError: others can read it."""
    try:
        _read_secret(Path(path))
    except PermissionError as error:
        raise ConfigurationError(f"{REST_SSL_KEY.key}: {error}") from error
    except OSError:
        return  # loading the certificate reports the error


def _create(path: Path, token: str) -> None:
    """Create the token file atomically. If another process creates it first, that file stays."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write(f"{token}\n")
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        os.unlink(unfinished)


def _token_in(path: Path, name: str) -> str:
    try:
        token = _read_secret(path).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token {name} cannot be read: {error}") from error
    try:
        found = ReadableConfig({REST_TOKEN.key: token}).get(REST_TOKEN)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name} has no token: {error}") from error
    if found is None:
        raise ConfigurationError(f"{name} has no token: it is empty")
    return found


def _read_secret(path: Path) -> bytes:
    """Return the content of a file that only this user (or root) may own, read and write. Raises
    PermissionError: others can read or write it, or another user owns it; OSError: it cannot be
    read."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{path} belongs to another user (id {found.st_uid})")
        # The administrator may give a file of root to the group of this user, as Kubernetes does
        # with secrets (fsGroup).
        by_root = found.st_uid == 0 != os.geteuid()
        allowed = 0o740 if by_root else 0o700
        mode = stat.S_IMODE(found.st_mode)
        if mode & ~allowed:
            raise PermissionError(
                f"other users can read or write {path} (mode {mode:04o}): chmod 600 {path}"
            )
        return file.read(_LARGEST)
