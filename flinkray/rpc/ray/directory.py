"""The process addresses and the secret of a cluster, in the key-value store of Ray's head (GCS).

Ray's named actors say which processes exist. Each process itself writes here where it listens, as
reading this takes 0.3 ms even if the process is dead or restarting (its actor would take
seconds). An entry that outlived its process does no harm: connecting checks the incarnation.

The first process of the cluster makes the secret, and all others read it. Whoever can read the
secret can talk to Ray's head, and so run any code on the cluster already; where Ray's token
authentication is on (its default since 2.60), that takes Ray's token. All functions block.
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
    """The address at which a process listens, and the identity of the process."""

    incarnation: str
    node_id: str | None
    """Ray's id of the node; None: a driver outside the cluster."""
    host: str
    port: int
    unix_path: str | None
    """The path of its Unix socket, reachable only on the same node; None: it has none."""
    has_tls: bool
    """Whether the port speaks TLS."""
    actor_id: str | None
    """Ray's id of the actor; None: the process is a driver, not an actor."""
    actor_name: str
    """The actor's name: the process's own, or the earlier name of a prestarted process."""
    pid: int


class RayDirectory:
    """The records of one cluster, that is, of one Ray namespace."""

    def __init__(self, namespace: str) -> None:
        self._space = f"rpc:{namespace}".encode()

    def secret(self) -> bytes:
        """Return the cluster's secret; made now if the cluster has none yet."""
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
        """Return the record of the process; None: there is no such process.

        Raises:
            StoredFormatError: a flinkray of another version has written the record.
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
        """Return the sorted names of the processes whose names begin with *prefix*."""
        return self._names(_PROCESS + prefix.encode())

    def remove(self, process_name: str, incarnation: str | None = None) -> None:
        """Remove the record of a process, if the record is of *incarnation* (None: of any)."""
        if incarnation is not None:
            try:
                record = self.get(process_name)
            except StoredFormatError:
                return  # not this incarnation's
            if record is None or record.incarnation != incarnation:
                return
        internal_kv._internal_kv_del(_PROCESS + process_name.encode(), namespace=self._space)

    # prestarted processes

    def prestarted_begun(self, name: str) -> None:
        """Note that the prestarted process *name* is being created."""
        self._put(_STARTING + name.encode())

    def prestarted_ready(self, name: str) -> None:
        """Note that the prestarted process *name* is ready to take over a role."""
        self._put(_PRESTARTED + name.encode())
        self._starts_no_more(name)

    def remove_prestarted(self, name: str) -> bool:
        """Remove the prestarted process *name* from the directory. Idempotent.

        Returns whether the process was ready. If several callers remove it at the same time, only
        one gets True.
        """
        self._starts_no_more(name)
        key = _PRESTARTED + name.encode()
        return internal_kv._internal_kv_del(key, namespace=self._space) > 0

    def ready_prestarted(self) -> list[str]:
        """Return the sorted names of the prestarted processes that are ready."""
        return self._names(_PRESTARTED)

    def starting_prestarted(self) -> list[str]:
        """Return the sorted names of the prestarted processes that are being created."""
        return self._names(_STARTING)

    def has_become_another(self, name: str) -> bool:
        """Return whether the prestarted process *name* has a role.

        It has a role if the record of a process with another name leads to its actor. Also True if
        any record cannot be read.
        """
        for process in self.names(""):
            try:
                record = self.get(process)
            except StoredFormatError:
                return True
            if process != name and record is not None and record.actor_name == name:
                return True
        return False

    def claim_starting(self) -> str | None:
        """Claim a prestarted process that is being created and not yet claimed.

        Returns the process's name; None: there is no such process. Another caller may still be
        faster and take the process when it is ready.
        """
        for name in self.starting_prestarted():
            key = _CLAIMED + name.encode()
            already_there = internal_kv._internal_kv_put(
                key, b"", overwrite=False, namespace=self._space
            )
            if already_there:
                continue
            if name in self.starting_prestarted():
                return name  # _starts_no_more removes the claim from now on
            internal_kv._internal_kv_del(key, namespace=self._space)
        return None

    def claimed_prestarted(self) -> list[str]:
        """Return the sorted names of the claimed prestarted processes, which are being created."""
        return self._names(_CLAIMED)

    def _starts_no_more(self, name: str) -> None:
        for key in (_STARTING, _CLAIMED):
            internal_kv._internal_kv_del(key + name.encode(), namespace=self._space)

    def _put(self, key: bytes) -> None:
        internal_kv._internal_kv_put(key, b"", overwrite=True, namespace=self._space)

    def _names(self, prefix: bytes) -> list[str]:
        keys: list[bytes] = internal_kv._internal_kv_list(prefix, namespace=self._space)
        # Ray leaves a part of the namespace before the key, as the namespace contains a colon
        return sorted(key.rpartition(b":")[2].decode() for key in keys)
