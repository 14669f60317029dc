"""Collection: what dead consumers leave behind; and what collectors of a term share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from .metrics import CoordinatorMetrics
from .problems import Findings, Problems
from .reading import Memory
from .term import Term
from .zk.errors import BadData, Refused
from .zk.lease import Lease
from .zk.names import is_name
from .zk.paths import COORDINATOR_EPOCH, GroupPaths
from .zk.records import parsed_channel
from .zk.runtime import Runtime
from .zk.store import Check, Delete, Node, Operation, Store

log = logging.getLogger(__name__)


class FencedCommits:
    """Commits under a term's fence, while its lease is held."""

    def __init__(self, store: Store, term: Term, lease: Lease) -> None:
        self._store = store
        self._term = term
        self._lease = lease

    @property
    def may_act(self) -> bool:
        """Whether the lease is held."""
        return self._lease.is_held

    def commit(self, operations: Sequence[Operation], what: str) -> bool:
        """Do all of it; False when it was refused, and the next round must look again.

        :raises EpochOver: when the term is over.
        :raises Retryable: when nobody answered.
        """
        if not self.may_act:
            return False
        try:
            self._store.commit([Check(COORDINATOR_EPOCH, self._term.fence), *operations])
        except Refused as refused:
            if refused.path == COORDINATOR_EPOCH:
                self._term.check(self._store)
            log.info("collection waits for the next round: what=%s refused=%s", what, refused.path)
            return False
        return True


class ServerClock:
    """ZooKeeper's own wall clock: when it wrote this term's epoch, and what has passed since on the monotonic clock.

    Ages of znodes are their server's times against this, never against this machine's wall clock, which may be days
    ahead: what it would then take for dead could be alive. A machine that slept counts too little, and collects later.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._began: float | None = None
        self._began_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970; 0, so that nothing is old, while the epoch cannot be read.

        :raises Retryable: when ZooKeeper did not answer.
        """
        if self._began is None:
            self.begin()
        if self._began is None:
            return 0
        return self._began_ms + round(1000 * (self._runtime.monotonic() - self._began))

    def begin(self) -> None:
        """Count from now, right after the election: begun only when somebody asks, it would be behind by so much.

        :raises Retryable: when ZooKeeper did not answer.
        """
        node = self._store.get(COORDINATOR_EPOCH)
        if node is not None:
            self._began, self._began_ms = self._runtime.monotonic(), node.stat.mtime_ms


class Collector:
    """Collects what dead consumers of one group after the other have left, for one term. Every removal is fenced."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        commits: FencedCommits,
        clock: ServerClock,
        problems: Problems,
        channel_retention_ms: int,
        metrics: CoordinatorMetrics | None = None,
    ) -> None:
        self._store = store
        self._commits = commits
        self._clock = clock
        self._problems = Findings(problems)
        self._channel_retention_ms = channel_retention_ms
        self._metrics = metrics or CoordinatorMetrics()
        self._memory = Memory(runtime)

    def collect(self, groups: Iterable[str]) -> None:
        """One round over `groups`.

        :raises Retryable: when ZooKeeper did not answer; the next round goes on.
        """
        for group in groups:
            self._collect_channels(GroupPaths(group))
        self._memory.forget_unseen()
        self._problems.done()

    def _collect_channels(self, paths: GroupPaths) -> None:
        """Remove channels whose consumer is long gone.

        Not before `channel_retention_ms`: a channel that is made anew has version 0 again, and with it the fence that
        keeps a late writer of an earlier life out. No session lives that long without an answer.
        """
        names = names_below(self._store, paths.channels)
        channels = self._store.get_many([paths.channel(name) for name in names])
        ids = self._store.get_many([paths.id(name) for name in names])
        for name, channel, member in zip(names, channels, ids, strict=True):
            if (
                channel is None
                or member is not None
                or channel.stat.children
                or not self._is_over(paths, name, channel)
            ):
                continue
            if self._commits.commit([Delete(paths.channel(name), channel.stat.version)], f"channel of {name}"):
                log.info("collected: group=%s channel=%s", paths.group, name)
                self._metrics.collected(paths.group, channels=1)

    def _is_over(self, paths: GroupPaths, name: str, node: Node) -> bool:
        try:
            channel = parsed_channel(paths.channel(name), node.data)
        except BadData as error:
            self._problems.report(paths.channel(name), str(error))
            return False
        seen_s = self._memory.age_s(paths.channel(name), str(node.stat.mzxid))
        age_ms = self._clock.now_ms() - node.stat.mtime_ms
        watched_long_enough = seen_s >= 2 * self._store.negotiated_timeout_s
        return (
            not channel.is_live and not channel.running and age_ms >= self._channel_retention_ms and watched_long_enough
        )


def names_below(store: Store, path: str) -> list[str]:
    """The usable names of a znode's children, in order."""
    listing = store.children(path)
    return sorted(name for name in (listing.names if listing else ()) if is_name(name))
