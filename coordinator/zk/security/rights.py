"""Who may do what with each znode of a secured chroot, as ZooKeeper's ACLs. Pure.

An ACL is of one znode, and not inherited. A creation needs CREATE on the parent, a removal DELETE on the parent.
`zk_paths.md` has the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from ..store import Acl, AclEntry
from ..wire import OPEN_ACL
from ..znodes.paths import (
    ACL_POLICY,
    CONSUMERS,
    COORDINATOR,
    COORDINATOR_EPOCH,
    DRILL,
    GROUPS,
    NODES,
    PAUSED,
    REGIONS,
    ROOT,
    TURN_TIMES,
    Brokers,
    GroupPaths,
    RegionPaths,
)
from .policy import AclPolicy

READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL: Final = 31
_LETTERS: Final = {"c": CREATE, "d": DELETE, "r": READ, "w": WRITE, "a": ADMIN}
WORLD: Final = "world:anyone"


class Readers(Enum):
    """Who may read a znode besides those with rights of their own."""

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
    _BROKERS.brokers_path: Rights("r", readers=Readers.ALL),
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
"""Of a znode that this release does not know: a later one's, or an operator's."""

_Tree = dict[str, "_Tree"]


def _tree(patterns: Iterable[str]) -> _Tree:
    root: _Tree = {}
    for pattern in patterns:
        below = root
        for name in pattern.strip("/").split("/") if pattern != ROOT else ():
            below = below.setdefault("*" if name.startswith("[") else name, {})
    return root


_TREE: Final = _tree(RIGHTS)
_BY_KEY: Final = {
    "/".join("*" if name.startswith("[") else name for name in pattern.split("/")): pattern for pattern in RIGHTS
}


def pattern_of(path: str) -> str:
    """The key of `RIGHTS` for a path; empty for an unknown znode."""
    key, below = "", _TREE
    for name in path.strip("/").split("/") if path != ROOT else ():
        literal = name if name in below else "*"
        if literal not in below:
            return ""
        key, below = f"{key}/{literal}", below[literal]
    return _BY_KEY[key or ROOT]


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

    :param policy: with the members of its group, or of all groups of its region. Also in an open chroot it is the
        operators' alone.
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
    """As zkCli writes permissions: `cdrwa`."""
    return "".join(letter for letter, bit in _LETTERS.items() if permissions & bit)
