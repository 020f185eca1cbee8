"""What only the Ray service has: actors, placement, sockets that break."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgpack
import psutil
import pytest
import ray
from ray._private.state import actors as ray_actors
from ray.experimental import internal_kv
from ray.util.placement_group import placement_group, remove_placement_group

from flinkray.core.errors import HandshakeError, RecipientUnreachableError, RpcConnectionError
from flinkray.core.ids import WorkerGroupId
from flinkray.core.records import encode_record
from flinkray.rpc import EndpointSpec, Placement, RayRpcService
from flinkray.rpc.ray import service as ray_service
from flinkray.rpc.ray.directory import ProcessRecord, RayDirectory
from flinkray.rpc.wire import handshake
from flinkray.rpc.wire.frames import FrameStream
from flinkray.testing.waiting import eventually
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, WhereGateway, echo_spec

pytestmark = pytest.mark.ray


@pytest.fixture
async def service(ray_cluster: None) -> AsyncIterator[RayRpcService]:
    service = await RayRpcService.open(f"rpc-{uuid.uuid4().hex}", "driver")
    yield service
    await service.close()


async def test_process_is_a_ray_actor_with_its_name_and_class(service: RayRpcService) -> None:
    await service.spawn(EndpointSpec("JobMaster", "JobMaster-1", "tests.rpc.endpoints:create_echo"))
    handle = ray.get_actor("JobMaster-1", service.namespace)
    (info,) = (a for a in ray_actors().values() if a["ActorID"] == handle._actor_id.hex())
    assert info["ActorClassName"] == "JobMaster"
    assert info["Name"] == "JobMaster-1"


async def test_process_runs_in_the_given_bundle_of_its_worker_group(service: RayRpcService) -> None:
    group = placement_group([{"CPU": 0.5}] * 2)
    assert group.wait(300)
    address = await service.spawn(
        EndpointSpec(
            "Where",
            "where",
            "tests.rpc.endpoints:create_where",
            placement=Placement(worker_group=WorkerGroupId(group.id.hex()), bundle_index=1),
        )
    )
    group_id, resources = await (await service.connect(address, WhereGateway)).where()
    assert group_id == group.id.hex()
    assert f"bundle_group_1_{group.id.hex()}" in resources
    remove_placement_group(group)
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.watch(address, gone.set_result)
    await asyncio.wait_for(gone, 10)


async def test_broken_connection_to_a_living_process_is_not_reported_as_its_end(
    service: RayRpcService,
) -> None:
    host = await RayRpcService.open(service.namespace, "host")
    endpoint = EchoEndpoint(host)
    endpoint.start()
    reasons: asyncio.Queue[str] = asyncio.Queue()
    service.watch(endpoint.address, reasons.put_nowait)
    for _ in range(3):
        echo = await service.connect(endpoint.address, EchoGateway)
        assert await echo.echo(1) == 1
        (connection,) = service.connections()
        connection.close()
    assert await (await service.connect(endpoint.address, EchoGateway)).echo(2) == 2
    assert reasons.empty()
    await endpoint.close()
    assert await reasons.get() == "the endpoint has terminated"
    await host.close()


async def test_death_of_a_process_reported_by_ray_ends_its_connection(
    service: RayRpcService,
) -> None:
    address = await service.spawn(echo_spec("worker"))
    echo = await service.connect(address, EchoGateway)
    assert await echo.echo(1) == 1
    (connection,) = service.connections()
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.on_lost(lambda: lost.set_result(None))
    await service.kill("worker")
    await asyncio.wait_for(lost, 10)
    with pytest.raises(RpcConnectionError, match="worker/echo"):
        await service.connect(address, EchoGateway)


async def test_client_process_with_a_wrong_secret_is_refused(service: RayRpcService) -> None:
    host = await RayRpcService.open(service.namespace, "host")
    endpoint = EchoEndpoint(host)
    endpoint.start()
    stranger = RayRpcService(
        service.namespace, "stranger", bytes(32), ask_timeout=service.ask_timeout
    )
    with pytest.raises(HandshakeError, match="secret"):
        await stranger.connect(endpoint.address, EchoGateway)
    await stranger.close()
    await host.close()


async def record_of(service: RayRpcService) -> ProcessRecord:
    record = await service.run_blocking(RayDirectory(service.namespace).get, service.process_name)
    assert record is not None
    return record


async def connected_to(record: ProcessRecord) -> FrameStream:
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(FrameStream, record.host, record.port)
    return stream


async def test_directory_entry_of_another_version_is_refused_and_can_be_replaced(
    service: RayRpcService, caplog: pytest.LogCaptureFixture
) -> None:
    host = await RayRpcService.open(service.namespace, "host")
    EchoEndpoint(host).start()
    record = await record_of(host)
    newer = encode_record(record).replace(b"ProcessRecord\x02", b"ProcessRecord\x03")
    key, space = b"process:host", f"rpc:{service.namespace}".encode()
    await service.run_blocking(
        partial(internal_kv._internal_kv_put, key, newer, overwrite=True, namespace=space)
    )
    with pytest.raises(
        RpcConnectionError, match=r"process host cannot be read: .*ProcessRecord version 3"
    ):
        await service.connect("host/echo", EchoGateway)
    await service.kill("host")
    await host.close()
    get = partial(internal_kv._internal_kv_get, key, namespace=space)
    assert await service.run_blocking(get) == newer

    caplog.clear()
    again = await RayRpcService.open(service.namespace, "host")
    assert "process host cannot be read" in caplog.text
    assert not again.is_restart
    EchoEndpoint(again).start()
    assert await (await service.connect("host/echo", EchoGateway)).echo(1) == 1
    await again.close()


async def test_outdated_directory_entry_fails_the_connect_and_affects_nothing_else(
    service: RayRpcService,
) -> None:
    """RPC-07: another process listens at the port, or the same one in another incarnation."""
    host = await RayRpcService.open(service.namespace, "host")
    EchoEndpoint(host).start()
    record = await record_of(host)
    directory = RayDirectory(service.namespace)
    for name, incarnation in (("host", "of-the-past"), ("gone", record.incarnation)):
        stale = dataclasses.replace(record, incarnation=incarnation)
        await service.run_blocking(directory.put, name, stale)
        with pytest.raises(RpcConnectionError, match=f"{name} is not there any more: this is host"):
            await service.connect(f"{name}/echo", EchoGateway)
    await service.run_blocking(directory.put, "host", record)
    assert await (await service.connect("host/echo", EchoGateway)).echo(1) == 1
    assert host.refused_frames == 2
    await host.close()


async def test_other_protocol_version_and_replayed_proof_are_refused_and_counted(
    service: RayRpcService,
) -> None:
    """RPC-33"""
    record = await record_of(service)
    stream = await connected_to(record)
    target = (service.process_name, service.incarnation)
    stream.send(msgpack.packb(("flinkray", 99, bytes(32), "client#1", *target)))
    kind, what, reason = msgpack.unpackb(await stream.receive())
    assert (kind, what) == ("refused", "protocol")
    assert "99" in reason
    stream.close()

    sent: list[bytes] = []
    stream = await connected_to(record)

    class Tapped:
        def send(self, frame: bytes) -> None:
            sent.append(frame)
            stream.send(frame)

        async def receive(self) -> bytes:
            return await stream.receive()

    secret = await service.run_blocking(RayDirectory(service.namespace).secret)
    await handshake.introduce(Tapped(), secret, "client#1", *target)
    stream.close()
    assert service.refused_frames == 1
    hello, proof = sent
    replay = await connected_to(record)
    replay.send(hello)
    await replay.receive()
    replay.send(proof)
    assert msgpack.unpackb(await replay.receive())[:2] == ["refused", "secret"]
    assert service.refused_frames == 2
    replay.close()


def test_service_without_ray_fails_and_names_ray_init() -> None:
    program = (
        "import asyncio; from flinkray.rpc import RayRpcService; "
        "asyncio.run(RayRpcService.open('nowhere'))"
    )
    done = subprocess.run(  # a process where nobody has called ray.init
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "RuntimeError: Ray is not initialised in this process: call ray.init" in done.stderr


async def test_service_that_fails_to_open_leaves_no_task_and_no_connection(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RayDirectory, process_name: str, record: ProcessRecord) -> None:
        raise ray.exceptions.RpcError("the head is away")

    monkeypatch.setattr(RayDirectory, "put", fail)
    before = len(psutil.Process().net_connections("all"))
    with pytest.raises(ray.exceptions.RpcError, match="the head is away"):
        await RayRpcService.open(f"rpc-{uuid.uuid4().hex}", "driver")
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(psutil.Process().net_connections("all")) <= before


async def test_unknown_client_that_stays_silent_is_disconnected_and_counted(
    service: RayRpcService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_service, "HANDSHAKE_TIMEOUT", 0.05)
    record = RayDirectory(service.namespace).get("driver")
    assert record is not None
    reader, writer = await asyncio.open_connection(record.host, record.port)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert service.refused_frames == 1
    writer.close()
    await writer.wait_closed()


async def test_process_reported_dead_by_ray_is_not_called_again_although_it_answers(
    service: RayRpcService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a node that Ray has given up: the successor starts elsewhere."""
    reported = asyncio.Event()

    async def death_of(*_: object) -> str:
        await reported.wait()
        return "Ray has given up its node"

    monkeypatch.setattr(ray_service, "death_of", death_of)
    address = await service.spawn(echo_spec("worker"))
    echo = await service.connect(address, EchoGateway)
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.watch(echo, gone.set_result)
    assert await echo.echo(1) == 1
    reported.set()
    assert "Ray has given up its node" in await asyncio.wait_for(gone, 10)
    for call in (echo.echo(2), echo.note(3)):
        with pytest.raises(RecipientUnreachableError, match="Ray has given up its node"):
            await call


