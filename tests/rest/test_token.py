"""Where the token of the endpoint comes from, and who can read it."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from flinkray.client.cli import execute
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError
from flinkray.rest.server import RestSettings
from flinkray.rest.token import created_token, default_token_file, given_token, known_token
from tests.rest.http import TOKEN


@pytest.fixture
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def refused(values: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        RestSettings.of(ReadableConfig(values))
    return str(caught.value)


def private(path: Path, content: bytes | str) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_token_is_read_from_a_configured_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    of_file = {"rest.token-file": str(path)}
    assert "(rest.token-file) cannot be read" in refused(of_file)
    private(path, "too-short\n")
    assert f"{path} (rest.token-file) has no token" in refused(of_file)
    assert "too-short" not in refused(of_file)
    private(path, b"\xff" * 20)
    assert "(rest.token-file) cannot be read" in refused(of_file)
    private(path, "\n")
    assert "it is empty" in refused(of_file)
    private(path, f"{TOKEN}\n")
    assert RestSettings.of(ReadableConfig(of_file)).token == TOKEN
    assert "leave one out" in refused({**of_file, "rest.token": TOKEN})


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o620, 0o601, 0o644, 0o666])
def test_token_file_that_other_users_can_read_or_write_is_refused(
    mode: int, tmp_path: Path
) -> None:
    path = private(tmp_path / "token", TOKEN)
    path.chmod(mode)
    link = tmp_path / "link"
    link.symlink_to(path)
    for name in (path, link):
        text = refused({"rest.token-file": str(name)})
        assert f"mode {mode:04o}" in text
        assert f"chmod 600 {name}" in text
    path.chmod(0o400)
    assert given_token(ReadableConfig({"rest.token-file": str(link)})) == TOKEN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_token_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = private(tmp_path / "token", TOKEN)
    os.chown(path, 65534, 65534)
    assert "belongs to another user" in refused({"rest.token-file": str(path)})


def test_certificate_key_that_other_users_can_read_is_refused(tmp_path: Path) -> None:
    key = private(tmp_path / "key.pem", "a key")
    key.chmod(0o644)
    text = refused({"rest.ssl.key": str(key), "rest.ssl.certificate": str(key)})
    assert "rest.ssl.key" in text
    assert "mode 0644" in text


def test_created_token_is_kept_in_a_file_that_only_its_user_can_read(state_folder: Path) -> None:
    before = os.umask(0)
    try:
        token = created_token("mine")
    finally:
        os.umask(before)
    path = default_token_file("mine")
    assert path.is_relative_to(state_folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(token) >= 43
    assert created_token("mine") == known_token("mine") == token
    assert created_token("other") != token
    assert sorted(it.name for it in path.parent.iterdir()) == [
        "rest-mine.token",
        "rest-other.token",
    ]


def test_rest_endpoints_that_start_at_the_same_time_create_one_token(state_folder: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(created_token, ["one"] * 32))
    assert len(tokens) == 1


def test_created_token_file_that_other_users_can_read_by_now_is_refused(state_folder: Path) -> None:
    created_token("mine")
    default_token_file("mine").chmod(0o644)
    for find in (created_token, known_token):
        with pytest.raises(ConfigurationError, match="mode 0644"):
            find("mine")


def test_token_command_prints_the_created_token(
    state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["rest-token"], connect=lambda *_: nullcontext()) == 2  # type: ignore[arg-type]
    assert "no flinkray rest of this user has served cluster 'default'" in capsys.readouterr().err
    token = created_token("default")
    assert execute(["rest-token"], connect=lambda *_: nullcontext()) == 0  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"{token}\n"


def test_error_of_a_token_that_cannot_be_created_says_to_configure_a_token_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private(tmp_path / "file", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match=r"name a file as rest\.token-file"):
        created_token("default")
