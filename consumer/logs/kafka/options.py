"""Opening Kafka as a log: by URL, by `bootstrap_servers` or by the brokers registered in ZooKeeper, with its options.

Options of librdkafka: the defaults, the user's, and the reserved ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from zk_group.coordinator.zk.errors import MissingProgram, UsageError
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.values import PREFIX, variables
from zk_group.coordinator.zk.znodes.paths import Brokers, shown
from zk_group.coordinator.zk.znodes.records import PLAINTEXT, registered_brokers

from ..base import Log, LogError

SCHEME = "kafka:"
CONNECT_TIMEOUT_S = 5.0
_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):\d{1,5}")
ENVIRONMENT = f"{PREFIX}KAFKA_"
"""`ZK_GROUP_KAFKA_SASL_PASSWORD` is `sasl.password`: librdkafka's names have dots and no underscores."""

FROM_FILE = ".file"
"""`sasl.password.file` names a file that holds `sasl.password`."""

SECRETS = ("password", "passphrase", "secret", "token", "key.pem", "oauthbearer.config")
"""An option whose name has one of these in it is a secret."""

LEAST_LINE = 8
"""Minimum length of a secret's line that is redacted: a shorter one, as the last of a key, might be any word."""

GROUP = "the group is ours, not Kafka's"
COMMITS = "offsets are the group's in ZooKeeper, never committed to Kafka"
REFUSED = {
    **dict.fromkeys(("bootstrap.servers", "metadata.broker.list"), "give bootstrap_servers"),
    **dict.fromkeys(("group.id", "group.protocol", "group.remote.assignor"), GROUP),
    "group.instance.id": f"{GROUP}: give group_instance_id",
    "partition.assignment.strategy": f"{GROUP}: give protocols",
    **dict.fromkeys(("enable.auto.commit", "enable.auto.offset.store", "auto.commit.enable"), COMMITS),
    "auto.offset.reset": "an offset out of range is never passed over silently",
    "enable.partition.eof": "the end of a partition tells which offsets hold no record",
    "plugin.library.paths": "a configuration may not load code",
    "statistics.interval.ms": "the health of the brokers is read from them",
}
"""Option -> why it cannot be set."""

DEFAULTS = {
    "client.id": "zk-group-coordinator",
    "isolation.level": "read_committed",
    "check.crcs": "true",
    # With its default of a second librdkafka pauses whenever its queue was full: a fifth of the speed.
    "fetch.queue.backoff.ms": "5",
    "queued.max.messages.kbytes": "16384",
    # Larger responses, of 50 MB, take twice the CPU per record: they exceed the cache.
    "fetch.max.bytes": "16777216",
    # One request at a time per broker: a new partition waits for the pending fetch to time out.
    "fetch.wait.max.ms": "100",
    # A sanity limit only; a broker may allow records of any size.
    "receive.message.max.bytes": "1073741824",
    # As Kafka's own clients. With jitter half as much more: a broker that is back is asked within 1.5 s.
    "reconnect.backoff.max.ms": "1000",
    # Refresh interval of a topic that does not exist (yet).
    "topic.metadata.refresh.interval.ms": "30000",
    "topic.metadata.propagation.max.ms": "1000",
    "log_level": "0",  # errors are signals, and logged by us
}
FIXED = {
    "group.id": "zk-group-coordinator",  # required, for a group coordinator of Kafka's that is never used
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "allow.auto.create.topics": "false",
    "statistics.interval.ms": "5000",
}


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
    with closing(_opened(place)) as store:
        found = registered_brokers(store, brokers, protocol)
    if not found:
        raise LogError(f"no broker in {brokers.ids} of {place.zk} speaks {protocol.upper()}")
    return ",".join(found)


def _opened(place: KafkaPlace) -> Store:
    return open_kazoo(place.zk, 10_000, CONNECT_TIMEOUT_S, make_chroot=False, access=place.access)


def kafka_options(given: Mapping[str, str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """librdkafka's options, without the servers. `given` has precedence over the environment.

    :param given: librdkafka's options, with or without the prefix `kafka.`.
    :raises UsageError: when one of them is reserved, or a file cannot be read; the message has no secret.
    """
    named = {name.removeprefix("kafka."): str(value) for name, value in given.items()}
    found = {**_from_environment(os.environ if env is None else env), **named}
    try:
        found = dict(_read(name, value) for name, value in found.items())
        for name in found:
            if name in REFUSED:
                raise UsageError(f"kafka.{name} cannot be set: {REFUSED[name]}")
    except UsageError as error:
        raise UsageError(with_sources(str(error), named, env)) from error
    return {**DEFAULTS, **found, **FIXED}


def with_sources(message: str, given: Collection[str] = (), env: Mapping[str, str] | None = None) -> str:
    """`message` with the environment variables of the options that it names, but for those that are `given`."""
    names = [name for name in _from_environment(os.environ if env is None else env) if name not in given]
    named = [name for name in names if re.search(rf"(?<![\w]){re.escape(name)}(?![\w.])", message)]
    sources = ", ".join(f"{name} from {ENVIRONMENT}{name.upper().replace('.', '_')}" for name in named)
    return f"{message} ({sources})" if sources else message


def is_secret(name: str) -> bool:
    """Whether an option's value must never be shown."""
    return any(word in name for word in SECRETS)


def without_secrets(text: str, options: Mapping[str, str]) -> str:
    """`text` without the secrets of `options`, and without single lines of multi-line ones, as a PEM key."""
    found = set()
    for name, value in options.items():
        if is_secret(name):
            lines = [line.strip() for line in value.splitlines()]
            found |= {value, value.strip(), " ".join(value.split())}
            found |= {line for line in lines if len(line) >= LEAST_LINE}
    for secret in sorted(found - {""}, key=len, reverse=True):  # longest first: one may contain another
        text = text.replace(secret, "***")
    return text


def _from_environment(env: Mapping[str, str]) -> dict[str, str]:
    found = variables((name for name in env if name.startswith(ENVIRONMENT) and name != ENVIRONMENT), env)
    return {name.removeprefix(ENVIRONMENT).lower().replace("_", "."): value for name, value in found.items()}


def _read(name: str, value: str) -> tuple[str, str]:
    secret = name.removesuffix(FROM_FILE)
    if secret == name or not is_secret(secret):
        return name, value
    try:
        return secret, Path(value).read_text().strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"kafka.{name} names a file that cannot be read: {shown(value)}: {error}") from error
