"""ACLs of the modelled ZooKeeper: of one znode each, and not inherited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from zk_group.coordinator.zk.security.policy import WORLD
from zk_group.coordinator.zk.store import DENIED, Acl, AclEntry, Node, Stat

REFUSED: Final = Node(DENIED, Stat(0, 0, 0, 0, 0, 0, 0))
"""What a store returns for a znode that may not be read."""


@dataclass(frozen=True, slots=True)
class SetAcl:
    """Replace a znode's ACL: an operation that only stands alone."""

    path: str
    acl: Acl


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
