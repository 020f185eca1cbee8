"""Which kernels a process uses."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flinkray.kernels import compiled

pytestmark = pytest.mark.skipif(compiled.native is None, reason="looks at the compiled module")


def test_module_that_was_built_from_other_sources_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rows.c").write_text("other sources", "utf-8")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    with caplog.at_level(logging.WARNING):
        module, reason = compiled._load()
    assert module is None
    assert reason is not None
    assert "built from other sources" in reason
    assert "more slowly" in caplog.text


def test_unknown_value_of_the_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.SWITCH, "no")
    with pytest.raises(ValueError, match="set it to on or off"):
        compiled._load()
