"""The processes of a cluster and its secret, in the key-value store of Ray's head (GCS).

Ray's named actors say which processes there are; where each listens is written here by the process
itself, because reading it takes 0.3 ms and answers at once even while the process is dead or being
restarted (a call to its actor waits for seconds then).  An entry that outlived its process does no
harm: the incarnation in it is checked when connecting.

The secret is made by the first process of the cluster and read by all others.  Whoever can read it
can talk to Ray's head, and so run any code on the cluster already; where Ray's token authentication
is on (its default since 2.60), that takes Ray's token.  All functions block.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ray.experimental import internal_kv

from flinkray.core.errors import StoredFormatError
from flinkray.core.records import decode_record, encode_record
from flinkray.core.schema import stored

_SECRET = b"secret"
_SECRET_SIZE = 32
_PROCESS = b"process:"
_PRESTARTED = b"prestarted:"
_STARTING = b"prestarted-starting:"
_CLAIMED = b"prestarted-claimed:"


@stored("ProcessRecord")
@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Where a process listens."""

    incarnation: str
    node_id: str | None
    """Ray's; None: a driver outside the cluster."""
    host: str
    port: int
    unix_path: str | None
    """Reachable only on the same node; None where there is none."""
    has_tls: bool
    """Whether the port speaks TLS."""
    actor_id: str | None
    """None: not an actor but a driver."""
    actor_name: str
    """The process's own name, unless it was a prestarted process, created under another one."""
    pid: int


class RayDirectory:
    """The book of one cluster, which is one Ray namespace."""

    def __init__(self, namespace: str) -> None:
        self._space = f"rpc:{namespace}".encode()

    def secret(self) -> bytes:
        """The cluster's secret; made now when there is none yet."""
        internal_kv._internal_kv_put(
            _SECRET, os.urandom(_SECRET_SIZE), overwrite=False, namespace=self._space
        )
        secret = internal_kv._internal_kv_get(_SECRET, namespace=self._space)
        if not isinstance(secret, bytes) or len(secret) != _SECRET_SIZE:
            raise RuntimeError(f"the secret of {self._space.decode()} is damaged")
        return secret

    def put(self, process_name: str, record: ProcessRecord) -> None:
        internal_kv._internal_kv_put(
            _PROCESS + process_name.encode(),
            encode_record(record),
            overwrite=True,
            namespace=self._space,
        )

    def get(self, process_name: str) -> ProcessRecord | None:
        """None: there is no such process.

        Raises:
            StoredFormatError: a flinkray of another version has written where it is.
        """
        data = internal_kv._internal_kv_get(_PROCESS + process_name.encode(), namespace=self._space)
        if data is None:
            return None
        try:
            return decode_record(data, ProcessRecord)
        except StoredFormatError as error:
            raise StoredFormatError(
                f"the record of process {process_name} cannot be read: {error}"
            ) from error

    def names(self, prefix: str) -> list[str]:
        """Of the processes whose names begin so, sorted."""
        return self._names(_PROCESS + prefix.encode())

    def remove(self, process_name: str, incarnation: str | None = None) -> None:
        """Forget a process, if it is still that incarnation."""
        if incarnation is not None:
            try:
                record = self.get(process_name)
            except StoredFormatError:
                return  # another one's
            if record is None or record.incarnation != incarnation:
                return
        internal_kv._internal_kv_del(_PROCESS + process_name.encode(), namespace=self._space)

    # prestarted processes

    def prestarted_begun(self, name: str) -> None:
        """One is being created."""
        self._put(_STARTING + name.encode())

    def prestarted_ready(self, name: str) -> None:
        """It is ready to take over a role."""
        self._put(_PRESTARTED + name.encode())
        self._starts_no_more(name)

    def remove_prestarted(self, name: str) -> bool:
        """It is not any more, or will not be.  Idempotent.

        Returns whether it was ready: of all who remove it at the same time, one hears that.
        """
        self._starts_no_more(name)
        key = _PRESTARTED + name.encode()
        return internal_kv._internal_kv_del(key, namespace=self._space) > 0

    def ready_prestarted(self) -> list[str]:
        """Names, sorted."""
        return self._names(_PRESTARTED)

    def starting_prestarted(self) -> list[str]:
        """Names of those that are being created, sorted."""
        return self._names(_STARTING)

    def claim_starting(self) -> str | None:
        """One that is being created, and that nobody waits for but the caller; None: there is none.
        Whoever is faster may take it all the same when it is ready."""
        for name in self.starting_prestarted():
            key = _CLAIMED + name.encode()
            already_there = internal_kv._internal_kv_put(
                key, b"", overwrite=False, namespace=self._space
            )
            if already_there:
                continue
            if name in self.starting_prestarted():
                return name  # from now on whoever says that it starts no more takes the claim back
            internal_kv._internal_kv_del(key, namespace=self._space)
        return None

    def claimed_prestarted(self) -> list[str]:
        """Names of those that are being created and waited for, sorted."""
        return self._names(_CLAIMED)

    def _starts_no_more(self, name: str) -> None:
        for key in (_STARTING, _CLAIMED):
            internal_kv._internal_kv_del(key + name.encode(), namespace=self._space)

    def _put(self, key: bytes) -> None:
        internal_kv._internal_kv_put(key, b"", overwrite=True, namespace=self._space)

    def _names(self, prefix: bytes) -> list[str]:
        keys: list[bytes] = internal_kv._internal_kv_list(prefix, namespace=self._space)
        # Ray leaves a part of the space's name before the key, as there is a colon in it
        return sorted(key.rpartition(b":")[2].decode() for key in keys)
