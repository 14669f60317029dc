"""A query's znode: its finished position, so that the coordinator collects no segment before it."""

from __future__ import annotations

import logging

from zk_group.coordinator.zk.errors import CoordinatorError, Fenced, Refused
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Check, Create, Delete, Node, Operation, SetData, Store
from zk_group.coordinator.zk.update import Failure, WatchedNode, ensure, retried
from zk_group.coordinator.zk.znodes.json_fields import readable
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.segments import Query, Rewind

from .segment_index import SourceOffset

log = logging.getLogger(__name__)

PUBLISH_S = 1.0
HEARTBEAT_S = 60.0
MOST_QUERIES_AT_ONCE = 200
"""So many may change the set of a group's queries at the same moment: each time all but one are refused."""
MOST_PAUSE_S = 0.05


class QueryTakenOver(Fenced):
    """A newer run of the query has begun: this one must stop."""


class QueryRemoved(Fenced):
    """The query was removed while it ran: its segments are not held back any more, and it must stop."""


class QueryRewound(CoordinatorError):
    """The query's Spark checkpoint is being rewound, or was, and this run has begun with the earlier files."""


class QueryPost:
    """The znode of one run of a query.

    Until its first batch is planned, a new query's znode is ephemeral: a query that ends before has no checkpoint
    with its name, and would hold back the collection without need. That of an unnamed query stays ephemeral: it may
    have no checkpoint that outlives it, which Spark tells no source. The coordinator counts a query whose session has
    ended for `QUERY_ABSENCE_S` more: a driver that paused registers again with its next batch.

    :param is_named: whether the application has given the name.
    """

    def __init__(self, runtime: Runtime, paths: GroupPaths, query: str, is_named: bool) -> None:
        self._runtime = runtime
        self._paths = paths
        self._path = paths.query(query)
        self._run = runtime.random_id()
        self._watched = WatchedNode(runtime, self._path)
        self._registered_on: Store | None = None
        self._is_named = is_named
        self._is_ephemeral = False
        self._has_begun = False
        self._replaced: str | None = None
        """The run that a registration without a reply was to replace; any other one is newer."""
        self._finished = 0
        self._rewind: Rewind | None = None
        self._published_at = float("-inf")
        self._registered_at = 0
        self.query = query

    def is_registered(self, store: Store, is_new: bool) -> bool:
        """Whether this run is registered, and holds back its unfinished segments.

        :param is_new: whether no checkpoint has the query's name yet.
        :raises QueryTakenOver: when a newer run has registered since this one did.
        :raises QueryRemoved: when it was removed since this run registered.
        :raises StoreError: when there was no answer.
        """
        if not self._has_znode(store):
            return False
        query = self._own(store)
        if self._awaits_batch and not is_new:
            return False
        if query.expired_ms:  # expired, but alive: it holds segments back again once it has registered
            self._registered_on = None
        return not query.expired_ms

    def _has_znode(self, store: Store) -> bool:
        """Whether this run's znode has to exist."""
        return self._registered_on is not None and (not self._is_ephemeral or self._registered_on is store)

    def registered(self, store: Store) -> int:
        """The zxid at which this run registered first: what was committed before, was committed before it began.

        :raises QueryTakenOver: when a newer run has registered since this one did.
        :raises QueryRemoved: when it was removed since this run registered.
        :raises StoreError: when there was no answer.
        """
        if not self._registered_at:
            self._own(store)
            self._registered_at = self._watched.node.stat.mzxid if self._watched.node else 0
        return self._registered_at

    @property
    def _awaits_batch(self) -> bool:
        """Whether the znode becomes persistent with the first batch."""
        return self._is_ephemeral and self._is_named

    def _own(self, store: Store) -> Query:
        """The znode of this run, cached by a watch; read again before it is reported missing."""
        node = self._watched.read(store)
        if node is None or self._parsed(node).run != self._run:
            store.sync()
            self._watched.forget()
            node = self._watched.read(store)
        self._check_run(node)
        if node is None:
            raise QueryRemoved(
                f"query {self.query} of group {self._paths.group} was removed while it ran (zk-coordinator queries "
                "remove): its segments are not held back any more. After a restart it continues from its checkpoint if "
                "they still exist; else give it a new checkpoint and another name (option query)"
            )
        return self._parsed(node)

    def begin(self, store: Store, start: SourceOffset | None, is_new: bool) -> None:
        """Register, before any listing.

        One multi also sets the data of `queries`; that version identifies the set of queries.

        :param start: the end of the segments that the query does not read again; None when not known yet.
        :param is_new: whether no checkpoint has the query's name yet.
        :raises QueryTakenOver: when a newer run has registered since this one did.
        :raises QueryRewound: when the query is rewound, and this is not its new start.
        :raises StoreError: when there was no answer, or the znodes keep changing.
        """
        ensure(store, self._paths.skeleton)

        def attempt(error: Failure | None) -> None:
            if isinstance(error, Refused):
                log.info("query registration refused, retrying: query=%s refused=%s", self.query, error)
                self._runtime.sleep(MOST_PAUSE_S * (sum(self._run.encode()) % 50) / 50)
            members, node = store.get_many([self._paths.queries, self._path])
            self._check_run(node)
            self._rewind = self._parsed(node).rewind if node is not None else None
            self.check_start(start)
            self._register(store, members, node, start.czxid if start is not None else 0, is_new)

        failure = f"query {self.query} could not register: the group's queries keep changing"
        retried(store, attempt, lambda: failure, MOST_QUERIES_AT_ONCE)
        self.registered(store)

    def check_start(self, start: SourceOffset | None) -> bool:
        """Check that a rewound query begins at its new start, once.

        :param start: None when not known yet.
        :returns: whether a check was pending.
        :raises QueryRewound: when it begins elsewhere, or the rewind has not ended.
        """
        rewind = self._rewind
        if rewind is None:
            return False
        what = f"query {self.query} of group {self._paths.group} is rewound"
        if not rewind.is_done:
            raise QueryRewound(f"{what}, which has not ended: start the query when it has, or rewind it again")
        if start is None:
            return False
        if (start.checkpoint, start.czxid) != (rewind.checkpoint, rewind.czxid):
            raise QueryRewound(
                f"{what}, and this run begins elsewhere: restart it; if the error repeats, it has another Spark "
                "checkpoint, or its own was changed: rewind it again, or remove it (zk-coordinator queries remove)"
            )
        self._rewind, self._published_at = None, float("-inf")
        return True

    def _register(self, store: Store, members: Node | None, node: Node | None, finished: int, is_new: bool) -> None:
        data = self._data(finished)
        operations: list[Operation] = [SetData(self._paths.queries, b"", _unchanged(members, node))]
        is_ephemeral = is_new or not self._is_named
        if node is not None and not node.stat.ephemeral_owner:
            is_ephemeral = False
            operations.append(SetData(self._path, data, node.stat.version))
        else:
            operations += [Delete(self._path, node.stat.version)] if node is not None else []
            operations.append(Create(self._path, data, ephemeral=is_ephemeral))
        before = self._replaced
        self._replaced = before if before is not None else self._parsed(node).run if node is not None else ""
        try:
            store.commit(operations)
        except Refused:
            self._replaced = before
            raise
        self._replaced = None
        self._watched.forget()
        self._registered_on, self._is_ephemeral, self._has_begun = store, is_ephemeral, True
        self._finished, self._published_at = finished, self._runtime.monotonic()
        log.info("query registered: group=%s query=%s finished=%d", self._paths.group, self.query, finished)

    def withdraw(self, store: Store) -> None:
        """Remove the znode of a query without any batch under this name; it would hold segments back later.

        :raises StoreError: when there was no answer.
        """

        def attempt(error: Failure | None) -> None:
            members, node = store.get_many([self._paths.queries, self._path])
            if node is None or not self._is_ephemeral or self._parsed(node).run != self._run:
                return
            changed = SetData(self._paths.queries, b"", _unchanged(members, node))
            store.commit([changed, Delete(self._path, node.stat.version)])

        failure = f"query {self.query} could not withdraw: the group's queries keep changing"
        retried(store, attempt, lambda: failure, MOST_QUERIES_AT_ONCE)

    def publish(self, store: Store, finished: int) -> None:
        """Write the finished position, at most once a second; and a heartbeat, at least once a minute.

        Before its first batch a query needs no heartbeat, and has no finished position yet.

        :raises QueryTakenOver: when a newer run of the query has begun.
        :raises QueryRemoved: when it was removed since this run registered.
        :raises StoreError: when there was no answer.
        """
        silent_s = self._runtime.monotonic() - self._published_at
        is_due = silent_s >= (PUBLISH_S if finished != self._finished else HEARTBEAT_S)
        if self._awaits_batch or not is_due:
            return
        members = store.get(self._paths.queries) if self._is_ephemeral else None
        self._watched.forget()
        is_expired = self._own(store).expired_ms
        node = self._watched.node
        if is_expired or node is None:
            return  # it registers again, which changes the set of queries, with the next batch
        checks = [Check(self._paths.queries, _unchanged(members, node))] if members is not None else []
        try:
            store.commit([*checks, SetData(self._path, self._data(finished), node.stat.version)])
        except Refused as refused:
            log.info("query progress write deferred: query=%s refused=%s", self.query, refused)
            return
        self._finished, self._published_at = finished, self._runtime.monotonic()

    def check_newest(self, store: Store) -> None:
        """Check that this run is the query's, as of what this session has seen, before anything counts as missing: a
        newer one may have read on, and segments go with their query.

        :raises QueryTakenOver: when a newer run has registered.
        :raises QueryRemoved: when the query was removed since this run registered.
        :raises StoreError: when there was no answer.
        """
        self._watched.forget()
        if self._has_znode(store):
            self._own(store)
        else:
            self._check_run(self._watched.read(store))

    def _check_run(self, node: Node | None) -> None:
        is_first = not self._has_begun and self._replaced is None
        if node is not None and not is_first and self._parsed(node).run not in (self._run, self._replaced):
            raise QueryTakenOver(
                f"another run of query {self.query} of group {self._paths.group} has begun: "
                "give each query that reads the group a name of its own (option query)"
            )

    def _parsed(self, node: Node) -> Query:
        """A query's znode; an unreadable one belongs to no run."""
        return readable(Query.parse, self._path, node, log) or Query("", 0, 0)

    def _data(self, finished: int) -> bytes:
        return Query(self._run, finished, self._runtime.wall_ms(), rewind=self._rewind).to_bytes()


def _unchanged(members: Node | None, node: Node | None) -> int:
    """The version of the set of queries that a change of `node` needs, with which it was read; -1 for any.

    The versions of an ephemeral znode begin again with each run that registers: they identify none.
    """
    return members.stat.version if members is not None and node is not None and node.stat.ephemeral_owner else -1
