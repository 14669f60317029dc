"""The access policy in ZooKeeper: the identities of coordinators, operators, readers and a group's members.

Also the ACL of each znode by it: the rights of each party in a secured chroot (`zk_paths.md` has the table). An
ACL is of one znode, and not inherited. A creation needs CREATE on the parent, a removal DELETE on the parent.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

from ..errors import BadData, NotAuthorized, StoreError, UsageError
from ..runtime import ThreadRuntime
from ..store import DENIED, Acl, AclEntry, AclStore, Create, Operation, existing_nodes
from ..wire import OPEN_ACL
from ..znodes import forms
from ..znodes.forms import Form, Record
from ..znodes.json_fields import Fields
from ..znodes.paths import (
    ACL_POLICY,
    CONSUMERS,
    COORDINATOR,
    COORDINATOR_EPOCH,
    DRILL,
    GROUPS,
    MAX_NAME,
    NODES,
    PAUSED,
    REGIONS,
    ROOT,
    TURN_TIMES,
    Brokers,
    GroupPaths,
    RegionPaths,
    is_name,
    names_below,
    shown,
)

log = logging.getLogger(__name__)

OPEN: Final = "open"
SECURE: Final = "secure"
CLOSED: Final = "closed"
MOST_IDENTITIES: Final = 8
LONGEST_IDENTITY: Final = 250
MOST_BYTES: Final = 1000
_SCHEMES: Final = ("digest", "sasl", "x509", "ip")
_DIGEST: Final = re.compile(r"[^:]+:[A-Za-z0-9+/]{27}=")


def _open_or(other: str, key: str, is_open: bool) -> Form:
    """A flag as one of two words, `open` where it is `is_open`, and where it is missing."""
    flags = {OPEN: is_open, other: not is_open}
    words = {flag: word for word, flag in flags.items()}
    word = forms.text(64, OPEN).checked(flags.__contains__, f"{OPEN} or {other}")
    return Form(lambda fields, key, own: flags[word.read(fields, key, own)], words.__getitem__, key)


_PARTY = Form(lambda fields, key, _: fields.strings(key, LONGEST_IDENTITY), list).checked(
    lambda found: len(found) <= MOST_IDENTITIES and all(map(is_identity, found)),
    f"a list of {MOST_IDENTITIES} identities at most, as sasl:user",
)
_REGIONS = Form(lambda fields, key, _: fields.strings(key, MAX_NAME), list).checked(
    lambda found: all(map(is_name, found)), "a list of names"
)


@dataclass(frozen=True, slots=True)
class AclPolicy(Record):
    """`/consumers/acl`, and `acl` of each group, which repeats the fields of the first, and has its own.

    Identities are ZooKeeper's, `scheme:id`: `digest:user:BASE64`, `sasl:user`, `x509:CN=...`.

    :ivar is_secure: whether znodes get the ACLs of `RIGHTS`; otherwise they are open to the world.
    :ivar is_read_open: whether the world may read.
    :ivar members: the group's members; empty in `/consumers/acl`.
    :ivar regions: the consistent regions that the group may be bound to.
    """

    is_secure: Annotated[bool, _open_or(SECURE, "acl", is_open=False)] = False
    is_read_open: Annotated[bool, _open_or(CLOSED, "acl_read", is_open=True)] = True
    coordinators: Annotated[tuple[str, ...], _PARTY] = ()
    operators: Annotated[tuple[str, ...], _PARTY] = ()
    readers: Annotated[tuple[str, ...], _PARTY] = ()
    members: Annotated[tuple[str, ...], _PARTY] = ()
    regions: Annotated[tuple[str, ...], _REGIONS] = ()

    @classmethod
    def read(cls, fields: Fields) -> AclPolicy:
        """
        :raises BadData: when it is malformed.
        """
        policy = super(AclPolicy, cls).read(fields)
        if sum(len(one) + 20 for one in policy.identities) > MOST_BYTES:
            raise BadData(
                f"{fields.where}: the identities have over {MOST_BYTES} bytes, and 400 znodes of a multi get them all"
            )
        if policy.is_secure and not (policy.coordinators and policy.operators):
            raise fields.bad("acl", "open without coordinators and operators")
        return policy

    @property
    def identities(self) -> tuple[str, ...]:
        """The identities of all parties."""
        return (*self.coordinators, *self.operators, *self.readers, *self.members)


def is_identity(text: str) -> bool:
    """Whether it is `scheme:id` of a scheme whose identities are of one client; a digest must be hashed."""
    scheme, _, rest = text.partition(":")
    if scheme not in _SCHEMES or not rest or not rest.isprintable() or len(text) > LONGEST_IDENTITY:
        return False
    return scheme != "digest" or _DIGEST.fullmatch(rest) is not None


def checked_identities(option: str, texts: Iterable[str]) -> tuple[str, ...]:
    """The identities of an option.

    :raises UsageError: when one is malformed, or there are more than `MOST_IDENTITIES`. A malformed one is not
        repeated: it may be a password.
    """
    identities = tuple(dict.fromkeys(texts))
    for text in identities:
        if not is_identity(text):
            scheme, colon, _ = text.partition(":")
            what = f"of scheme {shown(scheme[:20])}" if colon else "without scheme"
            raise UsageError(
                f"{option}: an identity {what} is not digest:USER:HASH, sasl:USER or "
                "x509:SUBJECT; zk-coordinator acl identity prints those of a zk_auth_file"
            )
    if len(identities) > MOST_IDENTITIES:
        raise UsageError(f"{option}: {len(identities)} identities; the limit is {MOST_IDENTITIES}")
    return identities


READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL: Final = 31
_LETTERS: Final = {"c": CREATE, "d": DELETE, "r": READ, "w": WRITE, "a": ADMIN}
WORLD: Final = "world:anyone"


class Readers(Enum):
    """Readers of a znode besides the parties with other rights."""

    ALL = "all"
    """Everybody: it names no group."""
    READERS = "readers"
    """Everybody where reading is open; readers where it is closed."""
    NONE = "none"


class Rights(NamedTuple):
    """The letters of zkCli's `cdrwa` for each party; operators have all on every znode.

    :ivar coordinators: of the coordinators' identities.
    :ivar members: of the identities of the group, in a region of those of all groups that may be bound to it.
    """

    coordinators: str
    members: str = ""
    readers: Readers = Readers.READERS


_BROKERS: Final = Brokers()
_GROUP: Final = GroupPaths("[group]")
_REGION: Final = RegionPaths("[region]")
RIGHTS: Final[Mapping[str, Rights]] = {
    ROOT: Rights("r", readers=Readers.ALL),
    _BROKERS.root: Rights("r", readers=Readers.ALL),
    _BROKERS.topics: Rights("r", readers=Readers.ALL),
    _BROKERS.topic("[topic]"): Rights("r", readers=Readers.ALL),
    CONSUMERS: Rights("cdrw", readers=Readers.ALL),
    ACL_POLICY: Rights("r", readers=Readers.NONE),
    COORDINATOR: Rights("r", readers=Readers.ALL),
    COORDINATOR_EPOCH: Rights("rw", readers=Readers.ALL),
    NODES: Rights("cr", readers=Readers.ALL),
    f"{NODES}/[session]": Rights("r", readers=Readers.ALL),
    PAUSED: Rights("r"),
    TURN_TIMES: Rights("rw"),
    DRILL: Rights("r", readers=Readers.ALL),
    GROUPS: Rights("r"),
    _GROUP.root: Rights("cdr", "cr"),
    _GROUP.acl: Rights("r", "r", Readers.NONE),
    _GROUP.state: Rights("rw", "r"),
    _GROUP.request: Rights("dr", "r"),
    _GROUP.sync: Rights("cdr", "r"),
    _GROUP.ask("[ask]"): Rights("dr", "cdr"),
    f"{_GROUP.ask('[ask]')}/[answer]": Rights("dr", "rw"),
    _GROUP.sync_request: Rights("dr", "r"),
    _GROUP.history: Rights("cdr", "r"),
    f"{_GROUP.history}/[rebalance]": Rights("drw", "r"),
    _GROUP.ids: Rights("dr", "cdr"),
    _GROUP.id("[consumer]"): Rights("r", "rw"),
    _GROUP.seats: Rights("dr", "cdr"),
    _GROUP.seat("[instance]"): Rights("dr", "rw"),
    _GROUP.channels: Rights("dr", "cr"),
    _GROUP.channel("[consumer]"): Rights("cdrw", "drw"),
    _GROUP.command("[consumer]", "[command]"): Rights("dr", "r"),
    _GROUP.owners: Rights("cr", "cr"),
    _GROUP.owners_of("[topic]"): Rights("dr", "cdr"),
    f"{_GROUP.owners_of('[topic]')}/[partition]": Rights("r", "r"),
    _GROUP.offsets: Rights("cdr", "cr"),
    _GROUP.offsets_of("[topic]"): Rights("cdr", "cr"),
    f"{_GROUP.offsets_of('[topic]')}/[partition]": Rights("drw", "rw"),
    _GROUP.segments: Rights("drw", "cr"),
    _GROUP.segment("[segment]"): Rights("dr", "r"),
    _GROUP.queries: Rights("drw", "cdrw"),
    _GROUP.query("[query]"): Rights("drw", "rw"),
    _GROUP.pools: Rights("r", "cdr"),
    _GROUP.pool("[pool]"): Rights("r", "rw"),
    REGIONS: Rights("cdr"),
    _REGION.root: Rights("cdrw", "cr"),
    _REGION.request: Rights("dr", "rw"),
    _REGION.initial: Rights("dr", "cr"),
    _REGION.initial_of_group("[group]"): Rights("dr", "cr"),
    _REGION.initial_of("[group]", "[topic]"): Rights("dr", "cr"),
    f"{_REGION.initial_of('[group]', '[topic]')}/[partition]": Rights("dr", "rw"),
    _REGION.checkpoints: Rights("cdr", "r"),
    f"{_REGION.checkpoints}/[checkpoint]": Rights("cdrw", "cr"),
    f"{_REGION.checkpoints}/[checkpoint]/[contribution]": Rights("dr", "r"),
}
"""Path -> rights; a name in brackets is any other name.

