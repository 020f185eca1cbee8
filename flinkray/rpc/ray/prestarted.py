"""Prestarted processes: started ahead, they take over the role of a process that is to be spawned.

To create an actor takes Ray half a second, and several at once compete for the processor; a process
that runs already is the new one within milliseconds: it opens a second RPC service under the
name of its role.  The actor's own name was fixed when it was created; but its creation is not over,
for Ray, before it has a role, so that Ray lists and shows it (``repr``) under its role's name.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import ray

from flinkray.core.errors import RpcError
from flinkray.rpc.endpoint import RpcEndpoint
from flinkray.rpc.gateway import RpcGateway, ask_timeout, runs_to_completion
from flinkray.rpc.ray.directory import RayDirectory
from flinkray.rpc.service import RpcService
from flinkray.rpc.spec import EndpointSpec
from flinkray.rpc.time_limit import within
from flinkray.rpc.wire import codec

logger = logging.getLogger(__name__)

PRESTARTED_ENDPOINT = "prestarted"

_POLL = 1.0
"""Seconds between two looks at how many there are."""
_AFTER_TAKEN = 0.3
"""Seconds until one that was taken by this process is replaced: its job is deployed by then if all
it needs was ready, and the processor had nothing else to do."""
_LOOK_AGAIN = 0.1
"""Seconds between two looks whether one that is being created is ready."""
_PATIENCE = 60.0
"""Seconds for which such a one is waited for: as long as a start may take."""

_START_TIMEOUT = 60.0
"""Seconds after which one that is being created is given up."""


class PrestartedGateway(RpcGateway):
    """A process without a role."""

    @abstractmethod
    @ask_timeout(None)
    @runs_to_completion
    async def take_over(self, factory: str, spec: bytes, owner: str | None) -> bytes:
        """Be the process of that spec, encoded.  *owner*: the process to die with.

        Returns, encoded, (True, the address of its endpoint) or (False, the error of its start).
        To be asked once, by the caller that has taken the process out of the directory.
        """


class Role:
    """What a prestarted process is to be."""

    def __init__(self, factory: str, spec: bytes, owner: str | None) -> None:
        self.factory = factory
        self.spec = spec
        self.owner = owner
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class Prestarted(RpcEndpoint, PrestartedGateway):
    """Waits for its role."""

    def __init__(self, rpc_service: RpcService) -> None:
        super().__init__(rpc_service, PRESTARTED_ENDPOINT)
        self.role: asyncio.Future[Role] = rpc_service.loop.create_future()

    async def take_over(self, factory: str, spec: bytes, owner: str | None) -> bytes:
        role = Role(factory, spec, owner)
        self.role.set_result(role)
        return await asyncio.shield(role.answer)


class PrestartedTaker:
    """Gives roles to the prestarted processes of a cluster."""

    def __init__(
        self,
        service: RpcService,
        directory: RayDirectory,
        run: Callable[..., Awaitable[Any]],
        kill_actor: Callable[[str], Awaitable[None]],
        on_taken: Callable[[], None],
    ) -> None:
        """*on_taken*: there is one less."""
        self._service = service
        self._directory = directory
        self._run = run
        self._kill_actor = kill_actor
        self._on_taken = on_taken

    async def spawn(self, spec: EndpointSpec) -> str | None:
        """The address of the role's endpoint; None: there is no prestarted process.

        One that is being created is waited for, rather than that another one is created beside it;
        but by no more than one, so that many that want a process at once all begin to get one.

        Raises:
            Exception: what the factory or ``on_start`` raised.
        """
        clock = self._service.clock
        give_up = clock.monotonic() + _PATIENCE
        claimed: str | None = None
        while True:
            address = await self._become(spec)
            if address is not None:
                return address
            if claimed is None:
                claimed = await self._run(self._directory.claim_starting)
                if claimed is None:
                    return None
            elif claimed not in await self._run(self._directory.starting_prestarted):
                claimed = None  # it has just become ready, or was ended
                continue
            if clock.monotonic() >= give_up:
                return None
            await asyncio.sleep(_LOOK_AGAIN)

    async def _become(self, spec: EndpointSpec) -> str | None:
        """None: none is ready."""
        owner = None if spec.detached else self._service.process_name
        for name in await self._run(self._directory.ready_prestarted):
            if not await self._take(name):
                continue  # somebody else was faster
            self._on_taken()
            try:
                prestarted = await self._service.connect(
                    f"{name}/{PRESTARTED_ENDPOINT}", PrestartedGateway
                )
                answer = await prestarted.take_over(spec.factory, codec.encode(spec), owner)
            except asyncio.CancelledError:
                await self._kill_actor(name)  # nobody else knows of it
                raise
            except RpcError as error:
                logger.info("%s cannot become %s: %s", name, spec.name, error)
                await self._kill_actor(name)  # or it might become it all the same, later
                continue
            started, outcome = codec.decode(answer)
            if not started:
                raise outcome
            return str(outcome)
        return None

    async def _take(self, name: str) -> bool:
        """Whether that prestarted process is now ours; if so, nobody else knows of it."""
        taking = asyncio.ensure_future(self._run(self._directory.remove_prestarted, name))
        try:
            return bool(await asyncio.shield(taking))
        except ray.exceptions.RayError:  # Ray's head went meanwhile: somebody else may have it
            return False
        except asyncio.CancelledError:
            await asyncio.wait({taking})  # it comes about all the same
            if taking.exception() is None and taking.result():
                await self._kill_actor(name)
            raise


class PrestartedKeeper:
    """Keeps a number of prestarted processes ready, whoever takes them."""

    def __init__(
        self,
        service: RpcService,
        directory: RayDirectory,
        run: Callable[..., Awaitable[Any]],
        create: Callable[[str], Awaitable[None]],
        kill_actor: Callable[[str], Awaitable[None]],
    ) -> None:
        """*create* begins to create one of that name."""
        self._service = service
        self._directory = directory
        self._run = run
        self._create = create
        self._kill_actor = kill_actor
        self._starting: dict[str, float] = {}
        """Since when each has been seen to start."""
        self._taken = asyncio.Event()

    def taken(self) -> None:
        """By this process; what others take is seen at the next look."""
        self._taken.set()

    async def keep(self, number: int) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                await self._fill_up(number)
            except (RpcError, ray.exceptions.RayError) as error:  # also: Ray's head is away
                logger.warning("prestarted processes: %s", error)
            with suppress(asyncio.TimeoutError):
                await within(_POLL, self._taken.wait())
                await asyncio.sleep(_AFTER_TAKEN)
            self._taken.clear()

    async def _fill_up(self, number: int) -> None:
        starting = await self._run(self._directory.starting_prestarted)
        ready = await self._run(self._directory.ready_prestarted)
        now = self._service.clock.monotonic()
        self._starting = {name: self._starting.get(name, now) for name in starting}
        for name, since in self._starting.items():
            if now - since > _START_TIMEOUT:
                await self._end(name)
        missing = [name for name in ready if not await self._is_there(name)]
        if missing:
            # who has become another process meanwhile was taken out of the book before
            still_ready = await self._run(self._directory.ready_prestarted)
            for name in missing:
                if name in still_ready:
                    await self._end(name)
        claimed = await self._run(self._directory.claimed_prestarted)
        for _ in range(number - len({*ready} | ({*starting} - {*claimed}))):
            name = f"Prestarted-{uuid.uuid4().hex[:8]}"
            await self._run(self._directory.prestarted_begun, name)
            await self._create(name)

    async def _end(self, name: str) -> None:
        await self._run(self._directory.remove_prestarted, name)
        await self._kill_actor(name)
        await self._run(self._directory.remove, name)

    async def _is_there(self, name: str) -> bool:
        try:
            await self._service.connect(f"{name}/{PRESTARTED_ENDPOINT}", PrestartedGateway)
        except RpcError:
            return False
        return True

    async def end_all(self) -> None:
        """End those without a role."""
        for name in await self._run(self._directory.starting_prestarted):
            await self._end(name)
        for name in await self._run(self._directory.ready_prestarted):
            await self._end(name)
