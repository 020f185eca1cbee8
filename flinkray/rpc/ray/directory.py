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
from typing import Any

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
_KEPT = b"prestarted-kept"
_TURN = b"prestarted-turn:"
_ENDING = b"prestarted-ending:"

_TURN_SEPARATOR = "."


def name_in_turn(actor_name: str, turn: int) -> str:
    """Return the process name under which a prestarted process waits for its role number *turn*."""
    return actor_name if turn == 1 else f"{actor_name}{_TURN_SEPARATOR}{turn}"


def turn_of(name: str) -> tuple[str, int]:
    """Return (actor name, turn) of a name made by :func:`name_in_turn`."""
    actor_name, _, turn = name.partition(_TURN_SEPARATOR)
    return actor_name, int(turn or 1)


def _with_turn(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "turn": 1}


@stored("ProcessRecord", version=2, migrations={1: _with_turn})
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
    """The actor's name: the process's own, or the first name of a prestarted process."""
    pid: int
    turn: int = 1
    """The number of the role, for a prestarted process that takes one role after the other."""

    @property
    def name_before(self) -> str:
        """The name under which a prestarted process waited for this role."""
        return name_in_turn(self.actor_name, self.turn)


class RayDirectory:
    """The records of one cluster, that is, of one Ray namespace."""

    def __init__(self, namespace: str, store: Any = internal_kv) -> None:
        """Create the directory of a namespace. *store* has the functions of Ray's module."""
        self._space = f"rpc:{namespace}".encode()
        self._store = store

    def secret(self) -> bytes:
        """Return the cluster's secret; made now if the cluster has none yet."""
        self._store._internal_kv_put(
            _SECRET, os.urandom(_SECRET_SIZE), overwrite=False, namespace=self._space
        )
        secret = self._store._internal_kv_get(_SECRET, namespace=self._space)
        if not isinstance(secret, bytes) or len(secret) != _SECRET_SIZE:
            raise RuntimeError(f"the secret of {self._space.decode()} is damaged")
        return secret

    def put(self, process_name: str, record: ProcessRecord) -> None:
        self._store._internal_kv_put(
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
        data = self._store._internal_kv_get(_PROCESS + process_name.encode(), namespace=self._space)
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
        self._remove(_PROCESS + process_name.encode())

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
        return self._remove(key) > 0

    def ready_prestarted(self) -> list[str]:
        """Return the sorted names of the prestarted processes that are ready."""
        return self._names(_PRESTARTED)

    def starting_prestarted(self) -> list[str]:
        """Return the sorted names of the prestarted processes that are being created."""
        return self._names(_STARTING)

    def has_become_another(self, name: str) -> bool:
        """Return whether the prestarted process *name* has a role.

        It has a role if the record of a process with another name leads to it. Also True if any
        record cannot be read.
        """
        for process in self.names(""):
            try:
                record = self.get(process)
            except StoredFormatError:
                return True
            if process != name and record is not None and record.name_before == name:
                return True
        return False

    def claim_starting(self) -> str | None:
        """Claim a prestarted process that is being created and not yet claimed.

        Returns the process's name; None: there is no such process. Another caller may still be
        faster and take the process when it is ready.
        """
        for name in self.starting_prestarted():
            key = _CLAIMED + name.encode()
            already_there = self._store._internal_kv_put(
                key, b"", overwrite=False, namespace=self._space
            )
            if already_there:
                continue
            if name in self.starting_prestarted():
                return name  # _starts_no_more removes the claim from now on
            self._remove(key)
        return None

    def claimed_prestarted(self) -> list[str]:
        """Return the sorted names of the claimed prestarted processes, which are being created."""
        return self._names(_CLAIMED)

    # prestarted processes that take one role after the other

    def keep_prestarted(self, is_kept: bool) -> None:
        """Note whether the cluster keeps prestarted processes. While it does not, a prestarted
        process ends with its role."""
        if is_kept:
            self._put(_KEPT)
        else:
            self._remove(_KEPT)

    def goes_back(self, process_name: str, incarnation: str, name: str) -> bool:
        """Note that a role is over, and that its process is about to wait for another one, under
        *name*. Returns False if the cluster keeps no prestarted processes: the process must end.

        *name* is listed as being created before the question. So whoever ends all prestarted
        processes finds it, or the process learns of that.
        """
        self.prestarted_begun(name)
        self.remove(process_name, incarnation)
        return bool(self._store._internal_kv_exists(_KEPT, namespace=self._space))

    def begin_turn(self, name: str) -> bool:
        """Note that the earlier roles of a prestarted process are over: from now on, no kill that
        is meant for one of them reaches the process. Returns False if such a kill may be under way:
        then the process must end.
        """
        actor_name, turn = turn_of(name)
        self._store._internal_kv_put(
            _TURN + actor_name.encode(), b"%d" % turn, overwrite=True, namespace=self._space
        )
        return not self._names(_ENDING + f"{name_in_turn(actor_name, turn - 1)}/".encode())

    def may_end(self, name: str, mark: str) -> bool:
        """Announce, by a *mark* that only the caller uses, that a prestarted process is to be
        killed: it waits under *name*, or has its role since. Returns False if that role is over,
        and the actor waits for another role or has it: then the actor must not be killed.

        This writes before it reads, as :meth:`begin_turn` does with the same two entries. So at
        least one of the two learns of the other. The mark of a kill stays, as the process may live
        for a moment afterwards; see :meth:`forget_end`.
        """
        self._put(_ENDING + f"{name}/{mark}".encode())
        actor_name, turn = turn_of(name)
        key = _TURN + actor_name.encode()
        current = self._store._internal_kv_get(key, namespace=self._space)
        if current is None or int(current) <= turn:
            return True
        self._remove(_ENDING + f"{name}/{mark}".encode())
        return False

    def forget_turns(self, actor_name: str) -> None:
        """Remove what is noted of the turns of a prestarted process that ends by itself."""
        self._remove(_TURN + actor_name.encode())

    def ends(self) -> list[str]:
        """Return what :meth:`forget_end` forgets, for each prestarted process that was killed."""
        return self._names(_ENDING)

    def forget_end(self, end: str) -> None:
        """Remove what is noted of a prestarted process that has long been killed."""
        self.forget_turns(turn_of(end.partition("/")[0])[0])
        self._remove(_ENDING + end.encode())

    def _starts_no_more(self, name: str) -> None:
        for key in (_STARTING, _CLAIMED):
            self._remove(key + name.encode())

    def _remove(self, key: bytes) -> int:
        """Remove an entry, and return how many there were."""
        return int(self._store._internal_kv_del(key, namespace=self._space))

    def _put(self, key: bytes) -> None:
        self._store._internal_kv_put(key, b"", overwrite=True, namespace=self._space)

    def _names(self, prefix: bytes) -> list[str]:
        keys: list[bytes] = self._store._internal_kv_list(prefix, namespace=self._space)
        # Ray leaves a part of the namespace before the key, as the namespace contains a colon
        return sorted(key.rpartition(b":")[2].decode() for key in keys)