Coordinators have DELETE on leaves that they remove, too: for children that an operator has created there.
"""
UNKNOWN: Final = Rights("cdrw", "cdrw")
"""Rights of a znode unknown to this release: a later one's, or an operator's."""

_KEYS: Final = {re.sub(r"\[.*?\]", "*", pattern).rstrip("/"): pattern for pattern in RIGHTS}


def pattern_of(path: str) -> str:
    """The key of `RIGHTS` for a path; empty for an unknown znode."""
    key = ""
    for name in path.strip("/").split("/") if path != ROOT else ():
        key = f"{key}/{name}" if f"{key}/{name}" in _KEYS else f"{key}/*"
        if key not in _KEYS:
            return ""
    return _KEYS[key]


def group_of(path: str) -> str:
    """The group whose members may have rights on a znode; empty for none, or for those of all groups of a region."""
    names = path.split("/")
    if names[1:3] == ["consumers", "groups"] and len(names) > 3:
        return names[3]
    if names[1:3] != ["consumers", "regions"] or len(names) < 6:
        return ""
    if names[4] == "initial":
        return names[5]
    contribution = names[6] if names[4] == "checkpoints" and len(names) == 7 else ""
    return contribution.partition("~")[0] if "~" in contribution else ""


def acl_of(path: str, policy: AclPolicy) -> Acl:
    """The ACL of a znode.

    :param policy: with the members of its group, or of all groups of its region. Its znode is the operators' alone,
        also in an open chroot.
    """
    if not policy.is_secure and not (pattern_of(path) in (ACL_POLICY, _GROUP.acl) and policy.operators):
        return OPEN_ACL
    pattern = pattern_of(path)
    rights = RIGHTS[pattern] if pattern else UNKNOWN if path.startswith(f"{CONSUMERS}/") else RIGHTS[ROOT]
    return _acl(rights, policy)


def policy_by(consumers: Acl | None, groups: Acl | None) -> AclPolicy | None:
    """The policy by which `/consumers` and `/consumers/groups` have their ACLs, without members; None when they are
    of no policy. Only operators set the ACLs of a secured chroot.
    """
    found = {one.identity: one.permissions for one in consumers or ()}
    if found.get(WORLD) == ALL:
        return AclPolicy()
    operators = tuple(identity for identity, permissions in found.items() if permissions == ALL)
    coordinators = tuple(identity for identity, permissions in found.items() if permissions == ALL & ~ADMIN)
    if not operators or not coordinators:
        return None
    below = [one.identity for one in groups or () if one.permissions == READ and one.identity not in coordinators]
    readers = tuple(identity for identity in below if identity != WORLD)
    return AclPolicy(True, WORLD in below, coordinators, operators, readers)


@lru_cache(maxsize=1024)
def _acl(rights: Rights, policy: AclPolicy) -> Acl:
    found: dict[str, int] = {}
    parties = [
        (policy.coordinators, rights.coordinators),
        (policy.members, rights.members),
        (policy.operators, "cdrwa"),
    ]
    if rights.readers is Readers.ALL or (rights.readers is Readers.READERS and policy.is_read_open):
        parties.append(((WORLD,), "r"))
    elif rights.readers is Readers.READERS:
        parties.append((policy.readers, "r"))
    for identities, letters in parties:
        for identity in identities if letters else ():
            found[identity] = found.get(identity, 0) | sum(_LETTERS[letter] for letter in letters)
    return tuple(AclEntry(permissions, identity) for identity, permissions in sorted(found.items()))


def letters_of(permissions: int) -> str:
    """Permissions in zkCli's form: `cdrwa`."""
    return "".join(letter for letter, bit in _LETTERS.items() if permissions & bit)


