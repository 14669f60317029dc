"""The tree of a modelled ZooKeeper server, without time and without chance.

A transaction is worked out once, at the leader, and yields a `Delta`; each server applies that, sooner or later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zk_group.coordinator.zk.errors import Refused, WriteDenied
from zk_group.coordinator.zk.security.policy import ADMIN, CREATE, DELETE, READ, WORLD, WRITE
from zk_group.coordinator.zk.store import DENIED, Acl, AclEntry, Check, Create, Delete, Node, Operation, SetData, Stat
from zk_group.coordinator.zk.wire import OPEN_ACL

CREATED, DELETED, CHANGED, CHILDREN = 1, 2, 3, 4
"""Kinds of events, by ZooKeeper's own numbers."""

Event = tuple[int, str]
"""A kind of event and the path of the znode that it is about."""

_VALID_PATH = re.compile(
    r"/|(/(?!\.{1,2}(/|$))[^/\x00-\x1e\x80-\x9e\ud801-\uf8fe\ufff1-\ufffe\U00010000-\U0010ffff]+)+"
)
_LARGEST = 0x7FFFFFFF
NO_AUTH = "no-auth"
INVALID_ACL = "InvalidACLError"

REFUSED: Final = Node(DENIED, Stat(0, 0, 0, 0, 0, 0, 0))
"""What a store returns for a znode that may not be read."""


@dataclass(frozen=True, slots=True)
class SetAcl:
    """Replace a znode's ACL: an operation that only stands alone."""

    path: str
    acl: Acl


Change = Operation | SetAcl


def allows(acl: Acl, permission: int, identities: Sequence[str]) -> bool:
    """Whether a session with these identities has the permission."""
    return any(one.permissions & permission and one.identity in (WORLD, *identities) for one in acl)


def kept(acl: Acl, identities: Sequence[str]) -> Acl | None:
    """As a server keeps what such a session sends: `auth` stands for its identities. None where it is invalid."""
    made: list[AclEntry] = []
    for one in dict.fromkeys(acl):
        scheme, _, name = one.identity.partition(":")
        if scheme == "auth":
            if not identities:
                return None
            made += [AclEntry(one.permissions, each) for each in identities]
        elif one.identity == WORLD or scheme == "ip" or (scheme == "digest" and name.count(":") == 1):
            made.append(one)
        else:
            return None
    return tuple(made) or None


def masked(acl: Acl) -> Acl:
    """As it is shown to a session that may not set it."""
    return tuple(
        AclEntry(one.permissions, f"{one.identity.rpartition(':')[0]}:x") if one.identity.startswith("digest:") else one
        for one in acl
    )


class Znode(NamedTuple):
    """A znode; never changed, only replaced.

    :ivar node: what a read returns.
    :ivar creates: how many children were ever created, 32 bits with a sign: the number of the next sequential one.
    """

    node: Node
    creates: int
    acl: Acl = OPEN_ACL


