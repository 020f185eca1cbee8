"""What needs a library that is not installed names the extra that brings it."""

from __future__ import annotations

import importlib.util
import sys

import pytest


def import_anew(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("flinkray.streaming.kafka.client", "confluent_kafka", "kafka"),
        ("flinkray.datastream.connectors.postgresql", "psycopg", "postgresql"),
    ],
)
def test_error_for_a_missing_library_names_the_extra_of_flinkray_to_install(
    module: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not there
    with pytest.raises(ImportError, match=rf"pip install 'flinkray\[{extra}\]'"):
        import_anew(module)
