"""Packages import one way: datastream, client, rest -> actors -> ... -> core."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.import_arrows import LAYERS, check_shipped

ROOT = Path(__file__).parents[2]


def write_tree(root: Path, sources: dict[str, str]) -> Path:
    for name, text in sources.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def rules(root: Path) -> list[str]:
    return [violation.rule for violation in check_shipped(root)]


def test_shipped_packages_import_only_packages_of_lower_layers() -> None:
    assert [str(violation) for violation in check_shipped(ROOT)] == []


def test_import_check_follows_the_symbolic_links_to_actors_and_scheduler() -> None:
    """Otherwise the check would see two packages less, and pass."""
    for package in ("actors", "scheduler"):
        link = ROOT / "flinkray" / package
        assert (link / "__init__.py").is_file()
        assert link.resolve() == ROOT / package


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        (
            "flinkray/rpc/a.py",
            "import flinkray.actors.messages",
            "flinkray.rpc imports flinkray.actors, which is above it",
        ),
        (
            "flinkray/rpc/a.py",
            "from flinkray import client",
            "flinkray.rpc imports flinkray.client, which is above it",
        ),
        (
            "flinkray/rpc/a.py",
            "from ..scheduler import slots",
            "flinkray.rpc imports flinkray.scheduler, which is above it",
        ),
        (
            "flinkray/rpc/__init__.py",
            "from ..spark import gateway",
            "flinkray.rpc imports flinkray.spark, which is above it",
        ),
        (
            "flinkray/core/a.py",
            "def f():\n    from flinkray.ha.stores import Store",
            "flinkray.core imports flinkray.ha, which is above it",
        ),
        (
            "flinkray/spark/a.py",
            "FACTORY = 'flinkray.actors.job_master:create_job_master'",
            "flinkray.spark imports flinkray.actors, which is above it",
        ),
        (
            "flinkray/actors/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import flinkray.rest.app",
            "flinkray.actors imports flinkray.rest, which is above it",
        ),
        (
            "flinkray/scheduler/a.py",
            "import asyncio",
            "flinkray.scheduler is pure and imports asyncio",
        ),
        (
            "flinkray/core/a.py",
            "from time import monotonic",
            "flinkray.core is pure and imports time",
        ),
        (
            "flinkray/scheduler/a.py",
            "import ray.util",
            "flinkray.scheduler is pure and imports ray",
        ),
        (
            "flinkray/scheduler/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    from flinkray.spark.gateway import SparkDriverGateway",
            "flinkray.scheduler imports flinkray.spark, which is above it",
        ),
        (
            "flinkray/scheduler/a.py",
            "import datetime\nnow = datetime.datetime.now()",
            "a pure module calls datetime.now",
        ),
        (
            "flinkray/scheduler/a.py",
            "from flinkray.core.ids import AllocationID\nx = AllocationID.generate()",
            "a pure module calls AllocationID.generate without a source of randomness",
        ),
        (
            "flinkray/client/a.py",
            "from flinkray.testing import MiniCluster",
            "flinkray.client.a ships and imports flinkray.testing",
        ),
        (
            "flinkray/__init__.py",
            "import flinkray.testing",
            "flinkray ships and imports flinkray.testing",
        ),
        (
            "flinkray/gossip/a.py",
            "",
            "flinkray.gossip has no layer: add it to LAYERS in tests/house",
        ),
    ],
)
def test_import_check_finds_and_names_a_broken_rule(
    tmp_path: Path, path: str, source: str, rule: str
) -> None:
    assert rule in rules(write_tree(tmp_path, {path: source}))


def test_import_check_accepts_sources_that_keep_the_rules(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "flinkray/__init__.py": "from flinkray.client import connect",
            "flinkray/client/__init__.py": "from .cli import main\nimport flinkray.actors.gateways",
            "flinkray/client/cli.py": "import asyncio, time",
            "flinkray/actors/dispatcher.py": "from flinkray.scheduler import slots",
            "flinkray/scheduler/slots.py": "from flinkray.core.ids import JobID\nimport heapq",
            "flinkray/core/ids.py": "import os\nfrom . import message",
            "flinkray/core/message.py": "",
            "flinkray/testing/mini_cluster.py": "import flinkray.actors, flinkray.client, asyncio",
        },
    )
    assert rules(tmp_path) == []


def test_packages_of_one_layer_may_import_each_other_only_in_one_direction(tmp_path: Path) -> None:
    write_tree(tmp_path, {"flinkray/checkpoint/a.py": "import flinkray.state.b"})
    assert rules(tmp_path) == []
    write_tree(tmp_path, {"flinkray/state/b.py": "import flinkray.checkpoint.a"})
    assert rules(tmp_path) == [
        "flinkray.checkpoint and flinkray.state import each other",
        "flinkray.state and flinkray.checkpoint import each other",
    ]


def test_import_check_finds_a_forbidden_import_through_another_module(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "flinkray/scheduler/pool.py": "from flinkray.ha import stores",
            "flinkray/ha/stores.py": "import flinkray.ha.loop",
            "flinkray/ha/loop.py": "import asyncio",
        },
    )
    assert rules(tmp_path) == [
        "flinkray.scheduler.pool is pure and reaches asyncio through flinkray.ha.loop"
    ]


def test_each_package_is_in_one_layer_only() -> None:
    packages = [package for layer in LAYERS for package in layer]
    assert len(packages) == len(set(packages))
