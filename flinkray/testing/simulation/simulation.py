"""Runs a cluster on virtual time; a seed decides everything that is random."""

from __future__ import annotations

import asyncio
import logging
import random as standard_random
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from typing import Any, TypeVar, overload
from urllib.parse import urlsplit

from pyarrow.fs import FileSystem as ArrowFileSystem

from flinkray.checkpoint.state_files import register_state_files
from flinkray.core.ids import random_bytes_from
from flinkray.file_results import register_files
from flinkray.ha.directory import FileDirectory
from flinkray.ha.locations import register_scheme
from flinkray.rpc.service import RpcService
from flinkray.rpc.spec import EndpointSpec
from flinkray.testing.simulation.conditions import Conditions
from flinkray.testing.simulation.disk import SimulatedDisk, SimulatedStateFiles, arrow_file_system
from flinkray.testing.simulation.durations import Durations
from flinkray.testing.simulation.errors import SimulationError
from flinkray.testing.simulation.faults import Faults, Nemesis
from flinkray.testing.simulation.machines import NODE_CRASHED, Machines, Node
from flinkray.testing.simulation.network import Partition, SimulatedNetwork
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.scheduler import Scheduler
from flinkray.testing.simulation.seeds import stream
from flinkray.testing.simulation.service import SimulatedRpcService
from flinkray.testing.simulation.supervisor import Supervisor
from flinkray.testing.simulation.trace import SimulationStory
from flinkray.testing.waiting import Errors, ask_again

T = TypeVar("T")

MAIN = "test"
"""The name of the process in which the scenario runs; no fault ever hits it."""
SCHEME = "simulated"
"""The scheme of the URIs of simulated directories: ``simulated://<disk>/<path>``."""


