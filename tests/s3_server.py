"""A server of S3's protocol on the loopback interface, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

REGION = "us-east-1"
ROOT = ("who-may-do-all", "a-secret-of-tests")
"""Access key and secret of who may do everything."""


class S3Server:
    """moto's; buckets and users are made as with any other."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._buckets = 0

    def client(self, service: str) -> Any:
        import boto3  # type: ignore[import-untyped] # takes its time

        key, secret = ROOT
        return boto3.client(
            service,
            endpoint_url=f"http://{self.address}",
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )

    def new_bucket(self) -> str:
        """Its name."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        self.client("s3").create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        """Of all objects; those that stand for directories are left out."""
        objects = self.client("s3").list_objects_v2(Bucket=bucket).get("Contents", [])
        return [it["Key"] for it in objects if not it["Key"].endswith("/")]

    def uri(self, bucket: str, path: str, credentials: tuple[str, str] = ROOT) -> str:
        """With everything in it that pyarrow has to know."""
        options = f"endpoint_override={self.address}&scheme=http&region={REGION}"
        return (
            f"s3://{':'.join(quote(it, safe='') for it in credentials)}@{bucket}/{path}?{options}"
        )

    def environment(self) -> dict[str, str]:
        """With which a URI needs no more than bucket and path."""
        key, secret = ROOT
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": f"http://{self.address}",
        }

    def new_user(self, name: str, *actions: str) -> tuple[str, str]:
        """Access key and secret of one who may do this only."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        self.allow(name, *actions)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return key["AccessKeyId"], key["SecretAccessKey"]

    def allow(self, name: str, *actions: str) -> None:
        """From now on that user may do this only."""
        statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
        policy = {"Version": "2012-10-17", "Statement": [statement] if actions else []}
        self.client("iam").put_user_policy(
            UserName=name, PolicyName="all", PolicyDocument=json.dumps(policy)
        )

    @contextmanager
    def with_authentication(self) -> Iterator[None]:
        """Only who has valid credentials and the right is served meanwhile."""
        self._set_unchecked_requests("0")
        try:
            yield
        finally:
            self._set_unchecked_requests("inf")

    def _set_unchecked_requests(self, number: str) -> None:
        url = f"http://{self.address}/moto-api/reset-auth"
        text = {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(url, number.encode(), text)).close()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """It ends when its standard input does, so with this process at the latest."""
    root = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", "from tests.s3_server import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the server has not started"
        yield S3Server(address)
        assert process.stdin is not None
        process.stdin.close()


def serve() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"{host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
