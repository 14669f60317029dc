"""The ACLs that a session gives to the znodes it creates: by the access policy in ZooKeeper, read once and watched."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..errors import GRANT, BadData, NotAuthorized
from ..store import DENIED, Create, Node, Operation, Store
from ..znodes.names import is_name
from ..znodes.paths import ACL_POLICY, GROUPS, REGIONS, GroupPaths
from .policy import AclPolicy
from .rights import acl_of, group_of

log = logging.getLogger(__name__)

_OPEN: Final = AclPolicy()


class AclSource:
    """For all threads of a session; its reads are the session's.

    A change of a group's `acl` sets `/consumers/acl` too, so that what is derived from several groups is read again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[str, AclPolicy | None] = {}
        self._of_regions: dict[str, AclPolicy] = {}
        self._own = _OPEN

    def applied(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        """`operations`, each znode to be created with its ACL.

        :raises NotAuthorized: when the policy may not be read, or is malformed.
        :raises StoreError: when ZooKeeper did not answer.
        """
        return [
            replace(one, acl=acl_of(one.path, policy))
            if isinstance(one, Create) and one.acl is None and (policy := self.policy_of(one.path)).is_secure
            else one
            for one in operations
        ]

    def policy_of(self, path: str) -> AclPolicy:
        """The policy for a znode, with the members that may have rights on it; raises as `applied`."""
        top = self._read(ACL_POLICY)
        if top == _OPEN:
            return top
        if group := group_of(path):
            found = self._read(GroupPaths(group).acl)
            if found is not None:
                self._own = found
                return found
        if top is None:  # to a group's members, who know the policy from their group
            if not self._own.members:
                party = f"a member of group {group}" if group else "a coordinator or operator"
                raise NotAuthorized(f"{path} may not be created: this client has no identity of {party}, {GRANT}")
            return self._own
        region = path.split("/")[3] if path.startswith(f"{REGIONS}/") else ""
        return self._of_region(region, top) if region and top.is_secure else top

    def _read(self, path: str) -> AclPolicy | None:
        """The policy in a znode; None when it may not be read, or a group has none."""
        with self._lock:
            if path in self._known:
                return self._known[path]
        node = self._store.get(path, watch=self._changed)
        try:
            found = _parsed(path, node)
        except BadData as error:
            raise NotAuthorized(f"no znode is created while the access policy cannot be read: {error}") from error
        with self._lock:
            self._known[path] = found
        return found

    def _of_region(self, region: str, top: AclPolicy) -> AclPolicy:
        """The policy of a region's own znodes: its members are those of all groups that may be bound to it."""
        with self._lock:
            if region in self._of_regions:
                return self._of_regions[region]
        listing = self._store.children(GROUPS)
        paths = [GroupPaths(name).acl for name in sorted(listing.names if listing else ()) if is_name(name)]
        members: dict[str, None] = {}
        for path, node in zip(paths, self._store.get_many(paths), strict=True):
            try:
                found = _parsed(path, node)
            except BadData as error:
                log.error("ignoring unreadable znode: path=%s problem=%s", path, error)
                continue
            members |= dict.fromkeys(found.members if found and region in found.regions else ())
        policy = replace(top, members=tuple(members))
        with self._lock:
            self._of_regions[region] = policy
        return policy

    def _changed(self, path: str) -> None:
        with self._lock:
            self._known.clear()  # one that may not be read has no watch
            self._of_regions.clear()


def _parsed(path: str, node: Node | None) -> AclPolicy | None:
    if node is None or node.data == DENIED:
        return _OPEN if node is None and path == ACL_POLICY else None
    return AclPolicy.parse(path, node.data)
