"""The manifests for KubeRay are what its CRDs ask for, and say the same of what they share."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from flinkray.client.cli import cli
from flinkray.core.config import ReadableConfig
from tests.launch.containerfile import arguments

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "launch" / "kuberay").glob("*.yaml"))
SCHEMAS = json.loads((Path(__file__).parent / "kuberay_schemas.json").read_text("utf-8"))


def objects(file: Path) -> list[dict[str, Any]]:
    return [it for it in yaml.safe_load_all(file.read_text("utf-8")) if it is not None]


def of_kuberay() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in FILES:
        for it in objects(file):
            if it["apiVersion"].startswith("ray.io/"):
                yield f"{file.name}: {it['kind']} {it['metadata']['name']}", it


OBJECTS = dict(of_kuberay())


@cache
def of_kind(kind: str) -> jsonschema.Draft202012Validator:
    schema = {**SCHEMAS["specs"][kind], "$defs": SCHEMAS["$defs"]}
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check(manifest: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError."""
    assert manifest["apiVersion"] == SCHEMAS["apiVersion"]
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    of_kind(manifest["kind"]).validate(manifest["spec"])


def cluster_specs() -> Iterator[dict[str, Any]]:
    for it in OBJECTS.values():
        if it["kind"] == "RayCluster":
            yield it["spec"]
        elif "rayClusterSpec" in it["spec"]:
            yield it["spec"]["rayClusterSpec"]


@pytest.mark.parametrize("name", OBJECTS)
def test_kuberay_manifest_is_valid_by_its_schema(name: str) -> None:
    check(OBJECTS[name])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("headGroupSpec", "template", "spec", "containers", 0, "imagePullPolice"), "Always"),
        (("workerGroupSpecs", 0, "template", "spec", "containers", 0, "env"), {"A": "b"}),
        (("workerGroupSpecs", 0, "template", "spec", "containers", 0, "resources"), {"limit": {}}),
        (("workerGroupSpecs", 0, "minReplicas"), "2"),
        (("authOptions", "mode"), "tokens"),
        (("gcsFaultToleranceOption",), {}),
    ],
)
def test_mistake_in_a_kuberay_manifest_is_found_by_the_schema(
    path: tuple[str | int, ...], value: object
) -> None:
    (manifest,) = (it for name, it in of_kuberay() if name.startswith("cluster.yaml: RayCluster"))
    part = manifest["spec"]
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        check(manifest)


def test_kuberay_files_have_clusters_and_jobs_with_and_without_standby_masters() -> None:
    assert list(OBJECTS) == [
        "cluster.yaml: RayCluster flinkray",
        "cluster.yaml: RayJob flinkray-up",
        "job.yaml: RayJob flinkray-program",
        "standby-masters.yaml: RayCluster flinkray",
        "standby-masters.yaml: RayJob flinkray-up",
    ]


def test_kuberay_nodes_have_one_image_and_its_ray_version() -> None:
    containers = [
        group["template"]["spec"]["containers"]
        for spec in cluster_specs()
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    ]
    assert len(containers) == 6
    assert len({container["image"] for (container,) in containers}) == 1
    assert {spec["rayVersion"] for spec in cluster_specs()} == {arguments()["RAY_VERSION"]}


def test_image_in_kuberay_files_has_the_version_of_flinkray() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (version,) = re.findall(r'^version = "(.*)"$', project, re.M)
    text = "".join(file.read_text("utf-8") for file in FILES)
    assert set(re.findall(r"image: .*flinkray:(\S+)", text)) == {version}


@pytest.mark.parametrize("name", [name for name in OBJECTS if "RayJob" in name])
def test_entry_point_of_a_ray_job_has_only_existing_commands_and_options(name: str) -> None:
    """Also inside the line of a shell into which KubeRay pastes it."""
    words = shlex.split(OBJECTS[name]["spec"]["entrypoint"])
    if words[:2] == ["bash", "-c"]:
        words = shlex.split(words[2])
    lines: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            lines.append([])
        else:
            lines[-1].append(word)
    for program, *line in lines:
        assert program == "flinkray"
        command: click.Command = cli
        while isinstance(command, click.Group):
            _, found, line = command.resolve_command(click.Context(command), line)
            assert found is not None
            command = found
        given = command.make_context("flinkray", list(line)).params
        ReadableConfig(dict(given["values"]))  # refuses what there is not
        assert given["address"] == "auto"


def test_ray_jobs_select_the_cluster_of_their_file_and_their_secrets_exist() -> None:
    for name in ("cluster.yaml", "standby-masters.yaml"):
        cluster, job = (it for key, it in OBJECTS.items() if key.startswith(name))
        selected = job["spec"]["clusterSelector"]["ray.io/cluster"]
        assert selected == cluster["metadata"]["name"]
    (secret,) = objects(ROOT / "launch" / "kuberay" / "storage.yaml")
    used = {
        source["secretRef"]["name"]
        for spec in cluster_specs()
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
        for source in group["template"]["spec"]["containers"][0]["envFrom"]
    }
    assert used == {secret["metadata"]["name"]}