@dataclass(slots=True)
class Delta:
    """What a transaction changes.

    :ivar changed: path -> what stands there now, None for nothing.
    :ivar events: what there is to tell those who watch, in order.
    :ivar acls: for each event the ACL of its znode: a session that may not read that is not told.
    :ivar paths: for each operation the path that it created, or "".
    :ivar versions: for each operation the data version that it left behind, 0 where there is none.
    """

    zxid: int
    changed: dict[str, Znode | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    acls: list[Acl] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class ServerTree:
    """One server's znodes.

    :ivar zxid: of the last transaction that was applied.
    """

    __slots__ = ("_names", "nodes", "zxid")

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes: dict[str, Znode] = {"/": Znode(Node(b"", Stat(0, 0, 0, 0, 0, 0, 0)), 0)}
        self._names: dict[str, dict[str, None]] = {}

    def get(self, path: str) -> Node | None:
        """A znode, or None."""
        found = self.nodes.get(path)
        return found.node if found is not None else None

    def read(self, path: str, identities: Sequence[str]) -> Node | None:
        """A znode as a session with these identities reads it."""
        found = self.nodes.get(path)
        if found is None:
            return None
        return found.node if found.acl is OPEN_ACL or allows(found.acl, READ, identities) else REFUSED

    def acl(self, path: str, identities: Sequence[str]) -> Acl | None:
        """A znode's ACL as such a session reads it, empty where it may not; None without the znode."""
        found = self.nodes.get(path)
        if found is None:
            return None
        if allows(found.acl, ADMIN, identities):
            return found.acl
        return masked(found.acl) if allows(found.acl, READ, identities) else ()

    def names(self, path: str) -> list[str]:
        """The names of a znode's children, in the order in which they came."""
        return list(self._names.get(path, ()))

    def ephemerals(self, session: int) -> list[str]:
        """What a session's end would take with it."""
        return [path for path, found in self.nodes.items() if found.node.stat.ephemeral_owner == session]

    def transaction(
        self, operations: Sequence[Change], zxid: int, now_ms: int, session: int, identities: Sequence[str] = ()
    ) -> Delta:
        """Work out a multi; nothing is changed here before the delta is applied.

        :raises Refused: when one of the operations cannot be done. `WriteDenied` when an ACL refuses it.
        """
        work = _Work(self.nodes, zxid, now_ms, session, identities)
        for index, operation in enumerate(operations):
            kind = type(operation)
            if kind is Create:
                reason = work.create(operation)  # type: ignore[arg-type]
            elif kind is SetData:
                reason = work.set_data(operation)  # type: ignore[arg-type]
            elif kind is Delete:
                reason = work.delete(operation.path, operation.version)  # type: ignore[union-attr]
            elif kind is SetAcl:
                reason = work.set_acl(operation)  # type: ignore[arg-type]
            else:
                reason = work.check(operation)  # type: ignore[arg-type]
            if reason == NO_AUTH:
                raise WriteDenied(index, operation.path)
            if reason:
                raise Refused(index, operation.path, reason)
        return work.delta

    def removal(self, paths: Sequence[str], zxid: int) -> Delta:
        """Work out the end of a session, which takes these znodes with it."""
        work = _Work(self.nodes, zxid, 0, 0, None)
        for path in paths:
            work.delete(path, -1)
        return work.delta

    def apply(self, delta: Delta) -> None:
        """Let a transaction take effect."""
        nodes, names = self.nodes, self._names
        for path, znode in delta.changed.items():
            if znode is None:
                if nodes.pop(path, None) is not None:
                    parent, _, name = path.rpartition("/")
                    del names[parent or "/"][name]
            else:
                if path not in nodes:
                    parent, _, name = path.rpartition("/")
                    names.setdefault(parent or "/", {})[name] = None
                nodes[path] = znode
        self.zxid = delta.zxid


@dataclass(slots=True)
class _Work:
    """A transaction that is being worked out. What it does to a znode, its later operations see.

    :ivar _identities: of its session; None for the servers themselves, whom no ACL refuses.
    """

    _nodes: dict[str, Znode]
    _zxid: int
    _now_ms: int
    _session: int
    _identities: Sequence[str] | None
    _overflown: dict[str, int] = field(default_factory=dict)
    delta: Delta = field(init=False)
    _changed: dict[str, Znode | None] = field(init=False)

    def __post_init__(self) -> None:
        self.delta = Delta(self._zxid)
        self._changed = self.delta.changed

    def _find(self, path: str) -> Znode | None:
        changed = self._changed
        return changed[path] if path in changed else self._nodes.get(path)

    def _did(self, path: str, version: int) -> str:
        self.delta.paths.append(path)
        self.delta.versions.append(version)
        return ""

    def _denies(self, acl: Acl, permission: int) -> bool:
        return self._identities is not None and not allows(acl, permission, self._identities)

    def create(self, operation: Create) -> str:
        """Do it; why not, or ""."""
        path, zxid = operation.path, self._zxid
        acl = OPEN_ACL if operation.acl is None else kept(operation.acl, self._identities or ())
        if acl is None:
            return INVALID_ACL
        parent_path = path.rpartition("/")[0] or "/"
        parent = self._find(parent_path)
        if parent is None or not path.startswith("/"):
            return "no-node" if path.startswith("/") else "BadArgumentsError"
        if parent.acl is not OPEN_ACL and self._denies(parent.acl, CREATE):
            return NO_AUTH
        number = self._overflown.get(parent_path, parent.creates) if self._overflown else parent.creates
        if operation.sequential:
            path = f"{path}{number:010d}"
        if not _VALID_PATH.fullmatch(path):
            return "BadArgumentsError"
        if self._find(path) is not None:
            return "node-exists"
        stat = parent.node.stat
        if stat.ephemeral_owner:
            return "NoChildrenForEphemeralsError"
        owner = self._session if operation.ephemeral else 0
        self._changed[path] = Znode(
            Node(operation.data, Stat(zxid, zxid, zxid, 0, 0, owner, 0, self._now_ms, self._now_ms)), 0, acl
        )
        creates, pzxid = _signed(number + 1), zxid
        if creates < parent.creates:
            # After the largest number the leader hands out negative ones, but no server's tree counts past it.
            self._overflown[parent_path] = creates
            creates, pzxid = parent.creates, stat.pzxid
        self._changed[parent_path] = _with_children(parent, creates, stat.children + 1, pzxid)
        self.delta.events += ((CREATED, path), (CHILDREN, parent_path))
        self.delta.acls += (acl, parent.acl)
        return self._did(path, 0)

    def set_data(self, operation: SetData) -> str:
        """Do it; why not, or ""."""
        path = operation.path
        found = self._find(path)
        if found is None:
            return "no-node" if _VALID_PATH.fullmatch(path) else "BadArgumentsError"
        if found.acl is not OPEN_ACL and self._denies(found.acl, WRITE):
            return NO_AUTH
        czxid, _, pzxid, version, cversion, owner, children, ctime, _ = found.node.stat
        if operation.version not in (-1, version):
            return "bad-version"
        version = _signed(version + 1)
        stat = Stat(czxid, self._zxid, pzxid, version, cversion, owner, children, ctime, self._now_ms)
        self._changed[path] = Znode(Node(operation.data, stat), found.creates, found.acl)
        self.delta.events.append((CHANGED, path))
        self.delta.acls.append(found.acl)
        return self._did("", version)

    def delete(self, path: str, version: int) -> str:
        """Do it; why not, or ""."""
        if path == "/" or not path.startswith("/"):
            return "BadArgumentsError"
        parent_path = path.rpartition("/")[0] or "/"
        parent, found = self._find(parent_path), self._find(path)
        if parent is not None and parent.acl is not OPEN_ACL and self._denies(parent.acl, DELETE):
            return NO_AUTH
        if parent is None or found is None:
            return "no-node"
        if version not in (-1, found.node.stat.version):
            return "bad-version"
        if found.node.stat.children:
            return "not-empty"
        self._changed[path] = None
        self._changed[parent_path] = _with_children(parent, parent.creates, parent.node.stat.children - 1, self._zxid)
        self.delta.events += ((DELETED, path), (CHILDREN, parent_path))
        self.delta.acls += (found.acl, parent.acl)
        return self._did("", 0)

    def check(self, operation: Check) -> str:
        """Do it; why not, or ""."""
        found = self._find(operation.path)
        if found is None:
            return "no-node" if _VALID_PATH.fullmatch(operation.path) else "BadArgumentsError"
        if found.acl is not OPEN_ACL and self._denies(found.acl, READ):
            return NO_AUTH
        if operation.version not in (-1, found.node.stat.version):
            return "bad-version"
        return self._did("", found.node.stat.version)

    def set_acl(self, operation: SetAcl) -> str:
        """Do it; why not, or ""."""
        acl, found = kept(operation.acl, self._identities or ()), self._find(operation.path)
        if acl is None:
            return INVALID_ACL
        if found is None:
            return "no-node"
        if self._denies(found.acl, ADMIN):
            return NO_AUTH
        self._changed[operation.path] = found._replace(acl=acl)
        return self._did("", 0)


def _with_children(znode: Znode, creates: int, children: int, pzxid: int) -> Znode:
    """What clients are shown as `cversion` counts the changes: for each create that is no longer there, a delete."""
    data, (czxid, mzxid, _, version, _, owner, _, ctime, mtime) = znode.node
    cversion = _signed(creates * 2 - children)
    return Znode(
        Node(data, Stat(czxid, mzxid, pzxid, version, cversion, owner, children, ctime, mtime)),
        creates,
        znode.acl,
    )


def _signed(number: int) -> int:
    """The number as 32 bits with a sign hold it."""
    return number if -_LARGEST <= number <= _LARGEST else ((number + 0x80000000) & 0xFFFFFFFF) - 0x80000000
