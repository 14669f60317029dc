"""Access control of a chroot: its policy, the members of groups, and the ACLs of all znodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..zk.batching import ensure
from ..zk.errors import AccessDenied, CoordinatorError, UsageError
from ..zk.security.policy import AclPolicy
from ..zk.security.rights import ADMIN, WORLD, acl_of, letters_of
from ..zk.security.source import AclSource
from ..zk.store import DENIED, Acl, AclEntry, AclStore, Create, Delete, Operation, SetData
from ..zk.update import Change, update
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.names import checked_name, is_name
from ..zk.znodes.paths import ACL_POLICY, CONSUMERS, GROUPS, NODES, REGIONS, ROOT, Brokers, GroupPaths

PASSES: Final = 20
"""Passes over the tree in which a migration must come to rest."""
_PROBE: Final = f"{CONSUMERS}/acl-probe"


@dataclass(frozen=True, slots=True)
class Deviation:
    """A znode whose ACL is not that of the policy.

    :ivar found: empty when this client may neither read nor administer the znode.
    :ivar meaning: what that allows or prevents.
    """

    path: str
    found: Acl
    expected: Acl
    meaning: str


def read_policy(store: AclStore) -> AclPolicy:
    """The policy of the chroot; the open one when it has none.

    :raises AccessDenied: when this client may not read it.
    :raises BadData: when it is malformed.
    """
    node = store.get(ACL_POLICY)
    if node is not None and node.data == DENIED:
        raise AccessDenied(ACL_POLICY)
    return AclPolicy.parse(ACL_POLICY, node.data) if node is not None else AclPolicy()


def group_policies(store: AclStore) -> dict[str, AclPolicy | None]:
    """Every group, with its policy; None without one.

    :raises BadData: when one is malformed.
    """
    listing = store.children(GROUPS)
    groups = sorted(name for name in (listing.names if listing else ()) if is_name(name))
    paths = [GroupPaths(group).acl for group in groups]
    nodes = zip(groups, paths, store.get_many(paths), strict=True)
    return {group: AclPolicy.parse(path, node.data) if node is not None else None for group, path, node in nodes}


def create_group(store: AclStore, group: str, members: Sequence[str], regions: Sequence[str]) -> None:
    """Create a group without members: its parents, its empty state, and who its members may be.

    :raises UsageError: when it exists, or the chroot is secured and nobody may be a member.
    """
    checked_name("group", group)
    policy = replace(read_policy(store), members=tuple(members), regions=tuple(regions))
    if policy.is_secure and not members:
        raise UsageError("this chroot is secured: name the identities of the group's members with --members")
    if members and not policy.operators:
        raise UsageError("this chroot has no access policy: run zk-coordinator acl apply first")
    paths = GroupPaths(group)
    if store.get(paths.root) is not None:
        raise UsageError(f"group {group} exists: zk-coordinator acl members changes who its members may be")
    ensure(store, (CONSUMERS, GROUPS))
    made: list[Operation] = [Create(path, acl=acl_of(path, policy)) for path in (*paths.skeleton[2:], paths.sync)]
    made.append(Create(paths.state, GroupState().to_bytes(), acl=acl_of(paths.state, policy)))
    if members:
        made += [Create(paths.acl, policy.to_bytes(), acl=acl_of(paths.acl, policy)), _touched(store)]
    store.commit(made)


def set_members(store: AclStore, group: str, members: Sequence[str], regions: Sequence[str]) -> None:
    """Set who may be a member of an existing group. ACLs of its znodes follow with `apply`.

    :raises UsageError: when there is no such group, or no policy.
    """
    checked_name("group", group)
    policy = replace(read_policy(store), members=tuple(members), regions=tuple(regions))
    if not policy.operators:
        raise UsageError("this chroot has no access policy: run zk-coordinator acl apply first")
    if not members:
        raise UsageError("name the identities of the group's members with --members")
    if store.get(GroupPaths(group).root) is None:
        raise UsageError(f"there is no group {group}: zk-coordinator groups create makes it")
    _write(store, GroupPaths(group).acl, policy)
    store.commit([_touched(store)])


def check(store: AclStore, brokers: Brokers) -> Iterator[Deviation]:
    """The znodes whose ACLs deviate from the policy, parents first; before them groups whose own policy does.

    :raises CoordinatorError: when a policy cannot be read.
    """
    policy = read_policy(store)
    for group, found in group_policies(store).items():
        if found is not None and replace(found, members=(), regions=()) != policy:
            yield Deviation(GroupPaths(group).acl, (), (), "it repeats an earlier policy: run acl apply")
        elif policy.is_secure and (found is None or not found.members):
            yield Deviation(GroupPaths(group).acl, (), (), "nobody may be a member of the group: run acl members")
    yield from _deviations(store, policy, brokers)


def _deviations(store: AclStore, policy: AclPolicy, brokers: Brokers) -> Iterator[Deviation]:
    acls = AclSource(store)
    for paths in _tree(store, policy, brokers):
        for path, found in zip(paths, store.get_acls(paths), strict=True):
            expected = acl_of(path, acls.policy_of(path))
            if found is not None and not _is_same(found, expected):
                yield Deviation(path, found, expected, _meaning(found, expected))


def apply(store: AclStore, policy: AclPolicy, brokers: Brokers) -> int:
    """Write the policy, then the ACLs of all znodes, while groups run; the number of ACLs that were set.

    First the policy: what processes create from then on has the new ACLs. Then the tree, parents first, until a pass
    finds nothing to set.

    :raises UsageError: when this client is not an operator of the policy, or a group has no members in it.
    :raises CoordinatorError: when the tree does not come to rest.
    """
    ensure(store, (CONSUMERS,))
    _require_operator(store, policy)
    known = group_policies(store)
    nameless = [group for group, found in known.items() if found is None or not found.members]
    if policy.is_secure and nameless:
        raise UsageError(
            f"group {nameless[0]} has no members in the policy: name them with zk-coordinator acl members "
            f"{nameless[0]} --members ID" + (f" ({len(nameless)} groups in all)" if len(nameless) > 1 else "")
        )
    _write(store, ACL_POLICY, policy)
    for group, found in known.items():
        if found is not None:
            _write(store, GroupPaths(group).acl, replace(policy, members=found.members, regions=found.regions))
    if policy.is_secure:
        ensure(store, (GROUPS, NODES, REGIONS, *_parents(brokers.topics)))
    count = 0
    for _ in range(PASSES):
        changed = sum(_set(store, each) for each in _deviations(store, policy, brokers))
        count += changed
        if not changed:
            return count
    raise CoordinatorError(f"after {PASSES} passes znodes are still created with other ACLs: look at acl check")


def _set(store: AclStore, deviation: Deviation) -> int:
    return int(store.set_acl(deviation.path, deviation.expected))


def _require_operator(store: AclStore, policy: AclPolicy) -> None:
    """Refuse a policy that would lock out its author: a znode of the operators alone must be readable."""
    store.commit([Create(_PROBE, ephemeral=True, acl=tuple(AclEntry(31, one) for one in policy.operators))])
    try:
        node = store.get(_PROBE)
    finally:
        store.commit([Delete(_PROBE)])
    if node is None or node.data == DENIED:
        raise UsageError("this client is none of --operators: it would lock itself out; check its credentials")


def _write(store: AclStore, path: str, policy: AclPolicy) -> None:
    """Create or change a policy's znode, and its ACL."""
    data, acl = policy.to_bytes(), acl_of(path, policy)

    def change(node: object) -> Change[None]:
        found = store.get(path)
        if found is None:
            return Change([Create(path, data, acl=acl)], None)
        return Change([SetData(path, data, found.stat.version)] if found.data != data else [], None)

    update(store, path, change)
    store.set_acl(path, acl)