class Simulation:
    """Simulates a cluster. The seed decides the order of events, durations and faults. Every
    process has its own event loop. The scenario runs in a process, too (``test``)."""

    def __init__(
        self,
        seed: int,
        *,
        faults: Faults | None = None,
        conditions: Conditions | None = None,
        nodes: int = 1,
        time_limit: float = 3600.0,
        story_length: int = 10_000,
        epoch: float = 1_700_000_000.0,
        log_level: int = logging.INFO,
    ) -> None:
        """Prepare a simulation; :meth:`run` runs it. *conditions*: durations of events while no
        fault is active. *time_limit*: virtual seconds after which the run fails, because it waits
        in vain. *epoch*: wall-clock time at the beginning, in seconds. *log_level*: lowest level of
        flinkray's log lines in the story (the log of the run)."""
        self.seed = seed
        self.random = stream(seed, "user")
        """A random stream for the scenario itself."""
        self.epoch = epoch
        self.story = SimulationStory(story_length)
        self.scheduler = Scheduler(stream(seed, "schedule"), limit=time_limit, story=self.story)
        self.network = SimulatedNetwork(self.scheduler, stream(seed, "network"))
        if conditions is not None:
            self.network.set_conditions(conditions)
        self.machines = Machines(
            seed, nodes, self.scheduler, self.tell, lambda disk: self.faults.of_disk(disk)
        )
        self.main_process = self.scheduler.new_process(MAIN, "")
        self.supervisor = Supervisor(self)
        self.listeners: list[Callable[[SimulatedProcess], None]] = []
        """Called with each process that is created, dies or is banished, outside of any process."""
        self.durations = Durations(stream(seed, "durations"), self.network, self.machines)
        self.banished: list[SimulatedProcess] = []
        """Processes that were taken for dead while they lived."""
        self.belongings: dict[type, Any] = {}
        """Objects that the scenario has made, by type; code in its processes finds them here.

        They end with the run. (A table by simulation would keep every simulation forever, even with
        weak keys, as its values refer to the simulation.)
        """
        self._clocks = stream(seed, "clocks")
        self.faults: Faults = (faults or Faults()).of_seed(stream(seed, "faults", "kinds"))
        """The faults of this seed, drawn from the faults that the scenario allows."""
        self._nemesis = Nemesis(self, self.faults, stream(seed, "faults"))
        self._ids = IdSource(seed, self.scheduler)
        self._incarnations = 0
        self._log = StoryLog(self.tell, log_level)

    def __repr__(self) -> str:
        return f"<Simulation of seed {self.seed} at {self.now:g} s>"

    @classmethod
    def current(cls) -> Simulation:
        """Return the simulation of the process that runs now.

        Raises:
            SimulationError: no simulated process runs.
        """
        loop = asyncio.get_running_loop()
        simulation = getattr(loop, "simulation", None)
        if not isinstance(simulation, Simulation):
            raise SimulationError("this code does not run in a simulated process")
        return simulation

    # --- the run ----------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run *main* in the process ``test``, then end all processes; return the result of *main*.
        Exceptions of *main* and of invariants are raised here. Raises SimulationError: the run
        cannot continue, or no code has awaited an exception."""
        __tracebackhide__ = True
        state = standard_random.getstate()
        standard_random.seed(self.seed)
        register_scheme(SCHEME, open_simulated_directory)
        register_files(SCHEME, open_simulated_files)
        register_state_files(SCHEME, open_simulated_state_files)
        self._adopt(self.main_process)
        self._nemesis.begin()
        try:
            with random_bytes_from(self._ids), self._log:
                return self.main_process.run_until_complete(main)
        finally:
            main.close()
            self.scheduler.close()
            standard_random.setstate(state)

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.scheduler.now

    @property
    def trace_hash(self) -> str:
        """A hash of everything that has happened so far. It is equal for equal seeds and
        programs."""
        return self.scheduler.trace.hexdigest()

    def tell(self, line: str, *args: object) -> None:
        """Add a line to the story, the log of the run; formatted like a log line."""
        process = self.scheduler.current
        self.story.add(self.now, process.name if process else "", line, *args)

    # --- processes --------------------------------------------------------------------------------

    def service(
        self, name: str = "client", *, ask_timeout: float = RpcService.DEFAULT_ASK_TIMEOUT
    ) -> SimulatedRpcService:
        """Create an RPC service in the process that runs now; other processes know it as *name*."""
        return SimulatedRpcService(name, self, ask_timeout=ask_timeout)

    def start(
        self,
        name: str,
        program: Callable[..., Coroutine[Any, Any, None]],
        *args: object,
        node: str | None = None,
    ) -> SimulatedProcess:
        """Run ``await program(*args)`` in a new process, which ends with the program, and return
        the process. An exception of the program ends the run."""
        process = self.new_process(name, node or self.machines.place())

        async def run() -> None:
            await program(*args)
            process.die("it has ended")

        process.post(0.0, lambda: process.create_task(run()))
        return process

    def processes(self, kind: str = "") -> list[SimulatedProcess]:
        """Return the living processes whose names begin with *kind*, oldest first, without the
        simulation's own processes."""
        return [p for p in self.victims() if p.name.startswith(kind)]

    def process(self, name: str) -> SimulatedProcess:
        """Return the living process with this name. Raises SimulationError: there is none."""
        for process in self.scheduler.processes:
            if process.name == name:
                return process
        raise SimulationError(f"there is no process {name} at {self.now:g} s")

    def crash(
        self,
        process: str | SimulatedProcess,
        *,
        after_steps: int = 0,
        keep_disk: bool = True,
    ) -> None:
        """Kill a process as by SIGKILL; it is restarted as its spec says. Nothing of the process
        ever runs again, not even a ``finally``. *after_steps*: number of callbacks that the process
        runs before it is killed. *keep_disk*: whether the files on the process's disk survive."""
        victim = self._find(process)
        if not keep_disk:
            victim.on_death(lambda: self.machines.wipe(victim.name))
        if after_steps:
            self.tell("%s will be killed in %d steps", victim.name, after_steps)
            victim.die_after(after_steps, "it was killed")
        else:
            victim.die("it was killed")

    def hang(self, process: str | SimulatedProcess) -> None:
        """Stop a process as by SIGSTOP, until :meth:`resume`."""
        victim = self._find(process)
        self.tell("%s hangs", victim.name)
        victim.stop_serving()

    def resume(self, process: str | SimulatedProcess) -> None:
        """Let a process continue after :meth:`hang`. Does nothing if the process has died."""
        victim = self._find(process)
        if victim.is_alive:
            self.tell("%s goes on", victim.name)
            victim.resume()

    def freeze(self, process: str | SimulatedProcess) -> None:
        """Stop a process for good, as by SIGSTOP."""
        victim = self._find(process)
        self.tell("%s hangs for good", victim.name)
        victim.freeze()

    def banish(self, process: str | SimulatedProcess) -> None:
        """Make the cluster believe that a living process is dead, as Ray does when it has lost a
        node. The name of the process becomes free, and processes that watch it are notified of its
        death. The process runs on, and its open connections stay."""
        victim = self._find(process)
        names = self.network.process_banished(victim)
        if not names:  # it has not started yet
            victim.die("it was killed")
            return
        self.tell("%s is taken for dead", victim.name)
        self.supervisor.process_died(victim, names, self.network.latency())
        self.banished.append(victim)
        self._changed(victim)

    def end_banished(self, process: SimulatedProcess) -> None:
        """Kill a banished process, as its supervisor does when it finds that the process lives."""
        if process.is_alive:
            process.die("it was taken for dead")

    def pause_in_work(self, process: SimulatedProcess) -> Callable[[], None] | None:
        """Return the function of :meth:`Nemesis.pause_in_work` for the next blocking work of
        *process*."""
        return self._nemesis.pause_in_work(process)

    def slow_down(self, process: str | SimulatedProcess, step_cost: float) -> None:
        """Make each callback of a process take *step_cost* virtual seconds; 0: no time."""
        victim = self._find(process)
        if victim.is_alive:
            self.tell("%s: each step takes %g s", victim.name, step_cost)
            victim.slow_down(step_cost)

    def partition(
        self, sources: list[str], targets: list[str], *, one_way: bool = False
    ) -> Partition:
        """Hold back all frames between *sources* and *targets* (names of processes or nodes) from
        now on, and return the partition for :meth:`heal`. *one_way*: only frames from *sources* to
        *targets*."""
        return self.network.partition(sources, targets, one_way=one_way)

    def heal(self, partition: Partition | None = None) -> None:
        """End a partition of the network; None: all of them."""
        self.network.heal(partition)

    # --- nodes ------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        return self.machines.nodes

    def crash_node(self, name: str) -> None:
        """Crash a machine, as by a power failure: its processes die and close no sockets."""
        self.tell("%s crashes", name)
        self.machines.crash(name)

    def restart_node(self, name: str, *, keep_disk: bool = True) -> None:
        """Restart a crashed machine, without its processes. *keep_disk*: whether the files on its
        disk survive."""
        node = self.machines.node(name)
        if not node.is_up:
            self.tell("%s is there again, %s", name, "with its disk" if keep_disk else "empty")
            if not keep_disk:
                self.machines.wipe(name)
            self.machines.restart(name)

    # --- storage ----------------------------------------------------------------------------------

    def disk(self, name: str = "shared") -> SimulatedDisk:
        """Return the disk of a node or process, or the ``shared`` storage that no crash touches.
        Programs reach it as ``simulated://<name>/<path>``."""
        return self.machines.disk(name)

    def disks(self) -> list[SimulatedDisk]:
        """Return the disks that were used so far."""
        return list(self.machines.disks.values())

    # --- what must hold ---------------------------------------------------------------------------

    def always(self, invariant: Callable[[], object], *, every: int = 1) -> None:
        """Call *invariant* after every step of the run (or after every *every* steps). If it raises
        an exception, the run ends with it."""
        if every == 1:
            self.scheduler.checks.append(invariant)
            return
        scheduler = self.scheduler

        def now_and_then() -> None:
            if scheduler.steps % every == 0:
                invariant()

        self.scheduler.checks.append(now_and_then)

    @overload
    async def eventually(
        self,
        condition: Callable[[], Awaitable[T]],
        *,
        within: float,
        what: str = "",
        retry_on: Errors = (),
    ) -> T: ...
    @overload
    async def eventually(
        self, condition: Callable[[], T], *, within: float, what: str = "", retry_on: Errors = ()
    ) -> T: ...
    async def eventually(
        self,
        condition: Callable[[], Awaitable[T] | T],
        *,
        within: float,
        what: str = "",
        retry_on: Errors = (),
    ) -> T:
        """Call *condition* again and again until its result is true, for at most *within* virtual
        seconds; return this result.

        *condition* may be async. Errors of the types *retry_on* count as not true yet.

        Raises:
            AssertionError: *condition* was not true in time.
        """
        name = what or getattr(condition, "__name__", repr(condition))
        complaint = f"not within {within:g} s: {name}"
        pause = min(0.05, within / 20)
        return await ask_again(condition, lambda: self.now, within, pause, retry_on, complaint)

    async def quiet(self) -> None:
        """Wait until the time :attr:`Faults.until`, then stop all faults."""
        if self.faults.until < inf:
            await asyncio.sleep(self.faults.until - self.now)
        self.stop_faults()

    @property
    def are_faults_on(self) -> bool:
        """Whether faults may happen now and will end at :attr:`Faults.until`. False after that
        time, and also if the faults never end."""
        return self.now < self.faults.until < inf

    def stop_faults(self) -> None:
        """Stop all faults, and repair what is broken."""
        self._nemesis.end()

    # --- for the parts of the simulation ----------------------------------------------------------

    def new_process(self, name: str, node: str) -> SimulatedProcess:
        process = self.scheduler.new_process(name, node)
        error = self.faults.clock_error
        process.clock_error = self._clocks.uniform(-error, error)
        self._adopt(process)
        self._changed(process)
        return process

    def _changed(self, process: SimulatedProcess) -> None:
        for listener in self.listeners:
            listener(process)

    def _adopt(self, process: SimulatedProcess) -> None:
        process.simulation = self
        process.on_death(lambda: self._died(process))

    def _died(self, process: SimulatedProcess) -> None:
        if self.scheduler.is_closed:
            return
        self.story.add(self.now, process.name, "is dead: %s", process.exit_code or "")
        conditions = self.network.conditions
        if process.exit_code == NODE_CRASHED:
            names = self.network.process_died(process, conditions.silence_timeout)
            self.supervisor.process_died(process, names, self.durations.draw("node_death_noticed"))
        else:
            names = self.network.process_died(process)
            # not before the frames that it sent in its last moment
            noticed_after = conditions.latency[1] + self.network.latency()
            self.supervisor.process_died(process, names, noticed_after)
        self._changed(process)

    def kill_process(self, process: SimulatedProcess, reason: str) -> None:
        if process is self.main_process:
            raise SimulationError(f"the scenario's own process cannot die ({reason})")
        process.die(reason)

    def victims(self) -> list[SimulatedProcess]:
        """Return the processes that faults may hit, oldest first."""
        return [p for p in self.scheduler.processes if p.node and not p.is_banished]

    def reachable(self) -> list[SimulatedProcess]:
        """Return the processes on the network: the :meth:`victims`, and the process of the
        scenario."""
        return [*self.victims(), self.main_process]

    def place(self, spec: EndpointSpec) -> str | None:
        """Return the name of the node on which a new process is to run. None: its worker group's
        bundle has no node now.

        Raises:
            KeyError: the worker group is gone.
        """
        placement, bundles = spec.placement, self.machines.bundles
        if placement.worker_group is None or bundles is None:
            return self.machines.place(placement.node_id)
        return bundles(placement.worker_group, placement.bundle_index)

    def next_incarnation(self) -> int:
        self._incarnations += 1
        return self._incarnations

    def _find(self, process: str | SimulatedProcess) -> SimulatedProcess:
        found = self.process(process) if isinstance(process, str) else process
        if not found.node:
            raise SimulationError(f"nothing may befall the process {found.name}")
        return found


