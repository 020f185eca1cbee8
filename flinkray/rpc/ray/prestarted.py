"""Prestarted processes are started ahead, and take over the roles of processes to be spawned.

To create an actor takes Ray half a second, and several at once compete for the processor; a process
that runs already becomes the new process within milliseconds: it opens a second RPC service under
the name of its role. The actor's own name was fixed when the actor was created. But the actor's
constructor returns only when the process has a role, so that Ray lists and shows the actor
(``repr``) under its role's name.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from flinkray.core.errors import RpcError, RpcTimeoutError
from flinkray.rpc.endpoint import RpcEndpoint
from flinkray.rpc.gateway import RpcGateway, ask_timeout, runs_to_completion
from flinkray.rpc.ray.directory import RayDirectory, turn_of
from flinkray.rpc.service import RpcService
from flinkray.rpc.spec import EndpointSpec
from flinkray.rpc.wire import codec

logger = logging.getLogger(__name__)

PRESTARTED_ENDPOINT = "prestarted"

_POLL = 1.0
"""Seconds between two checks of how many prestarted processes there are."""
_REPLACED_AFTER = 2.0
"""Seconds for which there are fewer ready processes than wanted, until one more is created.

A process whose role ends by then is back and needs no replacement. Until then the job has the
processor for itself.
"""
_RECENTLY = 120.0
"""Seconds for which the keeper remembers how many processes were missing."""
_LOOK_AGAIN = 0.1
"""Seconds between two checks whether a claimed process is ready."""
_PATIENCE = 60.0
"""Seconds to wait for a claimed process that is being created: as long as a start may take."""

_START_TIMEOUT = 60.0
"""Seconds until a process that is being created, or was taken and does not answer, is killed."""
_ANSWERS_WITHIN = 3.0
"""Seconds to wait for a ready process that does not answer, as it may be stopped."""
_HUNG_AFTER = 30.0
"""Seconds without an answer until a process with a role counts as hanging.

It may import modules for this long on a busy machine.
"""
_LEFT_AFTER = 10.0
"""Seconds until a taken process without a role, or a surplus process, is ended.

