"""Ensembles with TLS and credentials for the tests: certificates that nobody should accept, and who a session is."""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
import threading
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization as pem
from kazoo.security import CREATOR_ALL_ACL

from zk_group.coordinator.zk.embedded.ensemble import Server
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.session.kazoo_store import KazooStore


@dataclass(frozen=True)
class MadeCA:
    """A CA of a test."""

    folder: Path
    ca: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> MadeCA:
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder, trustme.CA())
        made.ca.cert_pem.write_to_path(made.file)
        return made

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str, *hosts: str, expired: bool = False) -> Path:
        """A file with a key and its certificate, which nobody else may read."""
        not_after = datetime.now(UTC) - timedelta(days=1) if expired else None
        made = self.ca.issue_cert(*hosts, common_name=name, not_after=not_after)
        key = pem.load_pem_private_key(made.private_key_pem.bytes(), password=None)
        text = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
        path = self.folder / f"{name}.pem"
        path.touch(mode=0o600)
        path.write_bytes(text + b"".join(one.bytes() for one in made.cert_chain_pems))
        return path


def change_configuration(server: Server, lines: dict[str, str]) -> None:
    """Replace lines of a server's zoo.cfg."""
    path = server.directory / "zoo.cfg"
    found = dict(line.split("=", 1) for line in path.read_text().splitlines()) | lines
    path.write_text("".join(f"{key}={value}\n" for key, value in found.items()))


def identities_of_session(store: KazooStore) -> set[str]:
    """Who ZooKeeper takes this session for: the ACL that the scheme `auth` makes of it."""
    client: Any = store._client
    path: str = client.create("/who-", sequence=True, ephemeral=True, acl=CREATOR_ALL_ACL)
    return {f"{one.id.scheme}:{one.id.id}" for one in client.get_acls(path)[0]}


def printed_secrets(text: str, folder: Path) -> list[str]:
    """Which secrets of an embedded ensemble's identities stand in `text`."""
    found = [
        secret
        for file in folder.rglob("*.auth")
        for secret in re.findall(r"^sasl:[^:]+:(.+)$", file.read_text(), re.MULTILINE)
    ]
    assert found
    return [secret for secret in found if secret in text]


class TlsProxy:
    """Ends TLS in front of a server that has none, as stunnel does; answers that come together are one TLS record."""

    def __init__(self, server: tuple[str, int], certificate: Path) -> None:
        self._server = server
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        """Call it after the client has closed its connection."""
        self._listening.close()
        self._thread.join(10)

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        client = self._context.wrap_socket(connection, server_side=True)
        with client, socket.create_connection(self._server) as server:
            while self._forwarded(client, server):
                pass

    def _forwarded(self, client: ssl.SSLSocket, server: socket.socket) -> bool:
        ready = [client] if client.pending() else select.select([client, server], [], [], 30)[0]
        if client in ready:
            requests = client.recv(65536)
            server.sendall(requests)
            return bool(requests)
        answers = b""
        while select.select([server], [], [], 0.02)[0] and (received := server.recv(65536)):
            answers += received
        client.sendall(answers)
        return bool(answers)


def flags(access: ZooKeeperAccess) -> list[str]:
    """The options of `zk-coordinator run` and `zk-consumer run` for this access."""
    values = {field.name: getattr(access, field.name) for field in fields(access)}
    words = ["--zk-tls"] if values.pop("zk_tls") else []
    return words + [
        word
        for name, value in values.items()
        if isinstance(value, str) and value
        for word in (f"--{name.replace('_', '-')}", value)
    ]


def zk_config(folder: Path, access: ZooKeeperAccess) -> Path:
    """A file for `--zk-config`."""
    path = folder / "zk.toml"
    values = {field.name: getattr(access, field.name) for field in fields(access)}
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return path
