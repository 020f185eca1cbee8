"""What Flink's clients deserialize, by a Java that does."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
from pyspark.java_gateway import launch_gateway

from flinkray.rest.errors import failure_cause, java_exception

TEXTS = ["", "no room", "naïve \0 and 🙂", "x" * 70_000]


@pytest.fixture(scope="module")
def java() -> Iterator[JavaGateway]:
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    yield gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def read(java: JavaGateway, data: bytes) -> Any:
    jvm = java.jvm
    stream = jvm.java.io.ByteArrayInputStream(data)
    return jvm.java.io.ObjectInputStream(stream).readObject()


@pytest.mark.spark
@pytest.mark.parametrize("text", TEXTS, ids=["empty", "short", "unicode", "long"])
def test_java_deserializes_a_failure_cause_with_its_message(text: str, java: JavaGateway) -> None:
    found = read(java, java_exception(text))
    assert found.getClass().getName() == "java.lang.Exception"
    assert found.getMessage() == text
    assert found.getCause() is None
    assert len(found.getStackTrace()) == 0
    assert len(found.getSuppressed()) == 0


@pytest.mark.spark
def test_exception_keeps_its_message_when_java_writes_and_reads_it_again(java: JavaGateway) -> None:
    jvm = java.jvm
    written = jvm.java.io.ByteArrayOutputStream()
    stream = jvm.java.io.ObjectOutputStream(written)
    stream.writeObject(read(java, java_exception("no room")))
    stream.flush()
    again = read(java, bytes(written.toByteArray()))
    assert again.getMessage() == "no room"


def test_failure_cause_has_the_traceback_or_else_the_message_of_the_error() -> None:
    cause = failure_cause("no room", "Traceback: no room")
    assert cause["stack-trace"] == "Traceback: no room"
    assert base64.b64decode(cause["serialized-throwable"]) == java_exception("no room")
    assert failure_cause("no room")["stack-trace"] == "no room"
