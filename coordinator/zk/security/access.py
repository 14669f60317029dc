"""A process's access to a secured ensemble: credentials, and the TLS of its connections."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
import ssl
import stat
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Never

from ..errors import UsageError
from ..values import PREFIX, Values, typed

log = logging.getLogger(__name__)

AUTH_VARIABLE: Final = "ZK_GROUP_ZK_AUTH"
"""Environment variable with credentials, as the lines of `zk_auth_file`."""
DIGEST: Final = "digest"
SASL: Final = "sasl"
LARGEST_FILE: Final = 65_536
ACCESS_HELPS: Final = {
    "zk_auth_file": "File of ZooKeeper credentials, lines SCHEME:USER:PASSWORD; only its owner may read it.",
    "zk_tls": "TLS to the ZooKeeper servers.",
    "zk_tls_ca": "PEM file of the CAs that the servers' certificates are verified with; else the system's.",
    "zk_tls_cert": "PEM file of the client's certificate chain.",
    "zk_tls_key": "PEM file of its private key; only its owner may read it.",
    "zk_tls_check_hostname": "Whether a server's certificate must be valid for its name in --zk.",
}
"""field -> one line of help."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a session. Its `repr` has no secret, and no task carries it.

    :ivar digests: `user:password` of each identity of the scheme `digest`.
    :ivar sasl: user and password for SASL DIGEST-MD5, None for none.
    """

    digests: tuple[str, ...] = ()
    sasl: tuple[str, str] | None = None

    def __repr__(self) -> str:
        users = [digest.partition(":")[0] for digest in self.digests]
        return f"Credentials(digests={users}, sasl={self.sasl[0] if self.sasl else None})"

    def __reduce__(self) -> Never:
        raise TypeError("credentials are not pickled: each process reads its own")

    def __bool__(self) -> bool:
        return bool(self.digests or self.sasl)


# Configuration: each field is one property, an option of its own.
@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperAccess(Values):
    """Part of each configuration, without secrets: files are read where a session is opened, on executors too.

    A field with its default is taken from the environment where the session is opened (`ZK_GROUP_ZK_TLS` and so on).

    :ivar zk_auth_file: file with lines `digest:USER:PASSWORD` or `sasl:USER:PASSWORD`; when it is empty, the
        environment's `ZK_GROUP_ZK_AUTH` has such lines.
    :ivar zk_tls: TLS to the servers.
    :ivar zk_tls_ca: PEM file of the CAs that are trusted; empty for the system's.
    :ivar zk_tls_cert: PEM file of the client's certificate chain: its subject is an identity of the scheme `x509`.
    :ivar zk_tls_key: PEM file of its key.
    :ivar zk_tls_check_hostname: whether a server's certificate must be valid for its name in `zk`.
    """

    zk_auth_file: str = ""
    zk_tls: bool = False
    zk_tls_ca: str = ""
    zk_tls_cert: str = ""
    zk_tls_key: str = ""
    zk_tls_check_hostname: bool = True

    @property
    def access(self) -> ZooKeeperAccess:
        """These fields alone, of a configuration that has others."""
        return ZooKeeperAccess(**{field.name: getattr(self, field.name) for field in fields(ZooKeeperAccess)})

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS of a new connection, None without. Files are read each time: a renewed certificate is used.

        :raises UsageError: when a file cannot be read, others may read the key, or files are given without TLS.
        """
        if not self.zk_tls:
            if self.zk_tls_ca or self.zk_tls_cert or self.zk_tls_key:
                raise UsageError("zk_tls_ca, zk_tls_cert or zk_tls_key is given without zk_tls: set zk_tls to true")
            return None
        if bool(self.zk_tls_cert) != bool(self.zk_tls_key):
            raise UsageError("zk_tls_cert and zk_tls_key belong together: give both, or neither")
        try:
            context = ssl.create_default_context(cafile=self.zk_tls_ca or None)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"zk_tls_ca {self.zk_tls_ca} cannot be read as PEM certificates: {error}") from error
        context.check_hostname = self.zk_tls_check_hostname
        if self.zk_tls_cert:
            check_private("zk_tls_key", Path(self.zk_tls_key))
            try:
                # An encrypted key would prompt for its passphrase on the terminal.
                context.load_cert_chain(self.zk_tls_cert, self.zk_tls_key, password="")
            except (OSError, ssl.SSLError) as error:
                files = f"zk_tls_cert {self.zk_tls_cert} and zk_tls_key {self.zk_tls_key}"
                raise UsageError(f"{files} are no certificate with its unencrypted key, in PEM: {error}") from error
        return context

    def credentials(self, env: Mapping[str, str] | None = None) -> Credentials:
        """The credentials of a new session: those of the file, without one the environment's.

        :raises UsageError: when the file cannot be read, others may read it, or a line is malformed.
        """
        if self.zk_auth_file:
            return read_credentials(Path(self.zk_auth_file))
        text = (os.environ if env is None else env).get(AUTH_VARIABLE, "")
        return _parsed(AUTH_VARIABLE, text) if text.strip() else Credentials()


