"""Opening Kafka as a log: by URL, by `bootstrap_servers` or by the brokers registered in ZooKeeper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.zk.errors import MissingProgram, UsageError
from coordinator.zk.security.access import ZooKeeperAccess
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Store
from coordinator.zk.znodes.brokers import PLAINTEXT, registered_brokers
from coordinator.zk.znodes.names import shown
from coordinator.zk.znodes.paths import Brokers

from ..base import Log, LogError
from .options import kafka_options

SCHEME = "kafka:"
CONNECT_TIMEOUT_S = 5.0
_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):\d{1,5}")


@dataclass(frozen=True, slots=True)
class KafkaPlace:
    """Kafka's place besides the URL.

    :ivar zk: the ensemble of the brokers' registrations, `host:port,host:port/chroot`.
    :ivar brokers_path: parent znode of the registrations.
    :ivar bootstrap_servers: `host:port,host:port`; then ZooKeeper is not read.
    :ivar options: librdkafka's own, with the prefix `kafka.` or without.
    :ivar access: credentials and TLS for ZooKeeper; None for the environment's.
    """

    zk: str = ""
    brokers_path: str = "/brokers"
    bootstrap_servers: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    access: ZooKeeperAccess | None = None


def open_kafka(url: str, place: KafkaPlace) -> Log:
    """The log `kafka:` or `kafka://host:port,host:port`.

    :raises UsageError: when the URL or an option is wrong, or the brokers are given nowhere.
    :raises MissingProgram: when the extra `kafka` is not installed.
    """
    try:
        from .connection import TopicRegistry
        from .source import KafkaLog
    except ModuleNotFoundError as error:
        what = f"{error.name}, with which Kafka is read, is not installed"
        raise MissingProgram(f"{what}: pip install 'zk-group-coordinator[kafka]'") from error

    servers = bootstrap_servers(url, place.bootstrap_servers)
    options = kafka_options(place.options)
    registry = TopicRegistry(lambda: _opened(place), Brokers(place.brokers_path)) if place.zk else None
    if servers:
        return KafkaLog(lambda: servers, options, registry)
    if not place.zk:
        raise UsageError("name Kafka's brokers: kafka://HOST:PORT,HOST:PORT, or bootstrap_servers")
    protocol = options.get("security.protocol", PLAINTEXT)
    return KafkaLog(lambda: _registered(place, protocol), options, registry)


def bootstrap_servers(url: str, given: str = "") -> str:
    """The servers in `url`, else `given`; empty without either.

    :raises UsageError: when they are not of the form host:port,host:port.
    """
    rest = url.removeprefix(SCHEME)
    if rest and not rest.startswith("//"):
        raise UsageError(f"{shown(url)} is no place of Kafka: write kafka: or kafka://HOST:PORT,HOST:PORT")
    named = rest.removeprefix("//").rstrip("/") or given
    servers = [server.strip() for server in named.split(",") if server.strip()]
    for server in servers:
        if not _SERVER.fullmatch(server):
            where = f" in {shown(url)}" if named is not given else ""
            raise UsageError(f"{shown(server)} is no server of Kafka{where}: write HOST:PORT,HOST:PORT")
    return ",".join(servers)


def _registered(place: KafkaPlace, protocol: str) -> str:
    """The servers registered in ZooKeeper.

    :raises LogError: when there are none.
    """
    brokers = Brokers(place.brokers_path)
    store = _opened(place)
    try:
        found = registered_brokers(store, brokers, protocol)
    finally:
        store.close()
    if not found:
        raise LogError(f"no broker in {brokers.ids} of {place.zk} speaks {protocol.upper()}")
    return ",".join(found)


def _opened(place: KafkaPlace) -> Store:
    return open_kazoo(place.zk, 10_000, CONNECT_TIMEOUT_S, make_chroot=False, access=place.access)
