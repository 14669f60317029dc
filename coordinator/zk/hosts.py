"""The connect string of ZooKeeper, `host:port,host:port/chroot`: what `--zk` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .errors import UsageError

DEFAULT_PORT: Final = 2181
EXAMPLE: Final = "as in --zk zk1:2181,zk2:2181/groups"

Address = tuple[str, int]


def parsed_hosts(hosts: str) -> tuple[Sequence[Address], str]:
    """The servers, and the chroot, "" for none. A server without a port has 2181. Blanks around each are left out.

    :raises UsageError: when it is not `host:port,host:port/chroot`.
    """
    if not hosts.strip():
        raise UsageError(f"--zk is empty: name the ZooKeeper servers, {EXAMPLE}")
    servers, slash, rest = hosts.strip().partition("/")
    if not servers.strip():
        raise UsageError(f"--zk {hosts!a} names no server: the servers stand before the chroot, {EXAMPLE}")
    if rest.startswith("/") and servers.endswith(":"):
        raise UsageError(f"--zk {hosts!a} is a URL: give servers and chroot only, {EXAMPLE}")
    return [_address(hosts, server.strip()) for server in servers.split(",")], _chroot(hosts, slash + rest)


def checked_hosts(hosts: str) -> str:
    """`hosts` as ZooKeeper's clients take it, without blanks; each server has its port.

    :raises UsageError: when it is not a connect string.
    """
    servers, chroot = parsed_hosts(hosts)
    addresses = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers)
    return ",".join(addresses) + chroot


def _address(hosts: str, server: str) -> Address:
    host, colon, port = server.rpartition(":") if not server.endswith("]") else (server, "", "")
    if not colon:
        host, port = server, str(DEFAULT_PORT)
    is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536
    is_host = host and (":" not in host or (host[0] == "[" and host[-1] == "]"))
    if not is_host or not is_port or any(not char.isprintable() or char in " @" for char in host):
        raise UsageError(f"--zk {hosts!a}: {server!a} is not host:port, {EXAMPLE}")
    return host.strip("[]"), int(port)


def _chroot(hosts: str, chroot: str) -> str:
    names = [name for name in chroot.split("/") if name]
    if "," in chroot:
        raise UsageError(f"--zk {hosts!a}: the chroot is given once, after all servers, without a comma, {EXAMPLE}")
    if any(name in (".", "..") for name in names) or not chroot.isprintable():
        raise UsageError(f"--zk {hosts!a}: the chroot is not a path as /a or /a/b, {EXAMPLE}")
    if names[:1] == ["zookeeper"]:
        raise UsageError("/zookeeper is reserved for ZooKeeper: use another chroot in --zk")
    return "".join(f"/{name}" for name in names)
