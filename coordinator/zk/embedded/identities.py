"""Credentials of an embedded ensemble, all of them thrown away with its directory: a CA, certificates, SASL users."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..errors import MissingProgram, UsageError
from ..security.access import SASL, ZooKeeperAccess

if TYPE_CHECKING:
    import trustme

IDENTITIES: Final = ("coordinator", "operator", "reader", "team-a", "team-b")
"""A client of each is set up: its certificate, and its SASL user."""
ORGANIZATION: Final = "zk-group"
UNIT: Final = "embedded"
_SERVER: Final = "server"
_FOLDER: Final = "identities"
_CA: Final = "ca.pem"
_SERVER_JAAS: Final = "server.jaas"
_SASL_PROVIDER: Final = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
_LOGIN_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"


class Identities:
    """The files below an ensemble's directory; only their owner may read them.

    :param tls: whether there are certificates.
    :param auth: whether there are SASL users.
    """

    def __init__(self, directory: Path, tls: bool, auth: bool) -> None:
        self._folder = directory / _FOLDER
        self._tls = tls
        self._auth = auth

    def create(self, hosts: Sequence[str]) -> None:
        """Make all files, for servers at these addresses.

        :raises MissingProgram: when trustme, which makes the certificates, is not installed.
        """
        if self._tls or self._auth:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._tls:
            self._create_certificates(sorted({*hosts, "localhost"}))
        if self._auth:
            self._create_users()

    def _create_certificates(self, hosts: Sequence[str]) -> None:
        try:
            import trustme
        except ImportError as error:
            raise MissingProgram(
                "trustme, which makes the certificates, is not installed: pip install trustme"
            ) from error
        ca = trustme.CA(organization_name=ORGANIZATION, organization_unit_name=UNIT)
        ca.cert_pem.write_to_path(self._folder / _CA)
        self._write_certificate(_SERVER, ca, hosts)
        for name in IDENTITIES:
            self._write_certificate(name, ca, [f"{name}.invalid"])

    def _write_certificate(self, name: str, ca: trustme.CA, hosts: Sequence[str]) -> None:
        """Certificate and key in one file. ZooKeeper reads keys in PKCS #8 only."""
        from cryptography.hazmat.primitives import serialization as pem

        made = ca.issue_cert(*hosts, common_name=name, organization_name=ORGANIZATION, organization_unit_name=UNIT)
        key = pem.load_pem_private_key(made.private_key_pem.bytes(), password=None)
        text = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
        self._write(f"{name}.pem", (text + b"".join(one.bytes() for one in made.cert_chain_pems)).decode())

    def _create_users(self) -> None:
        passwords = {name: secrets.token_hex(16) for name in IDENTITIES}
        users = "\n".join(f'  user_{name}="{password}"' for name, password in passwords.items())
        self._write(_SERVER_JAAS, f"Server {{\n  {_LOGIN_MODULE} required\n{users};\n}};\n")
        for name, password in passwords.items():
            self._write(f"{name}.auth", f"{SASL}:{name}:{password}\n")
            client = f'username="{name}"\n  password="{password}"'
            self._write(f"{name}.jaas", f"Client {{\n  {_LOGIN_MODULE} required\n  {client};\n}};\n")

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_text(text)

    # ---- servers

    def server_lines(self) -> dict[str, str]:
        """Lines of zoo.cfg."""
        lines = {"authProvider.sasl": _SASL_PROVIDER} if self._auth else {}
        if self._tls:
            lines |= {
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": str(self._folder / f"{_SERVER}.pem"),
                "ssl.trustStore.location": str(self._folder / _CA),
                "ssl.clientAuth": "want",
            }
        return lines

    @property
    def server_flags(self) -> tuple[str, ...]:
        """Flags of a server's JVM."""
        return (f"-Djava.security.auth.login.config={self._folder / _SERVER_JAAS}",) if self._auth else ()

    # ---- clients

    def access(self, name: str = "operator") -> ZooKeeperAccess:
        """How a client with this identity connects.

        :raises UsageError: when there is no such identity.
        """
        if name not in IDENTITIES:
            raise UsageError(f"there is no identity {name}: known are {', '.join(IDENTITIES)}")
        certificate = str(self._folder / f"{name}.pem") if self._tls else ""
        return ZooKeeperAccess(
            zk_auth_file=str(self._folder / f"{name}.auth") if self._auth else "",
            zk_tls=self._tls,
            zk_tls_ca=str(self._folder / _CA) if self._tls else "",
            zk_tls_cert=certificate,
            zk_tls_key=certificate,
        )

    def zookeeper_id(self, name: str) -> str:
        """The identity as in an ACL, `scheme:id`; of the certificate where there are no users."""
        if self._auth:
            return f"{SASL}:{name}"
        return f"x509:CN={name},OU={UNIT},O={ORGANIZATION}"

    def zkcli_flags(self, name: str) -> tuple[str, ...]:
        """Flags of the JVM of ZooKeeper's own client."""
        flags: tuple[str, ...] = ()
        if self._auth:
            # In FIPS mode, its default since 3.9, the client has no DIGEST-MD5.
            flags += (
                f"-Djava.security.auth.login.config={self._folder / f'{name}.jaas'}",
                "-Dzookeeper.fips-mode=false",
            )
        if self._tls:
            flags += (
                "-Dzookeeper.client.secure=true",
                "-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
                f"-Dzookeeper.ssl.keyStore.location={self._folder / f'{name}.pem'}",
                f"-Dzookeeper.ssl.trustStore.location={self._folder / _CA}",
            )
        return flags