A taken process gets its role within milliseconds, unless the process that took it has died.
"""
_PREFIX = "Prestarted-"


class PrestartedGateway(RpcGateway):
    """Gateway of a prestarted process, which has no role yet."""

    @abstractmethod
    async def waits_for_role(self) -> bool:
        """Return True until the process has received its role."""

    @abstractmethod
    @ask_timeout(None)
    @runs_to_completion
    async def take_over(self, factory: str, spec: bytes, owner: str | None) -> bytes:
        """Become the process of *spec* (encoded); *owner* is the process to die with, or None.

        Returns, encoded, (True, the address of its endpoint) or (False, the error of its start).
        Only the caller that removed the process from the directory may call this, once.
        """


class Role:
    """The process that a prestarted process is to become."""

    def __init__(self, factory: str, spec: bytes, owner: str | None) -> None:
        self.factory = factory
        self.spec = spec
        self.owner = owner
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class Prestarted(RpcEndpoint, PrestartedGateway):
    """The endpoint of a prestarted process, which waits for its role."""

    def __init__(self, rpc_service: RpcService) -> None:
        super().__init__(rpc_service, PRESTARTED_ENDPOINT)
        self.role: asyncio.Future[Role] = rpc_service.loop.create_future()

    async def waits_for_role(self) -> bool:
        return not self.role.done()

    async def take_over(self, factory: str, spec: bytes, owner: str | None) -> bytes:
        role = Role(factory, spec, owner)
        self.role.set_result(role)
        return await asyncio.shield(role.answer)


async def _connect(service: RpcService, name: str, patience: float) -> PrestartedGateway | None:
    """Connect to a prestarted process; None if it does not answer in *patience* seconds."""
    connecting = service.connect(f"{name}/{PRESTARTED_ENDPOINT}", PrestartedGateway)
    try:
        return await service.deadlines.within(patience, connecting)
    except (RpcError, asyncio.TimeoutError):
        return None


class PrestartedTaker:
    """Turns prestarted processes of the cluster into the processes that this process spawns."""

    def __init__(
        self,
        service: RpcService,
        directory: RayDirectory,
        run: Callable[..., Awaitable[Any]],
        kill_actor: Callable[[str], Awaitable[None]],
    ) -> None:
        """Create the object, which takes no process yet. *kill_actor* kills a prestarted process,
        also if it has taken a role, but not if that role is over."""
        self._service = service
        self._directory = directory
        self._run = run
        self._kill_actor = kill_actor

    async def spawn(self, spec: EndpointSpec) -> str | None:
        """Give the role of *spec* to a prestarted process; return the endpoint's address.

        None: no prestarted process is available, and the caller must create an actor. A call that
        finds no ready process claims one that is being created, and waits for it. Only one call can
        claim a process; a call that can claim none returns None.

        Raises:
            Exception: the exception of the factory or of ``on_start``.
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
        """Take a prestarted process that is ready, and give it the role of *spec*. Returns the
        address of its endpoint; None if no ready process answers.

        The processes are tried in the order in which they answer. The keeper ends those that do not
        answer.
        """
        ready = await self._run(self._directory.ready_prestarted)
        answers = {
            asyncio.ensure_future(_connect(self._service, name, _ANSWERS_WITHIN)): name
            for name in ready
        }
        waiting = set(answers)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for answer in done:
                    prestarted, name = answer.result(), answers[answer]
                    if prestarted is None or not await self._take(name):
                        continue  # it does not answer, or another process has taken it
                    address = await self._give_role(name, prestarted, spec)
                    if address is not None:
                        return address
        finally:
            for answer in waiting:
                answer.cancel()
        return None

    async def _give_role(
        self, name: str, prestarted: PrestartedGateway, spec: EndpointSpec
    ) -> str | None:
        """Give the role to a taken process.

        Return the address of its endpoint. None: the process did not answer and was killed.
        """
        owner = None if spec.detached else self._service.process_name
        taking_over = prestarted.take_over(spec.factory, codec.encode(spec), owner)
        answer = asyncio.ensure_future(taking_over)
        looking = asyncio.ensure_future(self._until_it_hangs(name))
        try:
            await asyncio.wait({answer, looking}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise RpcTimeoutError(f"{name} has not answered for {_HUNG_AFTER:g} s")
            started, outcome = codec.decode(answer.result())
        except asyncio.CancelledError:
            await self._kill_actor(name)  # nobody else knows this process
            raise
        except RpcError as error:
            logger.info("%s cannot become %s: %s", name, spec.name, error)
            await self._kill_actor(name)  # otherwise it might take the role later
            return None
        finally:
            answer.cancel()
            looking.cancel()
        if not started:
            raise outcome
        return str(outcome)

    async def _until_it_hangs(self, name: str) -> None:
        clock = self._service.clock
        answered_at = clock.monotonic()
        while clock.monotonic() - answered_at < _HUNG_AFTER:
            if await _connect(self._service, name, _HUNG_AFTER) is not None:
                answered_at = clock.monotonic()
            await asyncio.sleep(_POLL)

    async def _take(self, name: str) -> bool:
        """Remove the prestarted process from the directory, so that no other process can take it.
        Returns False if another process was faster."""
        taking = asyncio.ensure_future(self._run(self._directory.remove_prestarted, name))
        try:
            return bool(await asyncio.shield(taking))
        except ray.exceptions.RayError:  # Ray's head went away: another may have it
            return False
        except asyncio.CancelledError:
            await asyncio.wait({taking})  # the removal goes on all the same
            if taking.exception() is None and taking.result():
                await self._kill_actor(name)
            raise


class PrestartedKeeper:
    """Keeps a number of prestarted processes ready, whichever process takes them."""

    def __init__(
        self,
        service: RpcService,
        directory: RayDirectory,
        run: Callable[..., Awaitable[Any]],
        create: Callable[[str], Awaitable[None]],
        kill_actor: Callable[[str], Awaitable[None]],
        is_there: Callable[[str], Awaitable[bool]],
    ) -> None:
        """Create the keeper, which keeps no processes yet.

        Args:
            create: begins to create a prestarted process with the given name.
            is_there: returns whether Ray has an actor of the given name.
        """
        self._service = service
        self._directory = directory
        self._run = run
        self._create = create
        self._kill_actor = kill_actor
        self._is_there = is_there
        self._starting: dict[str, float] = {}
        """The time at which this object first saw each process that is being created."""
        self._without_role: dict[str, float] = {}
        """The time at which this object first saw each taken process without a known role."""
        self._surplus_since: float | None = None
        """The time since when there are more ready processes than wanted; None: no surplus."""
        self._is_new = True
        """Whether nothing was looked at yet."""
        self._missing_since: float | None = None
        """The time since when there are fewer than wanted, or a replacement was begun; None: none
        is missing."""
        self._shortages: deque[tuple[float, int]] = deque()
        """(time, number of missing processes) of the last checks."""
        self._ends: dict[str, float] = {}
        """The time at which this object first saw each note of a killed process."""

    async def keep(self, number: int) -> None:
        """Keep *number* processes ready; runs until it is cancelled."""
        is_noted = False
        while True:
            try:
                if not is_noted:
                    await self._run(self._directory.keep_prestarted, True)
                    is_noted = True
                await self._fill_up(number)
                await self._forget_ends()
            except (RpcError, ray.exceptions.RayError) as error:  # also: Ray's head is away
                logger.warning("prestarted processes: %s", error)
            await asyncio.sleep(_POLL)

    async def _fill_up(self, number: int) -> None:
        starting = await self._run(self._directory.starting_prestarted)
        ready = await self._run(self._directory.ready_prestarted)
        now = self._service.clock.monotonic()
        self._starting = {name: self._starting.get(name, now) for name in starting}
        for name, since in self._starting.items():
            if now - since > _START_TIMEOUT:
                await self._end(name)
        await self._end_left(now, {*starting, *ready})
        answers = await asyncio.gather(
            *(_connect(self._service, name, _HUNG_AFTER) for name in ready)
        )
        missing = [name for name, there in zip(ready, answers, strict=True) if there is None]
        for name in missing:
            # a process that got a role meanwhile was removed from the directory before
            if await self._run(self._directory.remove_prestarted, name):
                await self._end(name)
        ready = [name for name in ready if name not in missing]
        claimed = await self._run(self._directory.claimed_prestarted)
        free = {*ready} | ({*starting} - {*claimed})
        await self._end_surplus(now, ready, number + self._shortage(now, number - len(free)))
        for _ in range(self._to_create(now, number - len(free))):
            name = f"{_PREFIX}{uuid.uuid4().hex[:8]}"
            await self._run(self._directory.prestarted_begun, name)
            await self._create(name)

    def _shortage(self, now: float, missing: int) -> int:
        """Note how many processes are missing now, and return the most of the last minutes.

        So many more are kept for a while: so many jobs have begun at the same time.
        """
        self._shortages.append((now, max(missing, 0)))
        while now - self._shortages[0][0] > _RECENTLY:
            self._shortages.popleft()
        return max(missing for _, missing in self._shortages)

    def _to_create(self, now: float, missing: int) -> int:
        """Return how many processes to create now: at first all that are missing, later one after
        the other, as jobs that run need the processor."""
        is_first, self._is_new = self._is_new, False
        if missing <= 0:
            self._missing_since = None
            return 0
        if self._missing_since is None:
            self._missing_since = now
            return missing if is_first else 0
        if now - self._missing_since < _REPLACED_AFTER:
            return 0
        self._missing_since = now
        return 1

    async def _forget_ends(self) -> None:
        """Forget killed processes, when Ray has ended them."""
        now = self._service.clock.monotonic()
        ends = await self._run(self._directory.ends)
        self._ends = {end: self._ends.get(end, now) for end in ends}
        for end, since in self._ends.items():
            actor_name, _ = turn_of(end.partition("/")[0])
            if now - since > _START_TIMEOUT and not await self._is_there(actor_name):
                await self._run(self._directory.forget_end, end)

    async def _end_left(self, now: float, known: set[str]) -> None:
        """End prestarted processes that were taken by a process that died before it gave them a
        role.

        *known*: names of the processes that are ready or being created. A process with a role is
        not found any more under its prestarted name.
        """
        names = await self._run(self._directory.names, _PREFIX)
        taken = [name for name in names if name not in known]
        self._without_role = {name: self._without_role.get(name, now) for name in taken}
        for name, since in tuple(self._without_role.items()):
            if now - since <= _LEFT_AFTER:
                continue
            prestarted = await _connect(self._service, name, _ANSWERS_WITHIN)
            if prestarted is not None:
                is_left = await prestarted.waits_for_role()
            elif now - since <= _START_TIMEOUT:
                is_left = False
            elif await self._run(self._directory.has_become_another, name):
                is_left = False
                await self._run(self._directory.remove, name)  # it has a role but did not sign off
            else:
                is_left = True
            if is_left:
                logger.info("%s was taken, and nobody has given it a role: it is ended", name)
                await self._end(name)

    async def _end_surplus(self, now: float, ready: list[str], number: int) -> None:
        if len(ready) <= number:
            self._surplus_since = None
            return
        self._surplus_since = now if self._surplus_since is None else self._surplus_since
        if now - self._surplus_since > _LEFT_AFTER:
            for name in ready[number:]:
                if await self._run(self._directory.remove_prestarted, name):
                    await self._end(name)

    async def _end(self, name: str) -> None:
        await self._run(self._directory.remove_prestarted, name)
        await self._kill_actor(name)
        await self._run(self._directory.remove, name)

    async def end_all(self) -> None:
        """End all prestarted processes that nobody has taken, ready or being created. The others
        end with their roles."""
        await self._run(self._directory.keep_prestarted, False)
        for name in await self._run(self._directory.starting_prestarted):
            await self._end(name)
        for name in await self._run(self._directory.ready_prestarted):
            await self._end(name)
