"""Runs leave nothing behind in the process that made them."""

from __future__ import annotations

import gc
from weakref import ref

from flinkray.core.resources import ResourceProfile
from flinkray.local_cluster.local_cluster import LocalWorkers
from flinkray.rpc import LocalNetwork
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.dead_processes import collected_after_each
from tests.simulation import streaming_job
from tests.simulation.registration_and_fencing import registration_and_fencing
from tests.simulation.whole_cluster import FAULTS, WholeCluster


def run_whole_cluster(seed: int) -> ref[Simulation]:
    simulation = Simulation(seed, nodes=3, faults=FAULTS)
    simulation.run(WholeCluster(simulation).run())
    return ref(simulation)


def run_registration(seed: int) -> ref[Simulation]:
    simulation = Simulation(seed)
    simulation.run(registration_and_fencing(simulation))
    return ref(simulation)


def run_streaming_job(seed: int) -> ref[Simulation]:
    simulation = Simulation(seed, nodes=2, faults=streaming_job.FAULTS)
    simulation.run(streaming_job.StreamingJob(simulation).run())
    return ref(simulation)


def test_finished_simulation_is_garbage_collected() -> None:
    # of the streaming job's runs the one with seed 0 has used its disk by Arrow
    runs = [run_whole_cluster(1), run_registration(1), run_streaming_job(0)]
    gc.collect()
    assert [run() for run in runs] == [None, None, None]


def test_garbage_collection_between_runs_examines_only_the_last_run() -> None:
    was_enabled = gc.isenabled()
    with collected_after_each() as collect:
        known = len(gc.get_objects())
        run = run_registration(1)
        assert not gc.isenabled()
        assert run() is not None
        collect()
        assert run() is None
        assert known < gc.get_freeze_count() / 10
    assert gc.isenabled() is was_enabled
    assert gc.get_freeze_count() == 0


def test_workers_of_a_local_network_are_garbage_collected_with_the_network() -> None:
    def make() -> ref[LocalNetwork]:
        network = LocalNetwork()
        assert LocalWorkers.of(LocalWorkers(network, ResourceProfile(1)).network).nodes
        return ref(network)

    network = make()
    gc.collect()
    assert network() is None
