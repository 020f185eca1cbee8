"""Wheel, sdist and editable install hold `flinkray` whole, and nothing beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LOOK_FROM_OUTSIDE = """
import importlib, importlib.util, json, site, sys
site.addsitedir(sys.argv[1])
sys.path.append(sys.argv[2])
modules = [importlib.import_module(name) for name in sys.argv[3:]]
bare = [n for n in ("actors", "scheduler", "core", "rpc") if importlib.util.find_spec(n)]
print(json.dumps({"files": [module.__file__ for module in modules], "bare": bare}))
"""


@dataclass(frozen=True)
class Built:
    source: Path
    wheel: Path
    sdist: Path


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A wheel, made from the sdist, made from a copy of the tree: what a release holds."""
    place = tmp_path_factory.mktemp("packaging")
    source = place / "source"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist", cwd=source)
    (wheel,) = (place / "dist").glob("*.whl")
    (sdist,) = (place / "dist").glob("*.tar.gz")
    return Built(source, wheel, sdist)


def modules_of(source: Path) -> set[str]:
    """Every Python file below flinkray, named as in an archive: a link counts as a folder."""
    return {
        str((Path(folder) / name).relative_to(source))
        for folder, _, names in os.walk(source / "flinkray", followlinks=True)
        for name in names
        if name.endswith(".py")
    }


def look_from_outside(place: Path, *modules: str) -> tuple[list[Path], list[str]]:
    """Import *modules* in a new interpreter that knows *place* and the dependencies only.

    Returns:
        The files they came from, and which bare names could be imported too.
    """
    purelib = sysconfig.get_path("purelib")  # as a plain folder: its own .pth files do not count
    command = [sys.executable, "-I", "-S", "-c", LOOK_FROM_OUTSIDE, str(place), purelib]
    looked = json.loads(run(*command, *modules, cwd=place))
    return [Path(file) for file in looked["files"]], looked["bare"]


def test_wheel_contains_every_module_and_only_the_package(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    packaged = {name for name in names if name.endswith(".py")}
    assert packaged == modules_of(built.source)
    assert {
        "flinkray/actors/dispatcher/endpoint.py",
        "flinkray/scheduler/shared/slots.py",
    } <= packaged
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.startswith("flinkray-")} == {"flinkray"}


def test_wheel_contains_web_page_shared_files_type_marker_and_license(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    assert "flinkray/py.typed" in names
    page = {f"flinkray/rest/web/{it.name}" for it in (ROOT / "flinkray/rest/web").iterdir()}
    assert page
    assert page <= set(names)
    for shared in ("cluster.yaml", "grafana-dashboard.json", "prometheus-alerts.yml"):
        assert [name for name in names if name.endswith(f"data/share/flinkray/{shared}")]
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]


def test_sdist_contains_real_folders_and_no_top_level_actors_or_scheduler(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        members = {m.name.split("/", 1)[1]: m for m in archive.getmembers() if "/" in m.name}
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert members["flinkray/actors"].isdir()
    assert members["flinkray/scheduler"].isdir()
    assert modules_of(built.source) <= members.keys()
    assert not {"actors", "scheduler"} & {name.split("/")[0] for name in members}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "cluster.yaml"} <= members.keys()


def test_installed_wheel_imports_and_its_command_exists(built: Built, tmp_path: Path) -> None:
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
        *("--target", tmp_path, built.wheel),
        cwd=tmp_path,
    )
    modules = ("flinkray", "flinkray.actors.gateways", "flinkray.scheduler.shared.slots")
    files, bare = look_from_outside(tmp_path, *modules, "flinkray.client.cli")
    assert all(file.is_relative_to(tmp_path / "flinkray") for file in files)
    assert bare == []
    assert (tmp_path / "bin" / "flinkray").is_file()
    assert (tmp_path / "share" / "flinkray" / "cluster.yaml").is_file()


def test_wheel_holds_compiled_kernels_for_every_python_from_3_11_on(built: Built) -> None:
    kernels = [name for name in zipfile.ZipFile(built.wheel).namelist() if name.endswith(".so")]
    if sys.version_info < (3, 11):
        assert len(kernels) == 1
        return
    assert kernels == ["flinkray/kernels/_native.abi3.so"]
    assert "-cp311-abi3-linux" in built.wheel.name


def test_package_without_a_compiler_is_built_and_says_so_once(built: Built, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    source = tmp_path / built.sdist.name.removesuffix(".tar.gz")
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    environment = os.environ | {"CC": "no-such-compiler"}
    done = subprocess.run(build, cwd=source, env=environment, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    look = "import flinkray.kernels.compiled as c, flinkray.datastream.arrays; print(c.native)"
    python_path = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    looked = subprocess.run(
        [sys.executable, "-c", look],
        cwd=tmp_path,
        env=python_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert looked.stdout == "None\n", looked.stderr
    assert looked.stderr.count("flinkray works without compiled kernels") == 1


def test_editable_install_maps_only_the_name_flinkray(built: Built, tmp_path: Path) -> None:
    hook = (
        "import sys; from setuptools import build_meta as b; print(b.build_editable(sys.argv[1]))"
    )
    wheel = run(sys.executable, "-c", hook, tmp_path, cwd=built.source).splitlines()[-1]
    place = tmp_path / "site"
    zipfile.ZipFile(tmp_path / wheel).extractall(place)
    modules = ("flinkray", "flinkray.actors.gateways", "flinkray.scheduler.shared.slots")
    files, bare = look_from_outside(place, *modules)
    assert all(file.is_relative_to(built.source / "flinkray") for file in files)
    assert bare == []
