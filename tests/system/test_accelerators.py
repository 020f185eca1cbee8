"""Slots with accelerators: which tasks and processes get which devices. Ray is told of devices that
the machine does not have, so nothing computes with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray

from flinkray.client import ClusterClient
from flinkray.core.errors import JobExecutionError
from flinkray.datastream import (
    Configuration,
    MapFunction,
    RuntimeContext,
    SlotSharingGroup,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.testing.waiting import wait_until

pytestmark = pytest.mark.ray

DEVICES = 4
"""Number of devices that the tests' Ray pretends to have."""


def group(gpu: float, name: str = "models") -> SlotSharingGroup:
    builder = SlotSharingGroup.builder(name).set_cpu_cores(0.25).set_task_heap_memory_mb(200)
    return builder.set_external_resource("GPU", gpu).build()


def environment(cluster: ClusterClient, **settings: str) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    return env.configure(Configuration.from_dict(settings)).set_parallelism(1)


class Devices(MapFunction[int, str]):
    """Returns its subtask and what variables, Ray and the runtime context say of its devices. Ends
    its process once for each file of *ends* that is not there."""

    def __init__(self, ends: Path | None = None) -> None:
        self._ends = ends

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()
        infos = runtime_context.get_external_resource_infos("gpu")
        self._infos = sorted(str(info.get_property("index")) for info in infos)

    def map(self, value: int) -> str:
        if self._ends is not None and not self._ends.exists():
            self._ends.touch()
            os._exit(1)
        of_ray = sorted(map(str, ray.get_gpu_ids()))
        accelerators = sorted(ray.get_runtime_context().get_accelerator_ids()["GPU"])
        assert of_ray == accelerators == self._infos
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        assert sorted(filter(None, visible.split(","))) == of_ray
        return f"{self._subtask} {','.join(of_ray)}"


def devices(
    env: StreamExecutionEnvironment, slots: SlotSharingGroup, parallelism: int, *path: Path
) -> dict[int, list[str]]:
    """Subtask -> ids of its devices, as its process knows them."""
    numbers = env.from_collection(list(range(100)), Types.LONG())
    mapped = numbers.map(Devices(*path), Types.STRING()).set_parallelism(parallelism)
    seen = set(mapped.slot_sharing_group(slots).execute_and_collect("devices"))
    assert len(seen) == parallelism
    return {int(line.split()[0]): line.split()[1].split(",") for line in seen}


def test_each_slot_gets_whole_devices_that_no_other_slot_has(cluster: ClusterClient) -> None:
    found = devices(environment(cluster), group(2), 2)
    used = [device for of_slot in found.values() for device in of_slot]
    assert sorted(map(len, found.values())) == [2, 2]
    assert len(set(used)) == 4


def test_slots_with_half_a_device_share_devices_two_by_two(cluster: ClusterClient) -> None:
    found = devices(environment(cluster), group(0.5, "halves"), 4)
    assert sorted(map(len, found.values())) == [1] * 4
    counts = [list(found.values()).count(of_slot) for of_slot in found.values()]
    assert max(counts) <= 2


def test_process_started_again_has_the_devices_of_its_slot(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    settings = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "3",
        "restart-strategy.fixed-delay.delay": "100 ms",
    }
    found = devices(environment(cluster, **settings), group(DEVICES), 1, tmp_path / "has ended")
    assert (tmp_path / "has ended").exists()
    assert len(found[0]) == DEVICES


def test_tasks_without_devices_in_their_group_see_none(cluster: ClusterClient) -> None:
    numbers = environment(cluster).from_collection([1], Types.LONG())
    plain = SlotSharingGroup.builder("plain").set_cpu_cores(0.25).set_task_heap_memory_mb(200)
    seen = numbers.map(Devices(), Types.STRING()).slot_sharing_group(plain.build())
    assert list(seen.execute_and_collect("none")) == ["0 "]


def test_job_that_waits_for_devices_says_that_no_node_has_one_free(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        env.from_sequence(0, 10**12).slot_sharing_group(group(DEVICES)).print()

    env = environment(cluster)
    program(env)
    first = env.execute_async("holds all devices")
    wait_until(lambda: first.get_job_status().result(60).name == "RUNNING", 60, "the first job")
    env = environment(cluster)
    program(env)
    second = env.execute_async("waits for devices")

    def reasons() -> str:
        return cluster.job(second.get_job_id()).details().pending_reason or ""

    wait_until(lambda: f"No node has {DEVICES} GPU free" in reasons(), 60, "the explanation")
    first.cancel().result(60)
    wait_until(lambda: not reasons(), 60, "the devices that the first job had")
    second.cancel().result(60)


def test_job_that_asks_for_more_devices_than_a_node_has_fails_with_the_reason(
    cluster: ClusterClient,
) -> None:
    numbers = environment(cluster).from_collection([1], Types.LONG())
    seen = numbers.map(Devices(), Types.STRING()).slot_sharing_group(group(DEVICES + 1))
    with pytest.raises(JobExecutionError, match=f"No node has more than {DEVICES} GPU"):
        list(seen.execute_and_collect("too many"))
