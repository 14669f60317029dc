"""Two real Kafka brokers of one cluster, one of which a test kills, suspends, cuts off or gives other passwords."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.kafka import USERS, Kafka, require_kafka, sasl_lines
from tests.support.proxy import Proxy
from zk_group.coordinator.zk.embedded.directory import HOST, Ports, choose_ports
from zk_group.coordinator.zk.embedded.kafka import Broker, KafkaConfig

BROKERS = (0, 2)
"""The ids."""

HEAP_MB = 128
SESSION_MS = 4000
"""A killed broker may register again after so long, and one that stands still is taken for dead: longer than a busy
machine holds up one that is well."""

PASSWORDS = {
    0: {"bob": "a password of bob", "carol": "a password of carol"},
    2: {"bob": "another one of bob", "carol": "another one of carol"},
}
"""Broker -> the users that it knows with a password of its own; those of `USERS` have the same at both."""


class TwoBrokers(Kafka):
    """Two brokers. Their clients with SASL come through a proxy before each; without, and between them, none is.

    :ivar proxies: by the broker's id.
    """

    def __init__(self, zk: str, brokers: Mapping[int, Broker], proxies: Mapping[int, Proxy]) -> None:
        first, *others = brokers.values()
        super().__init__(first, zk, others)
        self.proxies = proxies
        self.sasl_url = f"kafka://{','.join(proxy.hosts for proxy in proxies.values())}"

    def controller(self) -> int:
        """The id of the broker that is the controller."""
        return int(self.admin.list_topics(timeout=10).controller_id)

    def set_password(self, broker_id: int, user: str, password: str) -> None:
        """Let a broker know a user by another password: it restarts."""
        broker = self.brokers[broker_id]
        known = PASSWORDS[broker_id][user]
        path = broker.directory / "server.properties"
        text = path.read_text()
        assert f'user_{user}="{known}"' in text
        broker.stop()
        path.write_text(text.replace(f'user_{user}="{known}"', f'user_{user}="{password}"'))
        self.restart(broker_id)


def sasl(user: str, password: str) -> dict[str, str]:
    """librdkafka's options for a user."""
    options = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
    return {**options, "sasl.username": user, "sasl.password": password}


def _proxy(ports: Ports) -> Proxy:
    """A proxy whose own port is none of the broker's: they are chosen, and not bound yet."""
    while True:
        proxy = Proxy(f"{HOST}:{ports.quorum}")
        if proxy.port not in (ports.client, ports.quorum, ports.election):
            return proxy


@contextmanager
def two_brokers(folder: Path, zk: str) -> Iterator[TwoBrokers]:
    """Two brokers that register in `zk`. Skipped where none can be had; not in CI."""
    require_kafka()
    with ExitStack() as stack:
        proxies: dict[int, Proxy] = {}
        brokers: dict[int, Broker] = {}
        for number in BROKERS:
            ports = choose_ports(1, None)[0]
            proxies[number] = stack.enter_context(_proxy(ports))
            advertised = f"PLAINTEXT://{HOST}:{ports.client},SASL_PLAINTEXT://{proxies[number].hosts}"
            config = KafkaConfig(
                zookeeper=zk,
                heap_mb=HEAP_MB,
                extra={
                    **sasl_lines(ports, {**USERS, **PASSWORDS[number]}),
                    "zookeeper.session.timeout.ms": str(SESSION_MS),
                    "advertised.listeners": advertised,
                },
                broker_id=number,
            )
            broker = Broker(folder / f"broker-{number}", config, ports.client)
            brokers[number] = stack.enter_context(broker)
        kafka = TwoBrokers(zk, brokers, proxies)
        kafka.wait_ready()
        yield kafka
