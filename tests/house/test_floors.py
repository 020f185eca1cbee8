"""Inside a package folders import each other one way, and only by their doors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.floors import FLOORS, PROCESSES, check_floors

ROOT = Path(__file__).parents[2]

DOORS = {
    "flinkray/actors/gateways/__init__.py": "__all__ = ['messages']",
    "flinkray/actors/dispatcher/__init__.py": "__all__ = ['endpoint']",
    "flinkray/actors/job_master/__init__.py": "__all__ = ['endpoint']",
    "flinkray/scheduler/shared/__init__.py": "__all__ = ['slots']",
    "flinkray/scheduler/slots/__init__.py": "__all__ = ['slot_pool']",
    "flinkray/scheduler/resources/__init__.py": "__all__ = ['slot_manager']",
    "flinkray/rpc/wire/__init__.py": "__all__ = ['codec']",
    "flinkray/rpc/calls/__init__.py": "__all__ = ['proxy']",
}
MODULES = {
    "flinkray/actors/gateways/messages.py": "",
    "flinkray/actors/dispatcher/endpoint.py": (
        "from flinkray.actors.gateways import messages\n"
        "from flinkray.actors.dispatcher.managed_job import ManagedJob\n"
        "JOB_MASTER = 'flinkray.actors.job_master.endpoint:create_job_master'"
    ),
    "flinkray/actors/dispatcher/managed_job.py": "",
    "flinkray/actors/job_master/endpoint.py": "from flinkray.scheduler.slots.slot_pool import Pool",
    "flinkray/scheduler/shared/slots.py": "",
    "flinkray/scheduler/slots/slot_pool.py": "import flinkray.scheduler.slots.pooled_slots",
    "flinkray/scheduler/slots/pooled_slots.py": "from flinkray.scheduler.shared.slots import Slot",
    "flinkray/scheduler/resources/slot_manager.py": "from flinkray.scheduler.shared import slots",
    "flinkray/rpc/__init__.py": "from flinkray.rpc.service import RpcService",
    "flinkray/rpc/service.py": "from flinkray.rpc.calls import proxy",
    "flinkray/rpc/wire/codec.py": "",
    "flinkray/rpc/calls/proxy.py": "from flinkray.rpc.wire import codec",
    "flinkray/testing/looks_inside.py": "import flinkray.scheduler.slots.pooled_slots",
}


def rules(root: Path, changed: dict[str, str] | None = None) -> list[str]:
    for name, text in {**DOORS, **MODULES, **(changed or {})}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [violation.rule for violation in check_floors(root)]


def test_no_folder_of_actors_or_scheduler_breaks_a_layer_rule() -> None:
    assert [str(violation) for violation in check_floors(ROOT)] == []


@pytest.mark.parametrize("package", ["actors", "scheduler"])
def test_test_folders_have_the_names_of_folders_of_the_package(package: str) -> None:
    def folders(path: Path) -> set[str]:
        return {folder.parent.name for folder in path.glob("*/*.py")}

    of_tests = folders(ROOT / "tests" / package)
    assert of_tests
    assert of_tests <= folders(ROOT / package)


def test_layer_check_of_folders_accepts_folders_that_keep_the_rules(tmp_path: Path) -> None:
    assert rules(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        pytest.param(
            "flinkray/scheduler/slots/pooled_slots.py",
            "def f():\n    import flinkray.scheduler.slots.slot_pool",
            "modules import each other: flinkray.scheduler.slots.pooled_slots, "
            "flinkray.scheduler.slots.slot_pool",
            id="a circle of modules, inside a function",
        ),
        pytest.param(
            "flinkray/scheduler/slots/pooled_slots.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    from flinkray.scheduler.job.job_scheduler import JobScheduler",
            "flinkray.scheduler.slots imports job, which is not on a lower floor",
            id="an arrow that runs up, for type checkers",
        ),
        pytest.param(
            "flinkray/rpc/wire/other.py",
            "import flinkray.rpc.calls.proxy",
            "folders import each other: flinkray.rpc.calls, flinkray.rpc.wire",
            id="a circle of folders, of other modules",
        ),
        pytest.param(
            "flinkray/rpc/calls/other.py",
            "from flinkray.rpc.service import RpcService",
            "folders import each other: flinkray.rpc.calls, flinkray.rpc.service",
            id="a circle of a folder and a module beside it",
        ),
        pytest.param(
            "flinkray/scheduler/shared/slots.py",
            "from flinkray.scheduler.resources import slot_manager",
            "flinkray.scheduler.shared imports resources, which is not on a lower floor",
            id="an arrow that runs up",
        ),
        pytest.param(
            "flinkray/scheduler/resources/slot_manager.py",
            "from flinkray.scheduler.slots.slot_pool import SlotPool",
            "flinkray.scheduler.resources imports slots, which is not on a lower floor",
            id="an arrow on one floor",
        ),
        pytest.param(
            "flinkray/scheduler/attic/a.py",
            "from flinkray.scheduler.shared.slots import Slot",
            "flinkray.scheduler.attic is on no floor: add it to FLOORS in tests/house",
            id="a folder on no floor",
        ),
        pytest.param(
            "flinkray/actors/job_master/endpoint.py",
            "from flinkray.actors.dispatcher.endpoint import Dispatcher",
            "the process job_master imports flinkray.actors.dispatcher.endpoint, "
            "which is the process dispatcher's own",
            id="a process that imports another one, by its door",
        ),
        pytest.param(
            "flinkray/actors/job_master/endpoint.py",
            "from flinkray.scheduler.slots.pooled_slots import PooledSlots",
            "flinkray.actors.job_master.endpoint imports flinkray.scheduler.slots.pooled_slots, "
            "which is no door of flinkray.scheduler.slots",
            id="what is inside a folder of another package",
        ),
        pytest.param(
            "flinkray/client/cluster.py",
            "DISPATCHER = 'flinkray.actors.dispatcher.managed_job:create'",
            "flinkray.client.cluster imports flinkray.actors.dispatcher.managed_job, "
            "which is no door of flinkray.actors.dispatcher",
            id="what is inside a folder, by name",
        ),
        pytest.param(
            "flinkray/scheduler/slots/__init__.py",
            "",
            "flinkray.scheduler.slots names no doors in __all__",
            id="a folder without doors",
        ),
    ],
)
def test_layer_check_of_folders_finds_and_names_each_planted_violation(
    tmp_path: Path, path: str, source: str, rule: str
) -> None:
    assert rule in rules(tmp_path, {path: source})


def test_each_folder_of_actors_and_scheduler_is_in_one_layer() -> None:
    for package, floors in FLOORS.items():
        folders = sorted(folder for floor in floors for folder in floor)
        there = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert folders == sorted(there)


def test_folder_of_each_process_in_actors_has_an_endpoint_module() -> None:
    for process in PROCESSES:
        assert (ROOT / "actors" / process / "endpoint.py").is_file()
