"""Runs the fast tests with every supported Python, and with the oldest and newest Ray.

Each row of the matrix has an environment of its own, into which the built wheel is installed: what
a test starts in another folder is that wheel. Python 3.10 gets the sdist, as the wheel's kernels
need 3.11. An environment is made anew in each run. A Python that is not on this machine, and that
uv cannot bring either, is left out, and the end says so.

    python -m tools.test_matrix [ROW ...] [-- PYTEST_ARGUMENT ...]
"""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".venv-matrix"

TESTS = ("core", "state", "checkpoint", "client", "file_results", "scheduler", "streaming")
LEFT_OUT = "ray or own_ray or spark or kill or ray_up or slow or simulation"
ON_RAY = (
    "tests/examples/test_readme_programs.py::test_stream_program_of_the_readme_counts_all_readings"
)
"""A program in a folder of its own, on a Ray of its own: it uses the wheel."""


@dataclass(frozen=True)
class Row:
    name: str
    python: str
    oldest: bool = False
    """With each dependency as old as pyproject.toml allows; otherwise the newest."""


ROWS = (
    Row("3.10-oldest", "3.10", oldest=True),
    Row("3.11", "3.11"),
    Row("3.12", "3.12"),
    Row("3.13", "3.13"),
)


def oldest(requirements: Iterable[str]) -> Iterator[str]:
    """Constraints that make pip take the lowest version of each requirement that has one."""
    for text in requirements:
        requirement = Requirement(text)
        for specifier in requirement.specifier:
            if specifier.operator == ">=":
                yield f"{requirement.name}=={specifier.version}"


def dependencies(wheel: Path) -> list[str]:
    """Those that it has without any extra."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
    required = metadata.get_all("Requires-Dist", [])
    return [text for text in required if Requirement(text).marker is None]


def find_python(version: str) -> Path | None:
    """One on the PATH or of pyenv that starts, as shims for versions that are not active do not."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    folders += sorted(pyenv.glob(f"versions/{version}.*/bin"), reverse=True)
    for folder in folders:
        python = folder / name
        if python.is_file() and run(python, "-c", "import venv, ssl", quiet=True):
            return python
    return None


def run(*command: str | Path, quiet: bool = False, cwd: Path = ROOT) -> bool:
    """Whether it has succeeded."""
    output = subprocess.DEVNULL if quiet else None
    done = subprocess.run([str(part) for part in command], cwd=cwd, stdout=output, stderr=output)
    return done.returncode == 0


def uv() -> tuple[str, ...]:
    found = shutil.which("uv")
    return (found,) if found else (sys.executable, "-m", "uv")


def build() -> tuple[Path, Path]:
    """Build the wheel and the sdist."""
    shutil.rmtree(PLACE / "dist", ignore_errors=True)
    command = (sys.executable, "-m", "build", "--no-isolation")
    if not run(*command, "--outdir", PLACE / "dist", ROOT, quiet=True):
        raise SystemExit("the wheel cannot be built: run python -m build --no-isolation")
    (wheel,) = (PLACE / "dist").glob("*.whl")
    (sdist,) = (PLACE / "dist").glob("*.tar.gz")
    return wheel, sdist


def make_environment(row: Row, wheel: Path, sdist: Path) -> bool | None:
    """Whether all could be installed; None where there is no such Python."""
    place = PLACE / row.name
    python = find_python(row.python) or row.python
    if not run(*uv(), "venv", "--quiet", "--clear", "--python", python, place):
        return None
    install: list[str | Path] = [
        *uv(),
        "pip",
        "install",
        "--quiet",
        "--python",
        place / "bin" / "python",
    ]
    if row.oldest:
        constraints = place / "oldest.txt"
        constraints.write_text("\n".join(oldest(dependencies(wheel))) + "\n", "utf-8")
        install += ["--constraint", constraints]
    package = sdist if row.python == "3.10" else wheel
    return run(*install, f"flinkray[test] @ {package.as_uri()}")


def tests_pass(row: Row, arguments: Sequence[str]) -> bool:
    pytest = (PLACE / row.name / "bin" / "python", "-m", "pytest", "--quiet", "-p", "no:xdist")
    smoke = run(*pytest, ON_RAY)
    return run(*pytest, "-m", f"not ({LEFT_OUT})", *arguments or chosen()) and smoke


def chosen() -> list[str]:
    return [f"tests/{folder}" for folder in TESTS]


def main(arguments: Sequence[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    names, pytest_arguments = arguments[:at], arguments[at + 1 :]
    unknown = set(names) - {row.name for row in ROWS}
    if unknown:
        rows = ", ".join(row.name for row in ROWS)
        print(f"no row of the matrix: {', '.join(sorted(unknown))}; there are {rows}")
        return 2
    wheel, sdist = build()
    results: dict[str, str] = {}
    for row in ROWS:
        if names and row.name not in names:
            continue
        print(f"== {row.name}", flush=True)
        made = make_environment(row, wheel, sdist)
        if made is None:
            results[row.name] = f"left out: no Python {row.python} here, and uv brings none"
        elif not made:
            results[row.name] = "failed: its packages cannot be installed"
        else:
            results[row.name] = "passed" if tests_pass(row, pytest_arguments) else "failed"
    for name, result in results.items():
        print(f"{name}: {result}")
    failed = any(result.startswith("failed") for result in results.values())
    return 1 if failed or "passed" not in results.values() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
