"""``flinkray rest``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

import pytest

from flinkray.client.cli import execute
from flinkray.core.errors import ConfigurationError
from flinkray.rest.token import default_token_file, known_token
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.ray_client_server import free_port
from tests.rest.http import TOKEN, Asker


@pytest.fixture
def no_sigterm_of_ours() -> Iterator[None]:
    """One that nobody else takes fails the test, and does not end all of them."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError("nobody has taken SIGTERM")

    before = signal.signal(signal.SIGTERM, fail)
    yield
    assert signal.signal(signal.SIGTERM, before) is fail


@pytest.mark.parametrize(("sent", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
@pytest.mark.usefixtures("no_sigterm_of_ours")
def test_rest_command_serves_the_cluster_until_a_signal_ends_it(
    sent: signal.Signals,
    exit_code: int,
    cluster: ThreadedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Requests with the token that the command creates are answered."""
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    port = free_port()
    statuses = []

    def answers() -> bool:
        try:
            refused = Asker(f"http://127.0.0.1:{port}", None)("DELETE", "/cluster")
            with_token = Asker(f"http://127.0.0.1:{port}", known_token("default"))
        except (ConnectionRefusedError, ConfigurationError):
            return False
        statuses.append((refused.status, with_token("GET", "/jobs").status))
        return True

    def look_and_interrupt() -> None:
        try:
            wait_until(answers, 150, "an answer")
        finally:
            signal.pthread_kill(threading.main_thread().ident or 0, sent)

    with ThreadPoolExecutor() as threads:
        looking = threads.submit(look_and_interrupt)
        line = ["rest", "--port", str(port)]
        code = execute(line, connect=lambda *_: nullcontext(cluster.client))
        looking.result(300)
    assert (code, statuses) == (exit_code, [(401, 200)])
    said = capsys.readouterr().out
    assert f"is served at http://127.0.0.1:{port} (Ctrl-C ends it)" in said
    assert f"requests must carry the token in {default_token_file('default')}" in said
    assert known_token("default") not in said
    with pytest.raises(ConnectionRefusedError):
        Asker(f"http://127.0.0.1:{port}")("GET", "/jobs")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--port", "x"], "rest.bind-port"),
        (["-D", "rest.token=short"], "rest.token"),
        (["-D", "rest.ssl.key=k.pem"], "belong together"),
    ],
)
def test_rest_command_with_an_invalid_option_exits_with_2_and_names_the_option(
    options: list[str],
    text: str,
    cluster: ThreadedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")
    code = execute(["rest", *options], connect=lambda *_: nullcontext(cluster.client))
    assert (code, text in capsys.readouterr().err) == (2, True)


def test_rest_command_with_an_impossible_host_exits_with_2_and_names_the_host(
    cluster: ThreadedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")
    line = ["rest", "--host", "a..b", "-D", f"rest.token={TOKEN}"]
    assert execute(line, connect=lambda *_: nullcontext(cluster.client)) == 2
    assert "the REST endpoint cannot be at a..b:8081" in capsys.readouterr().err
