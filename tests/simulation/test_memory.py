"""Runs leave nothing behind in the process that made them."""

from __future__ import annotations

import gc
from weakref import ref

from flinkray.core.resources import ResourceProfile
from flinkray.rpc import LocalNetwork
from flinkray.testing.local_workers import LocalWorkers
from flinkray.testing.simulation import Simulation
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


def test_a_simulation_that_is_over_can_be_collected() -> None:
    runs = [run_whole_cluster(1), run_registration(1)]
    gc.collect()
    assert [run() for run in runs] == [None, None]


def test_the_workers_of_a_local_network_go_with_it() -> None:
    def make() -> ref[LocalNetwork]:
        network = LocalNetwork()
        assert LocalWorkers.of(LocalWorkers(network, ResourceProfile(1)).network).nodes
        return ref(network)

    network = make()
    gc.collect()
    assert network() is None