def access_at_open(given: ZooKeeperAccess | None = None, env: Mapping[str, str] | None = None) -> ZooKeeperAccess:
    """`given`, with the environment's values for the fields that have their defaults.

    :raises UsageError: when a variable is malformed.
    """
    environment = os.environ if env is None else env
    values: dict[str, Any] = {}
    for field in fields(ZooKeeperAccess):
        value = getattr(given, field.name) if given is not None else field.default
        variable = _variable(field.name)
        if value == field.default and variable in environment:
            value = typed(variable, environment[variable], type(field.default))
        values[field.name] = value
    return ZooKeeperAccess(**values)


def spark_name(field: str) -> str:
    """The name of a field as an option of Spark: `zk_tls_ca` is `zkTlsCa`."""
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


def spark_options(access: ZooKeeperAccess) -> dict[str, str]:
    """`access` as options of `format("zk_group")`: names of files, and no secret."""
    values = {spark_name(field.name): getattr(access, field.name) for field in fields(ZooKeeperAccess)}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}


def environment_of(access: ZooKeeperAccess) -> dict[str, str]:
    """`access` as environment variables, for another process: names of files, and no secret."""
    values = {_variable(field.name): (getattr(access, field.name), field.default) for field in fields(ZooKeeperAccess)}
    given = {name: value for name, (value, default) in values.items() if value != default}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}


def clear_environment() -> None:
    """Take all variables of access out of this process's environment: of a program with servers of its own."""
    for name in ACCESS_VARIABLES:
        os.environ.pop(name, None)


def variables_in(message: str) -> list[str]:
    """For a message about files: its fields with a value from the environment, and their variables."""
    named = [name for name in ACCESS_HELPS if re.search(rf"\b{name}\b", message)]
    values = {name: os.environ.get(_variable(name), "") for name in named if _variable(name) not in message}
    return [f"{name} from {_variable(name)}" for name, value in values.items() if value and value in message]


def _variable(field: str) -> str:
    return PREFIX + field.upper()


ACCESS_VARIABLES: Final = (AUTH_VARIABLE, *(_variable(field.name) for field in fields(ZooKeeperAccess)))
"""All environment variables of a session's access."""


def identities_of(access: ZooKeeperAccess) -> tuple[str, ...]:
    """The identities of a client as ACLs have them, `scheme:id`. Only the server knows that of its certificate.

    :raises UsageError: as `ZooKeeperAccess.credentials`.
    """
    credentials = access_at_open(access).credentials()
    identities = [f"{SASL}:{credentials.sasl[0]}"] if credentials.sasl else []
    return (*identities, *map(digest_identity, credentials.digests))


def digest_identity(digest: str) -> str:
    """`user:password` as ACLs have it."""
    # ZooKeeper's own scheme (DigestAuthenticationProvider); a password of it is as weak as SHA-1.
    hashed = b64encode(hashlib.sha1(digest.encode(), usedforsecurity=False).digest()).decode()
    return f"{DIGEST}:{digest.partition(':')[0]}:{hashed}"


def read_credentials(file: Path) -> Credentials:
    """The credentials in a file.

    :raises UsageError: when it cannot be read, others may read it, or a line is malformed.
    """
    if str(file).partition(":")[0] in (DIGEST, SASL):
        raise UsageError(
            f"zk_auth_file takes the name of a file with credentials; {AUTH_VARIABLE} takes the credentials"
        )
    if ":" in str(file) and not file.exists():
        raise UsageError(f"zk_auth_file names no file: it may be credentials, which {AUTH_VARIABLE} takes")
    try:
        # A pipe in the place of the file is refused, and not waited for.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_mode("zk_auth_file", file, os.fstat(descriptor))
            data = os.read(descriptor, LARGEST_FILE + 1)
        finally:
            os.close(descriptor)
        if len(data) > LARGEST_FILE:
            raise UsageError(f"zk_auth_file {file} is larger than {LARGEST_FILE} bytes")
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"zk_auth_file {file} is not UTF-8") from None  # the error holds the file's bytes
    except OSError as error:
        raise UsageError(f"zk_auth_file {file} cannot be read: {error.strerror}") from error
    return _parsed(f"zk_auth_file {file}", text)