async def test_watch_of_a_process_ends_without_error_when_the_interpreter_ends(
    service: RayRpcService,
) -> None:
    """The threads that ask Ray stop before the event loop."""
    address = await service.spawn(echo_spec("worker"))
    client = await RayRpcService.open(service.namespace, "client")
    echo = await client.connect(address, EchoGateway)
    name = "client: hear of worker's death"
    (watch,) = (task for task in asyncio.all_tasks() if task.get_name() == name)
    client.head._executor.shutdown(wait=False)
    await asyncio.wait_for(watch, 60)
    assert await echo.echo(1) == 1
    await client.close()


async def test_closed_service_removes_its_child_processes_from_the_directory(
    service: RayRpcService,
) -> None:
    """Otherwise the addresses of the killed children would stay in Ray's head for ever."""
    owner = await RayRpcService.open(service.namespace, "owner")
    await owner.spawn(echo_spec("child"))
    assert await service.process_names("child") == ("child",)
    await owner.close()
    assert await service.process_names("") == ("driver",)


async def test_process_that_shuts_down_is_found_by_name_until_it_has_ended(
    service: RayRpcService, tmp_path: Path
) -> None:
    """Otherwise nobody could kill a process that hangs while it ends."""
    note = tmp_path / "ending"
    spec = EndpointSpec("Slow", "slow", "tests.rpc.endpoints:create_slow_to_end", str(note))
    echo = await service.connect(await service.spawn(spec), EchoGateway)
    pid = await echo.pid()
    stopping = asyncio.ensure_future(service.stop("slow"))
    await eventually(note.exists, 150, "its service to be closed")

    assert await service.process_names("slow") == ("slow",)
    psutil.Process(pid).suspend()
    await service.kill("slow")

    await eventually(lambda: not psutil.pid_exists(pid), 150, "its end")
    assert await service.process_names("slow") == ()
    await stopping
