"""What is told where Ray does not start, or is not joined."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ray._private import parameter, services, worker
from ray._private.ray_constants import DEFAULT_DASHBOARD_AGENT_LISTEN_PORT, PROCESS_TYPE_RAYLET

from flinkray.client import ray_runtime
from flinkray.client.cli_run import _address_to_run_at
from flinkray.client.ray_runtime import (
    RAY_AUTH_MODE,
    RayStartError,
    _words_of,
    advice,
    free_ports,
    in_time,
    ports_for_agents,
    show_messages_on_standard_error,
    start_local_ray,
)


def behind(text: str) -> Exception:
    """As Ray wraps what is the matter."""
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = RuntimeError(text)
    return error


def test_error_of_a_failed_ray_start_names_the_logs_of_ray() -> None:
    with pytest.raises(RayStartError, match="no Ray could be started on this machine: ") as caught:
        start_local_ray("anywhere", {"no_such_argument": 1})
    assert "session_latest/logs" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        (
            "Version mismatch: The cluster was started with: Ray: 2.51.0 Python: 3.11",
            "the same versions of Ray and Python",
        ),
        ("Could not find any running raylet on this machine", "join from elsewhere by ray://"),
        ("No node info found matching node ip 10.0.0.9", "join from elsewhere by ray://"),
    ],
)
def test_advice_for_errors_unrelated_to_tokens_does_not_mention_tokens(
    monkeypatch: pytest.MonkeyPatch, text: str, way_out: str
) -> None:
    monkeypatch.delenv(RAY_AUTH_MODE, raising=False)
    told = advice(behind(text))
    assert way_out in told
    assert "token" not in told


@pytest.mark.parametrize(
    "text",
    [
        "InvalidAuthToken: Authentication token is missing or incorrect",
        "the node asks for authentication",
        "nobody knows",
    ],
)
def test_advice_for_a_possible_token_error_names_ray_auth_mode(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.delenv(RAY_AUTH_MODE, raising=False)
    assert "RAY_AUTH_MODE=token in the environment" in advice(behind(text))


def test_run_without_an_address_joins_the_ray_of_this_machine_as_auto(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once Ray has created a token, Ray asks for it. Only address auto sends the token."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_runtime, "recorded_address", lambda: "127.0.0.1:6379")
    assert _address_to_run_at(None) == "auto"
    assert _address_to_run_at("10.0.0.1:6379") == "10.0.0.1:6379"
    monkeypatch.setattr(ray_runtime, "recorded_address", lambda: None)
    assert _address_to_run_at(None) == "local"


def test_traceback_in_an_error_of_ray_is_shortened_to_its_last_line() -> None:
    """The advice follows the error on the same line."""
    text = (
        "Failed to connect to GCS. Last connection error: Traceback (most recent call last):\n"
        '  File "node.py", line 996, in _init_gcs_client\n    client = GcsClient(\n'
        "             ^^^^^^^^^^\nUnauthenticated: RPC error: InvalidAuthToken\n"
    )
    told = _words_of(ConnectionError(text))
    assert told == (
        "Failed to connect to GCS. Last connection error: "
        "Unauthenticated: RPC error: InvalidAuthToken"
    )


def test_ray_error_that_is_its_own_cause_is_shown_once() -> None:
    """Ray raises an error like this when its dashboard does not start."""
    error = RuntimeError("Failed to start the dashboard")
    error.__cause__ = error
    assert _words_of(error) == "Failed to start the dashboard"


def test_ray_start_is_repeated_after_a_timeout_but_not_after_other_errors() -> None:
    """After three timeouts the error is raised."""
    late = Exception("The current node timed out during startup. This could happen because …")
    starts: list[Exception | str] = [late, "started"]

    def start() -> str:
        outcome = starts.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    cleared: list[str] = []

    def clear_away() -> None:
        cleared.append("what was half started")

    assert in_time(start, clear_away) == "started"
    assert len(cleared) == 1
    starts += [late, late, late, "too late"]
    with pytest.raises(Exception, match="timed out during startup"):
        in_time(start, clear_away)
    starts[:] = [ValueError("no such argument"), "never"]
    with pytest.raises(ValueError, match="no such argument"):
        in_time(start, clear_away)
    assert starts == ["never"]


@pytest.mark.parametrize(
    "words",
    [
        "Failed to bind to 127.0.0.1:8265 because it's already occupied.",
        "[Errno 98] Address already in use",
        "GCS cannot find the node. Try increase the RAY_raylet_start_wait_time_s config.",
    ],
)
def test_ray_start_is_repeated_after_a_conflict_with_other_processes(words: str) -> None:
    starts: list[Exception | str] = [RuntimeError(words), "started"]

    def start() -> str:
        outcome = starts.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert in_time(start, lambda: None) == "started"


@pytest.mark.parametrize("given", [DEFAULT_DASHBOARD_AGENT_LISTEN_PORT, 4711])
def test_ray_agents_and_raylet_are_started_with_the_same_free_ports(
    given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's default for one of the ports is the same for every Ray on a machine."""
    commands: list[list[str]] = []
    monkeypatch.setattr(
        services, "start_ray_process", lambda command, *arguments: commands.append(command)
    )
    with ports_for_agents():
        told = parameter.RayParams(dashboard_agent_listen_port=given, metrics_agent_port=None)
        services.start_ray_process(["raylet"], PROCESS_TYPE_RAYLET, False)
    port = told.dashboard_agent_listen_port
    assert commands == [["raylet", f"--dashboard_agent_listen_port={port}"]]
    assert (port == given) == (given == 4711)
    ports = {port, told.metrics_agent_port, told.metrics_export_port, told.runtime_env_agent_port}
    assert len(ports - {None, 0}) == 4
    assert parameter.RayParams().metrics_agent_port is None


def test_ports_of_ray_agents_are_free_and_never_chosen_by_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An agent binds its port seconds later, and Ray's node ends if another program has it."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(first <= port <= last for port in free_ports(20))

    [port] = free_ports(1)
    monkeypatch.setattr(ray_runtime, "_PORTS", range(port, port + 3))
    system = tmp_path / "range"
    monkeypatch.setattr(ray_runtime, "_PORT_RANGE", system)
    system.write_text(f"{port + 2}\t65535\n")
    with socket.create_server(("", port)):
        assert free_ports(1) == [port + 1]
        with pytest.raises(OSError, match=f"only 1 of {port} to {port + 1} are free"):
            free_ports(2)
        system.write_text("1024\t65535\n")
        assert sorted(free_ports(2)) == [port + 1, port + 2], "the system chooses any port"


def test_messages_of_ray_about_its_nodes_go_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray's drivers pass these messages on in ``listen_error_messages``."""
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    for _ in range(2):
        show_messages_on_standard_error()
    message = {"lines": ["WARNING: 8 workers have been started"], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(message, ignore_prefix=False)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("WARNING: 8 workers have been started") == 1
