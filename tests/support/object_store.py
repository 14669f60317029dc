"""An object store on this machine: moto's server, which speaks S3."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.wait import eventually
from zk_group.coordinator.zk.embedded.directory import choose_ports

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def object_store() -> Iterator[str]:
    """A server, ended at the end; the URI of a prefix in a bucket of it."""
    port = choose_ports(1, None)[0].client
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _make_bucket(address), 60, "the object store answers", ignoring=(OSError,), pause_s=0.1)
        yield f"s3://bucket/segments?endpoint_override={address}&scheme=http"
    finally:
        server.terminate()
        server.wait(10)


def _make_bucket(address: str) -> bool:
    request = urllib.request.Request(f"http://{address}/bucket", method="PUT")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return bool(answer.status == 200)
