"""Worker groups, TaskExecutors and slots of jobs, with real TaskExecutors on a local network."""

from __future__ import annotations

from flinkray.core.resources import ResourceProfile
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import ONE_CPU, ResourceCluster

TWO_CPUS = ResourceProfile(2.0, 4 * 2**30)


@on_virtual_time
async def test_a_job_gets_exactly_the_bundles_of_a_group_of_its_own(tmp_path):
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(2)
    await job.has_slots(2)
    [group] = cluster.workers.created_groups
    assert group.job_id == job.job_id
    assert group.bundles == (ONE_CPU, ONE_CPU)
    locations = [location for _, location in job.master.calls_of("register_task_executor")]
    assert sorted(location.bundle_index for location in locations) == [0, 1]
    assert {location.worker_group for location in locations} == {group.group_id}
    assert len(cluster.workers.starts) == 2
