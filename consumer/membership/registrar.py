"""The registration of a consumer: one session, one incarnation and one lease at a time, and a backoff between them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from coordinator.zk.errors import BadData, NotAuthorized, Retryable, SessionLost, StoreError, ZooKeeperUnreachable
from coordinator.zk.lease import Heard, Lease, LeaseLog
from coordinator.zk.runtime import Runtime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Node, Store, StoreFactory
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import STATIC, Registration

from ..config import ConsumerConfig, Subscription
from .channel import FencedChannel
from .client_assignment import ClientAssignment
from .context import MemberContext
from .holding import Consumption
from .keeper import Keeper
from .registration import changed_registration, register, registration_of

log = logging.getLogger(__name__)

MOST_TOPICS = 100
"""Topics whose existence is checked with a registration."""

CREATE_IT = (
    "check the name, or create it (zk-coordinator topics create {topic}; for Kafka 4 topics sync): "
    "it is assigned as soon as it exists"
)

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0


class Registrar:
    """Registers a consumer, and again after an incarnation has ended. For the poll side.

    :param consumption: None for a member of a group that assigns no partitions.
    :param client: None without client-side assignment.

    :ivar store: the session; None when there is none.
    :ivar fenced: the channel of the incarnation, None without one.  :ivar lease: its lease.
    :ivar registrations: incarnations that began.
    """

    def __init__(
        self,
        context: MemberContext,
        open_store: StoreFactory,
        keeper: Keeper,
        consumption: Consumption | None,
        client: ClientAssignment | None,
    ) -> None:
        self._context = context
        self._open_store = open_store
        self._opened_at = float("-inf")
        self._last_lease: Lease | None = None
        self._keeper = keeper
        self._subscription = consumption.subscription if consumption is not None else None
        self._seal_interval_ms = consumption.seal_interval_ms if consumption is not None else 0
        self._client = client
        self._own_incarnations: set[str] = set()
        self._is_rejoining = False
        self._missing: set[str] = set()
        self.backoff = Backoff(context.runtime)
        self.store: Store | None = None
        self.fenced: FencedChannel | None = None
        self.lease: Lease | None = None
        self._lease_log = LeaseLog(context.runtime, f"consumer {context.consumer}")
        self.registrations = 0

    @property
    def live(self) -> FencedChannel | None:
        """The channel while the incarnation lives."""
        fenced = self.fenced  # read once: the keeper and worker threads use it, too
        return fenced if fenced is not None and fenced.over is None else None

    def subscribe(self, subscription: Subscription) -> None:
        """Register with this subscription from now on.

        :raises UsageError: when an assignor's metadata for it is too large; nothing has changed then.
        """
        if self._client is not None:
            self._client.offer(subscription)
        self._subscription = subscription
        self.rejoin()

    def rejoin(self) -> None:
        """Let the next `update` write the registration: the offered protocols have changed."""
        self._is_rejoining = True
        self._context.wake.set()

    def registered(self) -> FencedChannel | None:
        """The channel of a living incarnation; None while the backoff runs or ZooKeeper does not answer.

        :raises IncarnationOver: when the incarnation has ended, once.
        :raises SessionLost: when its session has.
        :raises FencedInstanceId: when another process has taken the name.
        :raises ZooKeeperUnreachable: when no server has answered since the consumer was made.
        """
        fenced, store = self.fenced, self.store
        self._lease_log.look(self.lease)
        if fenced is None:
            return None if self.backoff.is_running else self._register()
        if fenced.over is not None:
            self.fenced = None
            raise fenced.over
        if store is not None and store.lost:
            raise SessionLost("the session with ZooKeeper is over")
        return fenced

    def _register(self) -> FencedChannel | None:
        context = self._context
        self.backoff.attempt()
        try:
            store = self._open()
        except (ZooKeeperUnreachable, NotAuthorized):
            if self.registrations == 0:
                raise
            return None
        registration = self._registration(store, context.runtime.random_id())
        self._is_rejoining = False
        # Recorded before it is sent: when the reply is lost, an existing znode is still this process's own.
        self._own_incarnations.add(registration.incarnation)
        own = frozenset(self._own_incarnations) if self.registrations else None
        channel, version = register(store, context.paths, context.consumer, registration, own, *self._looks_at_topics())
        self._own_incarnations = {channel.incarnation}
        fenced = FencedChannel(store, context.runtime, context.paths, context.consumer, channel, version)
        lease = self._lease(store, fenced.check)
        with suppress(Retryable):  # else the keeper renews it: no reason for another incarnation
            lease.renew()
        self.fenced, self.lease = fenced, lease
        self._keeper.start(store, fenced, lease)
        context.wake.set()
        self.registrations += 1
        context.meter.registered()
        context.trace.registered(channel.incarnation, store.session_id)
        log.info(
            "registered: group=%s consumer=%s incarnation=%s",
            context.config.group, context.consumer, channel.incarnation,
        )  # fmt: skip
        return fenced

    def _open(self) -> Store:
        """The session, a new one when the last has ended.

        :raises ZooKeeperUnreachable: when no server answers.
        """
        if self.store is not None and not self.store.lost:
            return self.store
        self.close()
        self._opened_at = self._context.runtime.monotonic()
        self.store = self._open_store()
        self.store.add_listener(lambda state: self._context.wake.set())
        return self.store

    def _lease(self, store: Store, read_fence: Callable[[], None]) -> Lease:
        """A lease for another incarnation on this session, which continues the last one."""
        heard = self._last_lease.heard if self._last_lease else Heard(self._opened_at)
        self._last_lease = Lease(store, self._context.runtime, read_fence, "consumer", heard)
        return self._last_lease

    def close(self) -> None:
        """End the session."""
        store, self.store, self._last_lease = self.store, None, None
        if store is not None:
            store.close()

    def _looks_at_topics(self) -> tuple[list[str], Callable[[list[Node | None]], None]]:
        """The znodes of the subscribed topics, and what reports each missing one, once."""
        context, subscription = self._context, self._subscription
        is_static = subscription is not None and subscription.pattern == STATIC
        names = sorted(subscription.topics.keys() - self._missing)[:MOST_TOPICS] if subscription and is_static else []
        paths = [Brokers(context.config.brokers_path).topic(name) for name in names]

        def see(nodes: list[Node | None]) -> None:
            for name, path, node in zip(names, paths, nodes, strict=True):
                if node is None and name not in self._missing:
                    self._missing.add(name)
                    log.warning(
                        "topic missing: group=%s consumer=%s topic=%s path=%s remedy=%s",
                        context.config.group, context.consumer, name, path, CREATE_IT.format(topic=name),
                    )  # fmt: skip

        return paths, see

    def _registration(self, store: Store, incarnation: str) -> Registration:
        client = self._client.offer(self._subscription) if self._client is not None else None
        config, interval_ms = self._context.config, self._seal_interval_ms
        return registration_of(config, self._subscription, incarnation, store, interval_ms, client)

    def update(self, fenced: FencedChannel) -> None:
        """Write a registration that has changed in place: the group is rebalanced.

        :raises StoreError: when ZooKeeper refused or did not answer: call again.
        """
        store, context = self.store, self._context
        if not self._is_rejoining or store is None:
            return
        self._is_rejoining = False  # an invalid offer is logged once
        try:
            registration = self._registration(store, fenced.incarnation)
            fenced.guarded(changed_registration(store, context.paths, context.consumer, registration))
        except (StoreError, BadData) as error:
            self._is_rejoining = True
            if isinstance(error, StoreError):
                raise
            log.warning("subscription change deferred: consumer=%s reason=%s", context.consumer, error)
            return
        log.info("subscription changed: group=%s consumer=%s", context.config.group, context.consumer)

    def forget(self) -> None:
        """The incarnation is over."""
        self.fenced = None
        self.lease = None


class Backoff:
    """The waits between the registrations of one consumer."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._not_before = float("-inf")
        self._attempts = 0
        self._refusals = 0

    @property
    def is_running(self) -> bool:
        """Whether another registration must wait."""
        return self._runtime.monotonic() < self._not_before

    def attempt(self) -> None:
        """A registration begins."""
        self._wait(self._attempts)
        self._attempts += 1

    def refused(self) -> None:
        """The group refused the member. A registration alone, which succeeded, does not reset the backoff."""
        self._refusals += 1
        self._wait(self._refusals)

    def succeeded(self, is_member: bool) -> None:
        """The consumer has read its channel.

        :param is_member: whether it has also applied a command.
        """
        self._attempts = 0
        self._refusals = 0 if is_member else self._refusals

    def _wait(self, times: int) -> None:
        wait_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(times, 10))
        self._not_before = self._runtime.monotonic() + wait_s


def opener_of(config: ConsumerConfig, kind: str) -> StoreFactory:
    """Opens sessions for a consumer, as its configuration has them.

    :param kind: with the consumer's name the client in log lines: `consumer`, `slot`, `member`.
    """
    connect_timeout_s = config.connect_timeout_ms / 1000
    client = f"{kind} {config.consumer}"
    return kazoo_factory(config.zk, config.session_timeout_ms, connect_timeout_s, client, config.access)
