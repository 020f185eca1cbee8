"""The client finds states, keeps where they are, and follows them when they move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import pytest

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.kv_states import KvStateAnswer, KvStateServerGateway
from flinkray.client.queryable_state import KvStateNotFoundAgainError, QueryableStateClient, _query
from flinkray.core.errors import FrameTooLargeError
from flinkray.core.ids import JobID, JobVertexID, KvStateID
from flinkray.core.kv_states import (
    KvStateJobNotFoundError,
    KvStateLocation,
    KvStatePlace,
    UnknownKeyOrNamespaceError,
    UnknownKvStateIdError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
)
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.state import ValueStateDescriptor
from flinkray.state.key_group_assignment import KEY_KINDS, key_group_of, stable_hash
from flinkray.state.kv_state_serializer import (
    NO_NAMESPACE,
    KvStateSerializer,
    deserialize_keys_and_namespace,
)
from flinkray.testing import TestingGateway, on_virtual_time

T = TypeVar("T")

JOB = JobID(b"j" * 16)
GROUPS = 4
WHERE = DispatcherGateway.request_kv_state_location
QUERY = KvStateServerGateway.query_kv_state


class World:
    """A Dispatcher, and servers that hold halves of a state."""

    def __init__(self) -> None:
        self._network = LocalNetwork()
        self.rpc_service = LocalRpcService("client", self._network)
        self.gateway = TestingGateway(DispatcherGateway)
        self.servers: dict[str, TestingGateway[KvStateServerGateway]] = {}
        self.stored: dict[str, dict[Any, Any]] = {}
        """By server."""
        self.client = QueryableStateClient(cast(Any, self))

    @property
    def _session(self) -> World:
        return self

    @property
    def dispatcher(self) -> World:
        return self

    async def ask(
        self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]], timeout: float
    ) -> T:
        return await call(self.gateway.gateway)

    def serve(self, name: str) -> KvStateID:
        """A server; the id of its state."""
        kv_state_id = KvStateID(name.encode().rjust(16, b"0"))
        stored = self.stored[name] = {}

        def query(wanted: KvStateID, request: bytes) -> KvStateAnswer:
            if wanted != kv_state_id:
                raise UnknownKvStateIdError(wanted)
            keys, _ = deserialize_keys_and_namespace(request)
            found = [stored[key] for key in keys if key in stored]
            if not found:
                raise UnknownKeyOrNamespaceError("s")
            missing = tuple(place for place, key in enumerate(keys) if key not in stored)
            return KvStateAnswer(missing, KvStateSerializer(None).serialize(found))

        server = self.servers[name] = TestingGateway(KvStateServerGateway)
        server.on(QUERY).calling(query)
        server.start(LocalRpcService(name, self._network), "server")
        return kv_state_id

    def crash(self, name: str) -> None:
        self._network.crash(name)

    def location(self, *names: str | None, key_type: str | None = None) -> KvStateLocation:
        """Each has its part of the key groups; None: nobody has it."""
        each = GROUPS // len(names)
        places = tuple(
            KvStatePlace(
                number * each,
                (number + 1) * each - 1,
                KvStateID(name.encode().rjust(16, b"0")),
                f"{name}/server",
            )
            for number, name in enumerate(names)
            if name is not None
        )
        vertex = JobVertexID(b"v" * 16)
        return KvStateLocation(JOB, vertex, "s", GROUPS, "value", key_type, places)

    def at(self, *answers: KvStateLocation | Exception) -> None:
        """What the Dispatcher says; the last one for ever."""
        left = list(answers)

        def answer(job_id: JobID, name: str) -> KvStateLocation:
            said = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(said, Exception):
                raise said
            return said

        self.gateway.on(WHERE).calling(answer)

    async def get(self, *keys: Any, timeout: float = 10.0) -> list[Any]:
        found = await self.client._many(_query(JOB, "s", VALUE, NO_NAMESPACE, timeout), keys)
        return [None if state is None else state.value() for state in found]

    async def one(self, key: Any) -> Any:
        return (await self.client._one(_query(JOB, "s", VALUE, NO_NAMESPACE, 10.0), key)).value()

    @property
    def looks(self) -> int:
        return len(self.gateway.calls_of(WHERE))


VALUE: ValueStateDescriptor[Any] = ValueStateDescriptor("s")


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        await made._network.close()


def key_in(groups: range, hash_of: Any = stable_hash) -> int:
    return next(n for n in range(1000) if key_group_of(n, GROUPS, hash_of) in groups)


LOW, HIGH = key_in(range(2)), key_in(range(2, 4))


@on_virtual_time
async def test_location_of_a_state_is_requested_once_for_several_queries() -> None:
    async with world() as it:
        for name, key in (("a", LOW), ("b", HIGH)):
            it.serve(name)
            it.stored[name][key] = name
        it.at(it.location("a", "b"))
        assert await it.get(HIGH, LOW, HIGH) == ["b", "a", "b"]
        assert await it.one(LOW) == "a"
        assert it.looks == 1
        assert len(it.servers["a"].calls) == 2


@on_virtual_time
async def test_simultaneous_queries_share_one_location_request() -> None:
    async with world() as it:
        it.serve("a")
        it.stored["a"].update({key: key for key in range(20)})
        it.at(it.location("a"))
        assert await asyncio.gather(*(it.one(key) for key in range(20))) == list(range(20))
        assert it.looks == 1


@on_virtual_time
async def test_query_of_one_missing_key_fails_and_query_of_many_keys_returns_none_for_it() -> None:
    async with world() as it:
        it.serve("a")
        it.stored["a"][1] = None
        it.at(it.location("a"))
        assert await it.get(2, 3) == [None, None]
        with pytest.raises(UnknownKeyOrNamespaceError):
            await it.one(2)
        assert await it.one(1) is None
        assert await it.get() == []


@on_virtual_time
@pytest.mark.parametrize("how", ["moved", "died", "gap", "nowhere"])
async def test_query_locates_moved_state_again_and_repeats_only_its_unanswered_keys(
    how: str,
) -> None:
    async with world() as it:
        for name in ("a", "b", "c"):
            it.serve(name)
            it.stored[name].update({LOW: name, HIGH: name})
        gap = UnknownKvStateLocationError("s") if how == "nowhere" else it.location("a", None)
        between = [gap, gap] if how in ("gap", "nowhere") else []
        it.at(it.location("a", "b"), *between, it.location("a", "c"))
        assert await it.get(LOW, HIGH) == ["a", "b"]
        if how == "died":
            it.crash("b")
        else:
            it.servers["b"].on(QUERY).raising(UnknownKvStateIdError(KvStateID.generate()))
        asked = len(it.servers["a"].calls)
        assert await it.get(LOW, HIGH) == ["a", "c"]
        assert len(it.servers["a"].calls) == asked + 1, "what was answered is not asked again"
        assert it.looks == 2 + len(between)


@on_virtual_time
async def test_query_reaches_a_restarted_process_of_the_same_name() -> None:
    async with world() as it:
        it.serve("a")
        it.stored["a"][1] = "before"
        it.at(it.location("a"))
        assert await it.one(1) == "before"
        it.crash("a")
        it.serve("a")
        it.stored["a"][1] = "after"
        assert await it.one(1) == "after"


@on_virtual_time
async def test_query_fails_within_10_s_when_a_lost_state_is_not_found_again() -> None:
    async with world() as it:
        it.serve("a")
        it.stored["a"][1] = 1
        it.at(it.location("a"), UnknownKvStateLocationError("s"))
        await it.get(1)
        it.crash("a")
        begun = it.rpc_service.clock.monotonic()
        with pytest.raises(KvStateNotFoundAgainError, match=r"within 10 s: UnknownKvStateLoc"):
            await it.get(1)
        assert 9.0 < it.rpc_service.clock.monotonic() - begun <= 10.0
        assert it.looks < 40


@on_virtual_time
async def test_query_error_names_the_key_group_that_no_process_has() -> None:
    async with world() as it:
        it.serve("a")
        it.at(it.location("a", None))
        with pytest.raises(KvStateNotFoundAgainError, match="nobody holds key group") as error:
            await it.get(HIGH, timeout=0.1)
        assert isinstance(error.value.__cause__, UnknownKvStateKeyGroupLocationError)


@on_virtual_time
async def test_query_before_its_state_exists_fails_at_once_and_a_later_query_succeeds() -> None:
    """QS-11."""
    async with world() as it:
        it.serve("a")
        it.stored["a"][1] = 1
        it.at(UnknownKvStateLocationError("s"), it.location("a"))
        with pytest.raises(UnknownKvStateLocationError):
            await it.get(1)
        assert await it.get(1) == [1]


@on_virtual_time
async def test_query_of_an_ended_job_fails_after_one_location_request() -> None:
    async with world() as it:
        it.serve("a")
        it.stored["a"][1] = 1
        it.at(it.location("a"), KvStateJobNotFoundError(JOB))
        await it.get(1)
        it.crash("a")
        with pytest.raises(KvStateJobNotFoundError, match="Could not find Flink job"):
            await it.get(1)
        assert it.looks == 2


@on_virtual_time
async def test_query_converts_keys_to_the_key_type_of_the_state() -> None:
    """An integer key of a DOUBLE state has the key group and the equality of the double."""
    kind = KEY_KINDS["DOUBLE"]
    key = next(n for n in range(9) if key_group_of(float(n), GROUPS, kind.hash_of) in range(2, 4))
    async with world() as it:
        for name in ("a", "b"):
            it.serve(name)
        it.stored["b"][float(key)] = "b"
        it.at(it.location("a", "b", key_type="DOUBLE"))
        assert await it.get(key) == ["b"]


@on_virtual_time
async def test_query_of_2500_keys_is_split_into_messages_of_1000_keys() -> None:
    async with world() as it:
        it.serve("a")
        it.stored["a"].update({key: key for key in range(2500)})
        it.at(it.location("a"))
        assert await it.get(*range(2500)) == list(range(2500))
        sizes = [
            len(deserialize_keys_and_namespace(r)[0]) for _, r in it.servers["a"].calls_of(QUERY)
        ]
        assert sizes == [1000, 1000, 500]


@on_virtual_time
async def test_query_answers_too_large_for_one_message_are_requested_in_parts() -> None:
    async with world() as it:
        it.serve("a")
        it.at(it.location("a"))

        def query(kv_state_id: KvStateID, request: bytes) -> KvStateAnswer:
            keys, _ = deserialize_keys_and_namespace(request)
            if len(keys) > 2:
                raise FrameTooLargeError("too large")
            return KvStateAnswer((), KvStateSerializer(None).serialize(keys))

        it.servers["a"].on(QUERY).calling(query)
        assert await it.get(*range(7)) == list(range(7))
        it.servers["a"].on(QUERY).raising(FrameTooLargeError("too large"))
        with pytest.raises(FrameTooLargeError):
            await it.get(1)