_OPEN: Final = AclPolicy()
PARTITION_DEPTH: Final = 5
"""Slashes in the parent of an owner or an offset, at least."""


class AclSource:
    """The ACLs that a session gives to the znodes it creates. For all its threads; its reads are the session's.

    A change of a group's `acl` sets `/consumers/acl` too, so that policies of several groups are read again.
    Coordinators and operators may read `/consumers/acl`; a group's members know the policy from their group's `acl`.
    ZooKeeper sends no event of a znode to a client without READ: so each change sets `/consumers`, too.
    While `/consumers/acl` is malformed, the ACLs of the chroot are the policy: an open one stays open, a secured one
    secured.
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
            policy = self._read(GroupPaths(group).acl)
            return replace(top, members=policy.members, regions=policy.regions) if policy is not None else top
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

        A client without an identity in the policy continues in an open chroot, as earlier releases do. In a secured one
        ZooKeeper refuses its commits: no parent lets it create a znode.
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
            is_denied = node is not None and node.data == DENIED
            policy = None if is_denied else AclPolicy.parse(path, node.data) if node is not None else _OPEN
        except BadData as error:
            policy = policy_by(*self._store.get_acls([CONSUMERS, GROUPS])) if path == ACL_POLICY else None
            if policy is None:
                raise NotAuthorized(f"no znode is created while the access policy cannot be read: {error}") from error
            log.warning("ignoring unreadable znode: path=%s problem=%s", path, error)
        with self._lock:
            if changes == self._changes:  # else the watch has fired: there is none any more
                self._known[path] = policy
        return policy

    def _of_region(self, region: str, top: AclPolicy, changes: int) -> AclPolicy:
        """The policy of a region's own znodes: its members are those of all groups that may be bound to it.

        :param changes: the number of changes before `top` was read: the watch on it is the only one.
        """
        with self._lock:
            if region in self._of_regions:
                return self._of_regions[region]
        names, members = names_below(self._store, GROUPS), dict[str, None]()
        for _, path, node in existing_nodes(self._store, names, lambda name: GroupPaths(name).acl):
            try:
                found = AclPolicy.parse(path, node.data)
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
