"""The elector of a node, on `/consumers/coordinator`: the node that creates that znode is the coordinator.

The election is one multi that creates it and raises `/consumers/coordinator_epoch` by compare-and-set: the epoch's
data version is from then on the fence of all writes of this coordinator. (The version of the znode itself cannot be:
a znode that is created again has version 0.) The epoch is also the data of `/consumers`: where an
operator removes the epoch's znode, no epoch and no fence comes twice.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import NamedTuple

from ..zk.errors import NotAuthorized, OutcomeUnknown, Refused, Retryable, SessionLost, StoreError, WriteDenied
from ..zk.runtime import Event
from ..zk.store import DENIED, Create, Node, Operation, SetData, Store, StoreFactory, Watch
from ..zk.update import commit_once, ensure
from ..zk.znodes.json_fields import MAX_CONTINUED, readable
from ..zk.znodes.paths import ACL_POLICY, CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, GROUPS, NODES, node_path
from ..zk.znodes.records import CoordinatorRecord, EpochRecord, NodeRecord

log = logging.getLogger(__name__)

_RETRY_S = 0.1
_RETRY_REFUSED_S = 1.0
_LOOK_AGAIN_S = 10.0
_MOST_VERSIONS = 390


class Election(NamedTuple):
    """An election that this node has won.

    :ivar fence: the data version of `/consumers/coordinator_epoch` that identifies `epoch`.
    """

    epoch: int
    fence: int


class Elector:
    """One node's candidacy, for one session.

    :param wake: set to make `stand` check again, or return.
    """

    def __init__(self, store: Store, node: str, host: str, wake: Event) -> None:
        self._store = store
        self._node = node
        self._host = host
        self._wake = wake
        self._on_coordinator: Watch = lambda path: wake.set()  # one watch, however often it is set
        store.add_listener(lambda state: wake.set())

    def stand(self, stopping: Event, is_admitted: bool = False) -> Election | None:
        """Try at once; while another node is elected, watch and try again after each removal (sources D9, D15).

        :param is_admitted: whether an ACL's refusal is tried again from the first attempt on, as later ones are.
        :returns: the election that was won, or None once `stopping` is set.
        :raises NotAuthorized: when an ACL refuses the first attempt.
        :raises SessionLost: when the session has ended.
        """
        log.info("election joined: node=%s", self._node)
        while not stopping.is_set():
            self._wake.clear()
            if stopping.is_set():
                break
            try:
                ensure(self._store, (CONSUMERS, GROUPS))
                election = self._elect()
                is_admitted = True
            except Retryable as error:
                log.debug("election request failed, retrying: node=%s reason=%s", self._node, error)
                self._wake.wait(_RETRY_S)
                continue
            except NotAuthorized as error:
                if not is_admitted:
                    raise
                log.warning("election failed, retrying: node=%s reason=%s", self._node, error)
                self._wake.wait(_RETRY_REFUSED_S)
                continue
            if election is not None:
                log.info("elected: node=%s epoch=%d", self._node, election.epoch)
                return election
            self._wake.wait(_LOOK_AGAIN_S)  # a watch may have been lost
            if self._store.lost:
                raise SessionLost("the session ended while this node stood for election")
        return None

    def _elect(self) -> Election | None:
        """One read and, without an elected node, one attempt; None when another node is elected."""
        node = self._store.get(COORDINATOR, watch=self._on_coordinator)
        if node is not None and node.stat.ephemeral_owner != self._store.session_id:
            return None
        if node is not None:
            return self._won(CoordinatorRecord.parse(COORDINATOR, node.data).epoch)
        epoch, operations = self._bid()
        record = CoordinatorRecord(self._node, self._host, epoch)
        try:
            self._store.commit([Create(COORDINATOR, record.to_bytes(), ephemeral=True), *operations])
        except WriteDenied:
            raise
        except Refused as refused:
            log.info(
                "election refused, retrying: node=%s refused=%s reason=%s", self._node, refused.path, refused.reason
            )
            self._wake.wait(_RETRY_S)  # another node was faster, or the epoch has changed; or it lasts
            self._wake.set()
            return None
        except OutcomeUnknown:
            self._store.sync()
            self._wake.set()  # the znode's owner shows whether it was won
            return None
        return self._won(epoch)

    def _won(self, epoch: int) -> Election | None:
        """The election, if the epoch znode still contains `epoch`."""
        node = self._store.get(COORDINATOR_EPOCH)
        record = readable(EpochRecord.parse, COORDINATOR_EPOCH, node, log)
        if node is not None and record is not None and record.epoch == epoch:
            return Election(epoch, node.stat.version)
        raise SessionLost("the epoch moved while this node held the coordinator's znode: it stands again")

    def _bid(self) -> tuple[int, list[Operation]]:
        """The next epoch, and the operations that raise it."""
        node, last = self._store.get_many([COORDINATOR_EPOCH, CONSUMERS])
        epoch = max(_epoch_or_zero(COORDINATOR_EPOCH, node), _epoch_or_zero(CONSUMERS, last)) + 1
        data = EpochRecord(epoch).to_bytes()
        witness = SetData(CONSUMERS, data, last.stat.version if last is not None else -1)
        if node is not None:
            return epoch, [SetData(COORDINATOR_EPOCH, data, node.stat.version), witness]
        # A new znode's version begins at 0, where an old coordinator's fence may be: raise it past that.
        passed: list[Operation] = [SetData(COORDINATOR_EPOCH, data)] * min(epoch, _MOST_VERSIONS)
        return epoch, [Create(COORDINATOR_EPOCH, data), *(passed if epoch > 1 else []), witness]


def _epoch_or_zero(path: str, node: Node | None) -> int:
    """The epoch that a znode has; 0 also when no room is left above it for the epochs to come."""
    record = readable(EpochRecord.parse, path, node, log) if node is not None and node.data else None
    epoch = record.epoch if record is not None else 0
    if epoch <= MAX_CONTINUED:
        return epoch
    problem = f"{path}: epoch {epoch} leaves no room: an election counts on from {MAX_CONTINUED} at most"
    log.warning("ignoring unreadable znode: path=%s problem=%s", path, problem)
    return 0


def listed(open_store: StoreFactory, node: str, host: str) -> StoreFactory:
    """A factory of sessions that are listed below `/consumers/nodes` while they last, as `status` shows them.

    A node that cannot be listed runs all the same, unless the access policy has no identity of it: on standby it would
    notice only when it is needed. The opener raises `NotAuthorized` then.
    """

    def opened() -> Store:
        store = open_store()
        try:
            ensure(store, (CONSUMERS, NODES))
            path, record = node_path(store.session_id), NodeRecord(node, host).to_bytes()
            commit_once(store, [Create(path, record, ephemeral=True)], lambda: store.get(path) is not None)
        except StoreError as error:  # nothing is decided by the list
            if isinstance(error, WriteDenied) and _is_stranger(store):
                store.close()
                raise NotAuthorized(f"this node has no identity of a coordinator: {error}") from error
            log.warning("node not listed: node=%s reason=%s", node, error)
        return store

    return opened


def _is_stranger(store: Store) -> bool:
    """Whether there is an access policy that admits this client to nothing; unknown counts as not."""
    with suppress(StoreError):
        policy = store.get(ACL_POLICY)
        return policy is not None and policy.data == DENIED
    return False
