"""Doors of packages whose names are loaded when they are used."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import flinkray
import flinkray.core
import flinkray.state
import flinkray.streaming.network
import flinkray.testing
from flinkray.core.ids import JobID
from flinkray.core.lazy_door import lazy_door


@pytest.mark.parametrize(
    "package",
    [flinkray, flinkray.errors, flinkray.state, flinkray.streaming.network, flinkray.testing],
)
def test_every_name_that_a_package_exports_can_be_imported(package: ModuleType) -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_lazily_imported_name_is_cached_and_unknown_name_is_refused() -> None:
    load = lazy_door("flinkray.core", {"JobID": "ids"})
    assert load("JobID") is JobID
    assert vars(flinkray.core).pop("JobID") is JobID
    with pytest.raises(AttributeError, match=r"module 'flinkray\.core' has no attribute 'JobId'"):
        load("JobId")


def test_importing_a_package_does_not_import_its_modules() -> None:
    code = (
        "import sys, flinkray.state; flinkray.errors.FlinkRayError; "
        "print({'flinkray.state.heap', 'flinkray.client', 'flinkray.datastream', 'ray', 'pyarrow'}"
        " & sys.modules.keys() or False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
