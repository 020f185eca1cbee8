"""The files for `ray up` are what Ray takes, and differ in machines and log-in only."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = ["cluster.yaml", "launch/aws.yaml", "launch/gcp.yaml"]
SOURCE = "~/flinkray-node/source/"
"""Where nodes have what they install flinkray from."""
MACHINES = {
    "provider",
    "auth",
    "available_node_types",
    "head_node_type",
    "max_workers",
    "idle_timeout_minutes",
}


def content(file: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / file).read_text("utf-8"))
    return loaded


@pytest.mark.parametrize("file", FILES)
def test_cluster_file_is_valid_by_rays_schema(file: str) -> None:
    schema = json.loads(files("ray.autoscaler").joinpath("ray-schema.json").read_text("utf-8"))
    jsonschema.validate(content(file), schema)


@pytest.mark.parametrize("file", FILES[1:])
def test_head_node_type_of_a_cluster_file_is_one_of_its_node_types(file: str) -> None:
    assert content(file)["head_node_type"] in content(file)["available_node_types"]


@pytest.mark.parametrize("file", FILES[1:])
def test_cloud_cluster_files_run_the_commands_of_the_tested_cluster_file(file: str) -> None:
    """Except for commands before them that prepare the machine. The tested file is run from `ray
    up` to `ray down`."""
    here, tested = content(file), content("cluster.yaml")
    count = len(tested["setup_commands"])
    assert here.pop("setup_commands")[-count:] == tested.pop("setup_commands")
    rest = {key: value for key, value in here.items() if key not in MACHINES}
    assert rest == {key: value for key, value in tested.items() if key not in MACHINES}


@pytest.mark.parametrize("file", FILES)
def test_files_that_a_cluster_file_mounts_on_nodes_exist(file: str) -> None:
    mounted = [local for local in content(file)["file_mounts"].values() if local[0] != "~"]
    assert [local for local in mounted if not (ROOT / local).exists()] == []


def test_files_mounted_on_nodes_suffice_to_build_the_wheel(tmp_path: Path) -> None:
    """Otherwise no node can be set up."""
    source = tmp_path / "source"
    source.mkdir()
    for there, local in content("cluster.yaml")["file_mounts"].items():
        if not there.startswith(SOURCE):
            continue
        place = source / there.removeprefix(SOURCE)
        if (ROOT / local).is_dir():
            left_out = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / local, place, symlinks=True, ignore=left_out)
        else:
            shutil.copy(ROOT / local, place)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, f"{built.stdout}\n{built.stderr}"
    (wheel,) = (source / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    beside = {name.rpartition("/")[2] for name in names if "share/flinkray/" in name}
    assert beside == {"cluster.yaml", "grafana-dashboard.json", "prometheus-alerts.yml"}
    assert "flinkray/actors/dispatcher/endpoint.py" in names
