"""A coordinator's term: its shared context, and its only write path, which is fenced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..zk.errors import EpochOver, OutcomeUnknown, RebalanceFailed, Refused, WriteDenied
from ..zk.lease import Lease
from ..zk.runtime import FirstLines, Runtime
from ..zk.store import MAX_OPERATIONS, Check, Create, Delete, Operation, SetData, Store
from ..zk.update import clear_below
from ..zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, TURN_TIMES, parents_of
from ..zk.znodes.records import MOST_GROUPS, TurnTimes
from .config import CoordinatorConfig
from .elector import Election
from .metrics import CoordinatorMetrics
from .reading import Problems


class ServerClock:
    """ZooKeeper's own wall clock: the write time of this term's epoch, plus the monotonic time since.

    Ages of znodes are their server's times against this clock, never against this host's, which may be days ahead: live
    znodes would look dead. A host that slept counts too little, and collects later.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._began: float | None = None
        self._began_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970; 0, so that nothing is old, while the epoch is unreadable.

        :raises Retryable: when ZooKeeper did not answer.
        """
        if self._began is None:
            self.begin()
        if self._began is None:
            return 0
        return self._began_ms + round(1000 * (self._runtime.monotonic() - self._began))

    def begin(self) -> None:
        """Start counting, right after the election: a later start would make the clock late by the difference.

        :raises Retryable: when ZooKeeper did not answer.
        """
        node = self._store.get(COORDINATOR_EPOCH)
        if node is not None:
            self._began, self._began_ms = self._runtime.monotonic(), node.stat.mtime_ms


LEAST_MS_PER_S = 10
"""A group below this share of a handler does not delay the others noticeably."""


class TurnTimer:
    """Sums the seconds of turns by group, for one term."""

    def __init__(self, runtime: Runtime, epoch: int) -> None:
        self._runtime = runtime
        self._epoch = epoch
        self._lock = runtime.lock()
        self._seconds: dict[str, float] = {}
        self._since = runtime.monotonic()

    def took(self, group: str, seconds: float) -> None:
        """A turn of `group` took so long."""
        with self._lock:
            self._seconds[group] = self._seconds.get(group, 0.0) + seconds

    def since_last(self) -> TurnTimes:
        """The record of the time since the last call: the groups that cost most."""
        with self._lock:
            now = self._runtime.monotonic()
            passed_s = max(now - self._since, 0.001)
            rates = {group: round(1000 * seconds / passed_s) for group, seconds in self._seconds.items()}
            self._seconds, self._since = {}, now
        most = sorted(rates, key=lambda group: (-rates[group], group))[:MOST_GROUPS]
        return TurnTimes(self._epoch, {group: rates[group] for group in most if rates[group] >= LEAST_MS_PER_S})


log = logging.getLogger(__name__)

CLEARED_LEVELS = 3
"""Levels of unexpected znodes that one refused write removes."""

FENCED = ("bad-version", "no-node")
"""Reasons of a multi's refusal when the epoch is over."""


class LeaseLapsed(Exception):
    """The lease has expired without a response of ZooKeeper; the turn is retried after its renewal."""


