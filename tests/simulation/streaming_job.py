"""A streaming job that is exactly once, while everything goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import Simulation
from tests.simulation.external_system import ExternalSystem
from tests.simulation.streaming_program import Program, job_graph
from tests.simulation.whole_cluster import BRIEF_FAULTS, CONFIGURATION, NODE

FAULTS = replace(BRIEF_FAULTS, closed=())


@dataclass
class StreamingJob:
    simulation: Simulation

    def program(self) -> Program:
        random = self.simulation.random
        return Program(
            random.randint(1, 2),
            random.randint(1, 2),
            random.randint(4, 8),
            random.randint(6, 15),
            0.2,
            {
                "execution.checkpointing.interval": f"{random.choice((200, 500, 1000))} ms",
                "execution.checkpointing.timeout": "5 s",
                "execution.checkpointing.tolerable-failed-checkpoints": "1000000",
                "execution.checkpointing.data-inline-threshold": "0",
                "execution.checkpointing.dir": "simulated://shared/checkpoints",
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "100000",
                "restart-strategy.fixed-delay.delay": "100 ms",
            },
        )

    async def run(self) -> None:
        simulation = self.simulation
        program = self.program()
        external = ExternalSystem(simulation, is_exactly_once=True)
        simulation.belongings[ExternalSystem] = external
        nodes = [NODE] * len(simulation.nodes)
        self.cluster = SimulatedCluster(simulation, *nodes, configuration=CONFIGURATION)
        await self.cluster.start()
        job = job_graph(program)
        await self.cluster.submit(job)
        result = await self.cluster.result(job.job_id)
        assert result.status.name == "FINISHED", result
        missing = program.all_records - set(external.committed)
        assert not missing, missing
