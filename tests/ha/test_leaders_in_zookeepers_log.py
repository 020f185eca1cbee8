"""The check that tests hold ZooKeeper's log to: one leader after the other, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from kazoo.client import KazooClient

from tests.system.kills.leaders import Leaders
from tests.zookeeper_log import CHECK, CREATE, DELETE, SET_DATA, Operation, Transaction
from tests.zookeeper_log import transactions as transactions_of
from tests.zookeeper_server import ZooKeeperServer

ROOT = "/flinkray/test"
COMPONENT = f"{ROOT}/leader/dispatcher"
FIRST, SECOND = (f"{COMPONENT}/latch/{name}-000000000{n}" for n, name in enumerate("ab", 1))


def published(fence: str, session: int, kind: int = CREATE) -> list[Operation]:
    information = {"address": f"Dispatcher-{session}/dispatcher", "session": f"{session:032x}"}
    path = f"{COMPONENT}/connection_info"
    data = json.dumps(information).encode()
    return [Operation(CHECK, fence), Operation(kind, path, data)]


def stored(fence: str | None) -> list[Operation]:
    checks = [] if fence is None else [Operation(CHECK, fence)]
    return [*checks, Operation(SET_DATA, f"{ROOT}/jobs/1", b"pointer")]


def leaders(*operations: Iterable[Operation]) -> Leaders:
    """Both contend; then each of these, a second apart."""
    begin = [[Operation(CREATE, FIRST, b"a")], [Operation(CREATE, SECOND, b"b")]]
    of_all = (Transaction(n, float(n), tuple(it)) for n, it in enumerate([*begin, *operations]))
    return Leaders(ROOT, of_all)


GONE = [Operation(DELETE, FIRST)]


def test_zookeeper_log_of_leaders_that_write_one_after_the_other_is_accepted() -> None:
    found = leaders(published(FIRST, 1), stored(FIRST), GONE, published(SECOND, 2), stored(SECOND))
    assert [it.process for it in found.confirmed] == ["Dispatcher-1", "Dispatcher-2"]
    assert found.effects == {FIRST: 2, SECOND: 2}
    led = found.next_after(4.5, "Dispatcher-1")
    assert led is not None
    assert (led.process, led.at) == ("Dispatcher-2", 5.0)
    assert found.next_after(4.5, "Dispatcher-2") is None, "it stood by"


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([stored(SECOND)], id="one that stands by writes"),
        pytest.param([GONE, stored(SECOND), stored(FIRST)], id="one writes that led"),
        pytest.param([stored(None)], id="nobody answers for it"),
        pytest.param([published(FIRST, 1), published(FIRST, 2, SET_DATA)], id="two sessions"),
        pytest.param(
            [published(FIRST, 1), GONE, published(SECOND, 1)], id="the session of another"
        ),
    ],
)
def test_zookeeper_log_with_a_write_or_session_that_must_not_occur_is_refused(
    operations: list[list[Operation]],
) -> None:
    with pytest.raises(AssertionError):
        leaders(*operations)


def test_transactions_of_a_real_zookeeper_server_are_read_from_its_log(
    zookeeper: ZooKeeperServer,
) -> None:
    client = KazooClient(zookeeper.hosts)
    client.start()
    fence = client.create("/log/latch/a-", b"a", ephemeral=True, sequence=True, makepath=True)
    for checked, data in ((fence, b"first"), ("/log/nobody", b"never")):
        transaction = client.transaction()
        transaction.check(checked, -1)
        transaction.create(f"/log/{data.decode()}", data)
        transaction.commit()
    client.set("/log/first", b"second")
    client.stop()
    client.close()
    found = [it for it in transactions_of(zookeeper.directory) if "/log/" in str(it)]
    operations = [it.operations for it in found]
    assert operations[-3:] == [
        (Operation(CHECK, fence), Operation(CREATE, "/log/first", b"first")),
        (Operation(SET_DATA, "/log/first", b"second"),),
        (Operation(DELETE, fence),),
    ]
