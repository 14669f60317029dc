"""The ACLs that a session gives to the znodes it creates: by the access policy in ZooKeeper, read once and watched."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ..errors import BadData, NotAuthorized, StoreError
from ..runtime import ThreadRuntime
from ..store import DENIED, Acl, AclStore, Create, Node, Operation
from ..znodes.names import names_below
from ..znodes.paths import ACL_POLICY, CONSUMERS, GROUPS, REGIONS, GroupPaths
from .policy import AclPolicy
from .rights import acl_of, group_of, policy_by

log = logging.getLogger(__name__)

_OPEN: Final = AclPolicy()
PARTITION_DEPTH: Final = 5
"""Slashes in the parent of an owner or an offset, at least."""


class AclSource:
    """For all threads of a session; its reads are the session's.

    A change of a group's `acl` sets `/consumers/acl` too, so that what is derived from several groups is read again.
    Coordinators and operators may read `/consumers/acl`; a group's members know the policy from their group's `acl`.
    ZooKeeper hides an event from who may not read the znode by then: so each change sets `/consumers`, too.
    While `/consumers/acl` is malformed, the ACLs that the chroot has are the policy: an open one stays open, a secured
    one secured.
    """

    def __init__(self, store: AclStore) -> None:
        self._store = store
        self._lock = ThreadRuntime().lock()
        self._known: dict[str, AclPolicy | None] = {}
        self._of_regions: dict[str, AclPolicy] = {}
        self._changes = 0
        self._group = ""

    def applied(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        """`operations`, each znode to be created with its ACL.

        :raises NotAuthorized: when a group's policy is malformed, or the chroot's and its ACLs do not tell either.
        :raises StoreError: when ZooKeeper did not answer.
        """
        acls: dict[str, Acl | None] = {}
        made: list[Operation] = []
        for one in operations:
            if isinstance(one, Create) and one.acl is None:
                kind = _kind(one.path)
                if kind not in acls:
                    policy = self.policy_of(one.path)
                    acls[kind] = acl_of(one.path, policy) if policy.is_secure else None
                made.append(Create(one.path, one.data, one.ephemeral, one.sequential, acls[kind]))
            else:
                made.append(one)
        return made

    def policy_of(self, path: str) -> AclPolicy:
        """The policy for a znode, with the members that may have rights on it; raises as `applied`."""
        with self._lock:
            changes = self._changes
        top = self._read(ACL_POLICY)
        if top == _OPEN:
            return top
        group = group_of(path)
        if top is None:
            return self._of_member(group)
        if group:
            found = self._read(GroupPaths(group).acl)
            return replace(top, members=found.members, regions=found.regions) if found is not None else top
        region = path.split("/")[3] if path.startswith(f"{REGIONS}/") else ""
        return self._of_region(region, top, changes) if region and top.is_secure else top

    def missing(self, path: str) -> str:
        """The party whose identity this client lacks, after ZooKeeper has refused `path`; empty when unknown."""
        group = group_of(path)
        with suppress(StoreError):
            if self._read(GroupPaths(group).acl if group else ACL_POLICY) is None:
                return f"a member of group {group}" if group else "a coordinator or operator"
        return ""

    def _of_member(self, group: str) -> AclPolicy:
        """The policy of the client's own group; open where it has none, or may not be read.

        A client without an identity in the policy goes on in an open chroot, as earlier releases do. In a secured one
        ZooKeeper refuses what it commits: no parent lets it create anything.
        """
        self._group = group or self._group
        return (self._read(GroupPaths(self._group).acl) or _OPEN) if self._group else _OPEN

    def _read(self, path: str) -> AclPolicy | None:
        """The policy in a znode, the open one without; None when it may not be read."""
        with self._lock:
            if path in self._known:
                return self._known[path]
            changes = self._changes
            is_watched = bool(self._known)
        if not is_watched:  # a znode that may not be read has no watch of its own
            self._store.get(CONSUMERS, watch=self._changed)
        node = self._store.get(path, watch=self._changed)
        try:
            found = None if node is not None and node.data == DENIED else _parsed(path, node)
        except BadData as error:
            found = policy_by(*self._store.get_acls([CONSUMERS, GROUPS])) if path == ACL_POLICY else None
            if found is None:
                raise NotAuthorized(f"no znode is created while the access policy cannot be read: {error}") from error
            log.warning("ignoring unreadable znode: path=%s problem=%s", path, error)
        with self._lock:
            if changes == self._changes:  # else the watch has fired: there is none any more
                self._known[path] = found
        return found

    def _of_region(self, region: str, top: AclPolicy, changes: int) -> AclPolicy:
        """The policy of a region's own znodes: its members are those of all groups that may be bound to it.

        :param changes: the number of changes before `top` was read: the watch on it is the only one.
        """
        with self._lock:
            if region in self._of_regions:
                return self._of_regions[region]
        paths = [GroupPaths(name).acl for name in names_below(self._store, GROUPS)]
        members: dict[str, None] = {}
        for path, node in zip(paths, self._store.get_many(paths), strict=True):
            try:
                found = _parsed(path, node)
            except BadData as error:
                log.error("ignoring unreadable znode: path=%s problem=%s", path, error)
                continue
            members |= dict.fromkeys(found.members if region in found.regions else ())
        policy = replace(top, members=tuple(members))
        with self._lock:
            if changes == self._changes:
                self._of_regions[region] = policy
        return policy

    def _changed(self, path: str) -> None:
        with self._lock:
            self._changes += 1
            self._known.clear()
            self._of_regions.clear()


def _kind(path: str) -> str:
    """The same for partitions of one parent, which make up the large multis: their ACLs are equal. It is no path."""
    parent, _, name = path.rpartition("/")
    return f"{parent}/" if name.isdigit() and parent.count("/") >= PARTITION_DEPTH else path


def _parsed(path: str, node: Node | None) -> AclPolicy:
    return AclPolicy.parse(path, node.data) if node is not None else _OPEN