def _touched(store: AclStore) -> Operation:
    """Sessions read the policies again when `/consumers/acl` is set."""
    node = store.get(ACL_POLICY)
    if node is None:
        raise UsageError("this chroot has no access policy: run zk-coordinator acl apply first")
    return SetData(ACL_POLICY, node.data, node.stat.version)


def _parents(path: str) -> list[str]:
    names = path.strip("/").split("/")
    return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]


def _tree(store: AclStore, policy: AclPolicy, brokers: Brokers) -> Iterator[list[str]]:
    """Every znode of the product that exists, parents first; of topics only where Kafka does not manage them."""
    if _owns_chroot(store, policy, brokers):
        yield [ROOT]
    roots = [CONSUMERS]
    brokers_there = store.children(brokers.ids)
    if not (brokers_there is not None and brokers_there.found):
        roots.append(brokers.brokers_path)
    while roots:
        listings = store.children_many(roots)
        found = [(path, each) for path, each in zip(roots, listings, strict=True) if each and path != brokers.ids]
        yield [path for path, _ in found]
        roots = [f"{path}/{name}" for path, listing in found for name in sorted(listing.found)]


def _owns_chroot(store: AclStore, policy: AclPolicy, brokers: Brokers) -> bool:
    """Whether `/` is the product's alone, and operators may administer it. The ensemble's root, and Kafka's chroot, are
    not.
    """
    listing = store.children(ROOT)
    if listing is None or not {*listing.found} <= {path.split("/")[1] for path in (CONSUMERS, brokers.brokers_path)}:
        return False
    (found,) = store.get_acls([ROOT])
    admins = {one.identity for one in found or () if one.permissions & ADMIN}
    return not admins.isdisjoint((WORLD, *policy.operators))


def _is_same(found: Acl, expected: Acl) -> bool:
    """Whether two ACLs give the same rights. ZooKeeper masks digests where this client is no administrator."""
    if any(one.identity.startswith("digest:") and one.identity.endswith(":x") for one in found):
        return _masked(found) == _masked(expected)
    return set(found) == set(expected)


def _masked(acl: Acl) -> set[AclEntry]:
    return {
        AclEntry(one.permissions, one.identity.rpartition(":")[0]) if one.identity.startswith("digest:") else one
        for one in acl
    }


def _meaning(found: Acl, expected: Acl) -> str:
    """What a deviation allows and prevents, in one line."""
    if not found:
        return "this client may neither read nor administer it"
    has, needs = dict((i, p) for p, i in found), dict((i, p) for p, i in expected)
    parts = [
        f"{'anybody' if identity == WORLD else identity} may {_verbs(more)}"
        for identity, permissions in has.items()
        if (more := permissions & ~needs.get(identity, 0))
    ]
    parts += [
        f"{'anybody' if identity == WORLD else identity} may not {_verbs(less)}"
        for identity, permissions in needs.items()
        if (less := permissions & ~(has.get(identity, 0) | has.get(WORLD, 0)))
    ]
    return "; ".join(parts)


def _verbs(permissions: int) -> str:
    names = {"c": "create below it", "d": "delete below it", "r": "read it", "w": "write it", "a": "set its ACL"}
    return ", ".join(names[letter] for letter in letters_of(permissions))