def check_private(name: str, file: Path) -> None:
    """Refuse a secret file that others may read: as PostgreSQL's, 0600, or 0640 where root owns it.

    :raises UsageError: when they may, or the file is missing.
    """
    try:
        status = file.stat()
    except OSError as error:
        raise UsageError(f"{name} {file} cannot be read: {error.strerror}") from error
    _check_mode(name, file, status)


def _check_mode(name: str, file: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{name} {file} is no file")
    allowed = stat.S_IRWXU | (stat.S_IRGRP if found.st_uid == 0 else 0)
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~allowed:
        raise UsageError(f"{name} {file} may be read by others: chmod 600 {file}")


def _parsed(place: str, text: str) -> Credentials:
    """The credentials in `text`. No message repeats a line: it may hold a password."""
    digests: list[str] = []
    sasl: tuple[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        scheme, _, rest = line.strip().partition(":")
        user, colon, password = rest.partition(":")
        if scheme not in (DIGEST, SASL) or not user or not colon or not password:
            raise UsageError(f"{place}: line {number} is not digest:USER:PASSWORD or sasl:USER:PASSWORD")
        if scheme == DIGEST:
            digests.append(rest)
        elif sasl is not None:
            raise UsageError(f"{place}: line {number} is the second of sasl, and a session has one user")
        else:
            sasl = user, password
    if not digests and sasl is None:
        raise UsageError(f"{place} has no line digest:USER:PASSWORD or sasl:USER:PASSWORD")
    return Credentials(tuple(digests), sasl)


PROBE_S: Final = 1.0
_REPLY: Final = b"ruok is not executed"
_REMEDIES: Final = {
    9: "check the clocks of both",  # X509_V_ERR_CERT_NOT_YET_VALID
    10: "renew it",  # X509_V_ERR_CERT_HAS_EXPIRED
    62: "name the server in --zk as its certificate does",  # X509_V_ERR_HOSTNAME_MISMATCH
    64: "name the server in --zk as its certificate does",  # X509_V_ERR_IP_ADDRESS_MISMATCH
}


class TlsFiles:
    """The TLS of a session's connections, from files that are read for each of them: a renewed certificate is used.

    Files that become unusable do not end the session: the last usable ones serve its reconnects.

    :raises UsageError: when they are unusable at the start.
    """

    def __init__(self, access: ZooKeeperAccess) -> None:
        self._access = access
        self._last = access.tls_context()
        self._problem = ""

    def context(self) -> ssl.SSLContext | None:
        """The TLS of a new connection, None without."""
        try:
            self._last, self._problem = self._access.tls_context(), ""
        except UsageError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("TLS files unusable, using those read before: reason=%s", error)
        return self._last


def secured(connection: socket.socket, context: ssl.SSLContext, hostname: str, timeout_s: float) -> ssl.SSLSocket:
    """The connection after its TLS handshake.

    :raises OSError: when the handshake fails; the connection is closed.
    """
    connection.settimeout(timeout_s)
    try:
        return context.wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise


def refusal_of(error: BaseException | None) -> str:
    """Why TLS failed, when a retry fails likewise; empty for any other error."""
    seen: list[BaseException] = []  # errors may cause each other
    while error is not None and error not in seen and not isinstance(error, ssl.SSLError):
        seen.append(error)
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _REMEDIES.get(error.verify_code, "check zk_tls_ca")
        return f"its certificate is refused ({error.verify_message.rstrip('.')}): {remedy}"
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return f"it refuses this client's certificate or TLS ({error.reason}): check zk_tls_cert and zk_tls_key"
    return ""


def mismatch(host: str, port: int, has_tls: bool) -> str:
    """Why a server closes the connection: only one of server and client has TLS; otherwise empty."""
    if has_tls:
        return "it has no TLS on this port: check the port in --zk, or unset zk_tls" if _is_plain(host, port) else ""
    return "it has TLS on this port: set zk_tls and zk_tls_ca" if _has_tls(host, port) else ""


def _is_plain(host: str, port: int) -> bool:
    """Whether a server answers a four letter word without TLS; it also answers one outside its whitelist."""
    with suppress(OSError), socket.create_connection((host, port), PROBE_S) as probe:
        probe.sendall(b"ruok")
        answer = probe.recv(len(_REPLY))
        return answer == b"imok" or answer == _REPLY
    return False


def _has_tls(host: str, port: int) -> bool:
    """Whether a server begins a TLS handshake, with any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), PROBE_S) as probe, context.wrap_socket(probe):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