class Term:
    """The context of a term, from the election until another coordinator is elected.

    :ivar epoch: its number.
    :ivar fence: the data version of `/consumers/coordinator_epoch` that identifies it.
    :ivar lease: while it is held, the term may write.
    :ivar clock: ZooKeeper's.
    :ivar turn_times: sums the time that the turns of each group take.
    :ivar lines: bounds the log lines of collectors.
    """

    def __init__(
        self,
        election: Election,
        store: Store,
        runtime: Runtime,
        config: CoordinatorConfig,
        problems: Problems,
        metrics: CoordinatorMetrics | None = None,
    ) -> None:
        self.epoch = election.epoch
        self.fence = election.fence
        self.store = store
        self.runtime = runtime
        self.config = config
        self.problems = problems
        self.metrics = metrics or CoordinatorMetrics()
        self.clock = ServerClock(store, runtime)
        self.turn_times = TurnTimer(runtime, election.epoch)
        self.lease = Lease(store, runtime, self.check, "coordinator")
        self.lines = FirstLines(runtime)

    def check(self) -> None:
        """Read the fence.

        :raises EpochOver: when it has changed, or this session no longer holds the coordinator's znode.
        """
        epoch, coordinator = self.store.get_many([COORDINATOR_EPOCH, COORDINATOR])
        if epoch is None or epoch.stat.version != self.fence:
            raise self._over()
        if coordinator is None or coordinator.stat.ephemeral_owner != self.store.session_id:
            raise EpochOver(f"epoch {self.epoch} is over: the coordinator's znode is gone")

    def commit(self, operations: Sequence[Operation]) -> None:
        """Commit under the fence.

        :raises LeaseLapsed: when the lease is not held; nothing was sent.
        :raises EpochOver: when the fence has changed.
        :raises Refused: when another of the operations was refused.
        :raises OutcomeUnknown: when the reply was lost.
        """
        if not self.lease.is_held:
            raise LeaseLapsed(f"the lease of epoch {self.epoch} has lapsed")
        try:
            self.store.commit([Check(COORDINATOR_EPOCH, self.fence), *operations])
        except Refused as refused:
            if refused.path == COORDINATOR_EPOCH:
                if refused.reason in FENCED:
                    raise self._over() from refused
                self.check()  # an error without an operation is taken for the first one's
            raise

    def collect(self, operations: Sequence[Operation], what: str) -> bool:
        """Commit for a collector, which retries in its next round; whether it succeeded.

        :raises EpochOver: when the fence has changed.
        :raises OutcomeUnknown: when the reply was lost.
        """
        try:
            self.commit(operations)
        except LeaseLapsed:
            return False
        except Refused as refused:
            if self.lines.take("collection refused"):
                log.info("collection refused, retrying: what=%s refused=%s", what, refused.path)
            return False
        return True

    def publish_turn_times(self) -> None:
        """Write the turn times since the last call, if they differ from the znode's.

        :raises EpochOver: when the fence has changed.
        :raises Retryable: when ZooKeeper did not answer.
        """
        data = self.turn_times.since_last().to_bytes()
        node = self.store.get(TURN_TIMES)
        if node is not None and node.data == data:
            return
        if node is not None and node.stat.ephemeral_owner == self.store.session_id:
            changes: list[Operation] = [SetData(TURN_TIMES, data, node.stat.version)]
        else:  # of an earlier term, whose session may not have ended yet
            changes = [Delete(TURN_TIMES, node.stat.version)] if node is not None else []
            changes.append(Create(TURN_TIMES, data, ephemeral=True))
        self.collect(changes, "turn times")

    def write(self, operations: Sequence[Operation], restarted: Callable[[Refused | None], None]) -> bool:
        """Commit for a turn; False when the turn must start over.

        After a lost reply the next turn reads the result: sent again unchanged the commit would be refused, by the
        version of a state. Znodes that an operator has created below one that is to be removed are removed first, and
        parents that one has removed are created again.

        :param restarted: gets the refusal; None after a lost reply.
        :raises EpochOver: when the fence has changed; LeaseLapsed likewise.
        :raises RebalanceFailed: when an ACL refuses it.
        """
        try:
            self.commit(operations)
        except WriteDenied as denied:
            text = f"the ACL of {denied.path}, or of its parent, refuses the coordinator's writes"
            raise RebalanceFailed(text) from None  # with a cause it would be an assignor's
        except Refused as refused:
            restarted(refused)
            if refused.reason == "not-empty":
                self._clear_below(refused.path)
            elif refused.reason == "no-node":
                self._make_parents(refused.path)
            return False
        except OutcomeUnknown:
            self.store.sync()
            restarted(None)
            return False
        return True

    def _make_parents(self, path: str) -> None:
        for parent in parents_of(path):
            with suppress(Refused, OutcomeUnknown):
                self.commit([Create(parent)])

    def _clear_below(self, path: str) -> None:
        """Remove children that an operator has created below a znode of the protocol's, deepest first, in batches."""
        stray = f"{path}/..."
        self.problems.report(stray, "unexpected znode, removing it")

        def commit(operations: Sequence[Operation]) -> bool:
            with suppress(Refused, OutcomeUnknown):
                self.commit(operations)
            return True

        if any(clear_below(self.store, path, commit, MAX_OPERATIONS) for _ in range(CLEARED_LEVELS + 1)):
            self.problems.clear(stray)

    def _over(self) -> EpochOver:
        return EpochOver(f"epoch {self.epoch} is over: another coordinator was elected")
