"""Another user of the machine (nobody) reads nothing of a cluster and changes nothing."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

import flinkray
from flinkray.client import ClusterClient
from flinkray.client.client_session import session_of
from flinkray.core.config import ReadableConfig
from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.rest.server import RestServer, RestSettings
from flinkray.rest.token import created_token, default_token_file
from flinkray.testing.waiting import wait_until

NOBODY = 65534

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user"),
]


def as_nobody(question: Callable[[], Any]) -> Any:
    """What a question answers in a process of the user nobody; the answer goes through JSON."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # no handler of pytest's is to run here
        code = 1
        try:
            os.close(reading)
            os.chdir("/")
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            with os.fdopen(writing, "w") as answer:
                json.dump(question(), answer)
            code = 0
        except BaseException:  # noqa: BLE001 - the process ends here, whatever was raised
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as answer:
        told = answer.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, told
    return json.loads(told)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A folder that everybody may enter: pytest's own would hide what lies in it."""
    folder = Path(tempfile.mkdtemp(prefix="other-users-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def client(ray_cluster: object, root: Path) -> Iterator[ClusterClient]:
    configuration = {
        "storage.dir": str(root / "storage"),
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.cpu.cores": "0.5",
        "taskmanager.memory": "200m",
        "state.backend.type": "rocksdb",
    }
    before = os.umask(0)  # the worst of all
    try:
        with flinkray.connect(cluster_id="other-users", configuration=configuration) as client:
            yield client
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def savepoint(client: ClusterClient, root: Path) -> str:
    """Of a job with state on disk, which goes on and has taken a checkpoint."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client).set_parallelism(1)
    env.enable_checkpointing(500)
    source = DataGeneratorSource(lambda n: n, 10**9, 1000.0)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    sums = stream.key_by(lambda n: n % 7).reduce(lambda one, other: one + other)
    sums.sink_to(DiscardingSink())
    job = env.execute_async("sums")

    def checkpoints() -> list[Path]:
        info = client.job(job.get_job_id()).details()
        assert not info.status.is_terminal, info.exceptions
        return list((root / "storage").rglob("_metadata"))

    wait_until(checkpoints, 300, "a checkpoint")
    return job.trigger_savepoint(str(root / "savepoints")).result(300)


def opened(paths: list[str]) -> list[str]:
    """Of these files and folders those that this user can read, write, list or create files in."""
    found = []
    for path in paths:
        for flags in (os.O_RDONLY, os.O_WRONLY):
            with suppress(OSError):
                os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW))
                found.append(f"{path}: {flags}")
        with suppress(OSError):
            os.listdir(path)
            found.append(f"{path}: listed")
        with suppress(OSError):
            os.close(os.open(f"{path}/nobodys", os.O_CREAT | os.O_WRONLY, 0o600))
            found.append(f"{path}: a file in it")
        with suppress(OSError):
            os.rename(path, f"{path}-moved")
            found.append(f"{path}: moved")
    return found


def processes() -> list[psutil.Process]:
    """Of the cluster."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any("flinkray" in text or text.startswith("ray::") for text in process.cmdline()):
                found.append(process)
    return found


def test_user_nobody_can_open_no_file_of_a_cluster(savepoint: str, root: Path) -> None:
    """Job graphs, checkpoints, savepoints, state on disk and notes in the temporary folder."""
    paths = [str(root / "storage"), savepoint]
    for folder in list(paths):
        paths += map(str, Path(folder).rglob("*"))
    assert any("checkpoints" in path for path in paths)
    assert Path(savepoint, "_metadata").exists()
    temporary = [str(path) for path in Path(tempfile.gettempdir()).glob("flinkray-*")]
    mine = [path for path in temporary if os.stat(path).st_uid == 0]
    assert any("flinkray-state-" in path for path in mine)
    shared = [str(path) for path in Path("/dev/shm").iterdir() if path.stat().st_uid == 0]
    assert as_nobody(lambda: opened([*paths, *mine, *shared])) == []


def test_user_nobody_cannot_read_memory_or_environment_of_the_clusters_processes(
    savepoint: str,
) -> None:
    pids = [process.pid for process in processes()]
    assert len(pids) > 3

    def seen() -> list[str]:
        found = []
        for pid in pids:
            for name in ("fd", "environ", "mem", "map_files"):
                path = f"/proc/{pid}/{name}"
                with suppress(OSError):
                    os.listdir(path) if os.path.isdir(path) else os.close(os.open(path, 0))
                    found.append(path)
        return found

    assert as_nobody(seen) == []


def test_user_nobody_gets_no_data_from_rpc_and_data_sockets(savepoint: str) -> None:
    """A client without the cluster's secret receives only the beginning of a handshake."""
    unix = {
        line.split()[-1]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if "@flinkray" in line
    }
    ours = {process.pid for process in processes()}
    tcp = {
        tuple(connection.laddr)
        for pid in ours
        for connection in connections_of(pid)
        if connection.status == psutil.CONN_LISTEN and is_flinkrays(pid)
    }
    assert unix
    assert tcp

    def told() -> dict[str, int]:
        answers = {}
        for address in [*unix, *tcp]:
            family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
            place: Any = f"\0{address[1:]}" if isinstance(address, str) else address
            with closing(socket.socket(family)) as client:
                client.settimeout(20)
                heard = 0
                try:
                    client.connect(place)
                    client.sendall(bytes(4096))
                    while piece := client.recv(4096):
                        heard += len(piece)
                except (ConnectionError, TimeoutError):
                    pass
                answers[str(address)] = heard
        return answers

    answers = as_nobody(told)
    assert len(answers) == len(unix) + len(tcp)
    assert {place: size for place, size in answers.items() if size > 256} == {}


def connections_of(pid: int) -> list[Any]:
    try:
        return list(psutil.Process(pid).net_connections("tcp4"))
    except psutil.Error:
        return []


def is_flinkrays(pid: int) -> bool:
    """Not one of Ray's own servers."""
    try:
        title = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False
    return any(
        name in title
        for name in ("ray::Dispatcher", "ray::JobMaster", "ray::ResourceManager", "ray::Task")
    )


def test_user_nobody_is_refused_by_the_rest_endpoint(
    client: ClusterClient, savepoint: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the token, any user could take savepoints, delete savepoints of others, and end the
    cluster."""
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))
    values = {"rest.bind-port": "0", "rest.token": created_token("other-users")}
    server = RestServer(session_of(client).dispatcher, RestSettings.of(ReadableConfig(values)))
    session_of(client).run(server.start())
    place = urlsplit(server.url).netloc
    job = client.list_jobs()[0].job_id.hex()
    body = json.dumps({"savepoint-path": savepoint, "target-directory": str(root)})
    requests = [
        ("GET", "/jobs"),
        ("GET", f"/jobs/{job}/yarn-cancel"),
        ("PATCH", f"/jobs/{job}"),
        ("POST", f"/jobs/{job}/savepoints"),
        ("POST", "/savepoint-disposal"),
        ("DELETE", "/cluster"),
    ]

    def asked() -> list[int]:
        statuses = []
        for method, path in requests:
            connection = http.client.HTTPConnection(place, timeout=60)
            connection.request(method, path, body)
            statuses.append(connection.getresponse().status)
            connection.close()
        return statuses

    try:
        assert as_nobody(asked) == [401] * len(requests)
        assert as_nobody(lambda: opened([str(default_token_file("other-users"))])) == []
        assert Path(savepoint, "_metadata").exists()
        assert client.job(client.list_jobs()[0].job_id).status().name == "RUNNING"
    finally:
        session_of(client).run(server.close())