def open_simulated_directory(uri: str) -> FileDirectory:
    """Return the directory of a ``simulated://`` URI, on a disk of the running simulation."""
    parts = urlsplit(uri)
    simulation = Simulation.current()
    path = parts.path.strip("/")
    return FileDirectory(simulation.disk(parts.netloc), path, _writer(simulation))


def open_simulated_state_files(uri: str) -> SimulatedStateFiles:
    """Return the checkpoint storage on the disk of a ``simulated://`` URI."""
    simulation = Simulation.current()
    return SimulatedStateFiles(simulation.disk(urlsplit(uri).netloc), _writer(simulation))


def _writer(simulation: Simulation) -> str:
    process = simulation.scheduler.current
    return "0" if process is None else str(process.number)


def open_simulated_files(uri: str) -> tuple[ArrowFileSystem, str]:
    """Return the disk of a ``simulated://`` URI as a file system of pyarrow, and the path on it."""
    parts = urlsplit(uri)
    return arrow_file_system(Simulation.current().disk(parts.netloc)), parts.path.strip("/")


class IdSource:
    """Source of random bytes with one stream per process, so that processes do not affect each
    other's ids."""

    def __init__(self, seed: int, scheduler: Scheduler) -> None:
        self._seed = seed
        self._scheduler = scheduler
        self._sources: dict[SimulatedProcess | None, Callable[[int], bytes]] = {}

    def __call__(self, size: int) -> bytes:
        process = self._scheduler.current
        source = self._sources.get(process)
        if source is None:
            name = f"{process.name}.{process.number}" if process else ""
            source = self._sources[process] = stream(self._seed, "ids", name).randbytes
        return source(size)


class StoryLog(logging.Handler):
    """Context manager: flinkray's log lines go to the story, and to no other handler. Other
    handlers may keep records for a long time (pytest does until the end of an item, which may be
    thousands of runs), and a record refers, by the objects in its line and its traceback, to a
    whole run."""

    def __init__(self, tell: Callable[..., None], level: int) -> None:
        super().__init__(level)
        self._tell = tell
        self._logger = logging.getLogger("flinkray")
        self._level_before = self._logger.level
        self._propagates = self._logger.propagate

    def __enter__(self) -> None:
        self._level_before = self._logger.level
        self._propagates = self._logger.propagate
        self._logger.setLevel(min(self._logger.getEffectiveLevel(), self.level))
        self._logger.propagate = False
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagates
        self._logger.setLevel(self._level_before)

    def emit(self, record: logging.LogRecord) -> None:
        name = record.name.removeprefix("flinkray.")
        self._tell("%s %s: %s", record.levelname.lower(), name, record.getMessage())
