"""The ACLs of all znodes of a chroot: which deviate from its access policy, and setting them while groups run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from ..zk.errors import CoordinatorError, UsageError
from ..zk.security.policy import ADMIN, WORLD, AclPolicy, acl_of, group_of, letters_of
from ..zk.store import Acl, AclEntry, AclStore
from ..zk.update import ensure
from ..zk.znodes.paths import ACL_POLICY, CONSUMERS, GROUPS, NODES, REGIONS, ROOT, Brokers, GroupPaths, is_name
from . import acl_policy
from .topics import ensure_parents

PASSES: Final = 20
"""Passes over the tree in which a migration must come to rest."""
SET_AT_ONCE: Final = 1000
"""ACLs that are set between two reads of a migration."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A znode whose ACL, or a group's policy that, is not by the policy of the chroot.

    :ivar found: empty when this client may neither read nor administer the znode.
    :ivar meaning: what that allows or prevents.
    """

    path: str
    found: Acl
    expected: Acl
    meaning: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What a migration did.

    :ivar count: ACLs that were set.
    :ivar refused: znodes whose ACL this client may not set.
    """

    count: int
    refused: tuple[str, ...]


def check(store: AclStore, brokers: Brokers) -> Iterator[Deviation]:
    """The znodes whose ACLs deviate from the policy, parents first; before them groups whose own policy does.

    :raises CoordinatorError: when a policy cannot be read.
    """
    policy = acl_policy.read_policy(store)
    for group, found in acl_policy.group_policies(store).items():
        if found is not None and found != acl_policy.of_group(policy, found):
            yield Deviation(GroupPaths(group).acl, (), (), "it repeats an earlier policy: run acl apply")
        elif policy.is_secure and (found is None or not found.members):
            yield Deviation(GroupPaths(group).acl, (), (), "the group has no members: run acl members")
    yield from deviations(store, policy, brokers)


def deviations(store: AclStore, policy: AclPolicy, brokers: Brokers) -> Iterator[Deviation]:
    """The znodes whose ACLs are not by `policy`, parents first.

    :raises CoordinatorError: when a group's policy cannot be read.
    """
    wanted = _Wanted(store, policy)
    own = store.get_acls([ACL_POLICY])[0] or ()
    is_operator = bool(own) and not _is_masked(own)
    for paths in _tree(store, policy, brokers):
        for path, found in zip(paths, store.get_acls(paths), strict=True):
            expected = acl_of(path, wanted.of(path))
            if found is None:
                continue
            if is_operator and _is_masked(found):  # it may name the operators with other passwords
                yield Deviation(path, found, expected, "this client may not administer it: an operator may remove it")
            elif _combined(found) != _combined(_as_shown(expected, found)):
                yield Deviation(path, found, expected, _meaning(found, expected))


def apply(store: AclStore, policy: AclPolicy, brokers: Brokers) -> Applied:
    """Write the policy, then the ACLs of all znodes, while groups run. Repeated after an interruption, it goes on.

    First the policy: what processes create from then on has the new ACLs. Then the tree, parents first, until a pass
    finds nothing to set. A znode that this client may not administer is passed over.

    :raises UsageError: when this client is not an operator of the policy, the server does not know a scheme in it, or a
        group has no members in it.
    :raises CoordinatorError: when the tree does not come to rest, or another operator changes the policy meanwhile.
    """
    ensure(store, (CONSUMERS,))
    acl_policy.require_operator(store, policy)
    groups = acl_policy.group_policies(store)
    nameless = acl_policy.groups_without_members(groups)
    if policy.is_secure and nameless:
        raise UsageError(
            f"group {nameless[0]} has no members in the policy: name them with zk-coordinator acl members "
            f"{nameless[0]} --members ID" + (f" ({len(nameless)} groups in all)" if len(nameless) > 1 else "")
        )
    if policy.is_secure and (outside := acl_policy.groups_outside_their_region(store, groups)):
        group, region = outside[0]
        raise UsageError(
            f"group {group} is bound to consistent region {region}, which its policy does not permit: "
            f"zk-coordinator acl members {group} --members ID --regions {region}"
        )
    for group, found in groups.items():
        acl_policy.checked_size(GroupPaths(group).acl, acl_policy.of_group(policy, found))
    acl_policy.write_policy(store, policy)
    if policy.is_secure:
        ensure(store, (GROUPS, NODES, REGIONS))
        ensure_parents(store, brokers.topics)
    count, refused = 0, set[str]()
    for _ in range(PASSES):
        acl_policy.write_groups(store, policy)
        changed, left = 0, (each for each in deviations(store, policy, brokers) if each.path not in refused)
        while batch := list(islice(left, SET_AT_ONCE)):
            done = store.set_acls([(each.path, each.expected) for each in batch])
            refused.update(each.path for each, is_set in zip(batch, done, strict=True) if is_set is False)
            changed += sum(is_set is True for is_set in done)
        count += changed
        if not changed:
            if acl_policy.read_policy(store) != policy:
                raise CoordinatorError("another operator has changed the policy meanwhile: look at acl check")
            return Applied(count, tuple(sorted(refused)))
    raise CoordinatorError(f"after {PASSES} passes znodes are still created with other ACLs: look at acl check")


class _Wanted:
    """The policy for each znode, by that of the chroot and the members of groups.

    Not by the groups' own copies of it, which a process may have: an interrupted migration leaves some behind.
    """

    def __init__(self, store: AclStore, policy: AclPolicy) -> None:
        self._store = store
        self._policy = policy
        self._groups = acl_policy.group_policies(store)
        self._of_regions: dict[str, AclPolicy] = {}

    def of(self, path: str) -> AclPolicy:
        group, names = group_of(path), path.split("/")
        if group:
            if group not in self._groups:  # created since
                node = self._store.get(GroupPaths(group).acl) if is_name(group) else None
                self._groups[group] = acl_policy.parsed_group(group, node)
            return acl_policy.of_group(self._policy, self._groups[group])
        region = names[3] if path.startswith(f"{REGIONS}/") else ""
        if region and region not in self._of_regions:
            allowed = [each.members for each in self._groups.values() if each is not None and region in each.regions]
            members = tuple(dict.fromkeys(one for some in allowed for one in some))
            self._of_regions[region] = replace(self._policy, members=members)
        return self._of_regions[region] if region else self._policy


def _tree(store: AclStore, policy: AclPolicy, brokers: Brokers) -> Iterator[list[str]]:
    """Every znode of the product that exists, parents first; of topics only where Kafka does not manage them."""
    if _owns_chroot(store, policy, brokers):
        yield [ROOT]
    roots = [CONSUMERS]
    if store.get(brokers.ids) is None:  # Kafka in ZooKeeper mode creates it, and keeps it while no broker runs
        roots.append(brokers.brokers_path)
    while roots:
        listings = store.children_many(roots)
        found = [(path, each) for path, each in zip(roots, listings, strict=True) if each and path != brokers.ids]
        yield [path for path, _ in found]
        roots = [
            f"{path}/{name}"
            for path, listing in found
            for name in sorted(listing.found)
            if not (path == CONSUMERS and name.startswith(acl_policy.PROBE))
        ]


def _owns_chroot(store: AclStore, policy: AclPolicy, brokers: Brokers) -> bool:
    """Whether `/` is the product's alone, and operators may administer it. The ensemble's root, and Kafka's chroot, are
    not; and one that somebody else has closed is not opened.
    """
    listing = store.children(ROOT)
    if listing is None or not {*listing.found} <= {path.split("/")[1] for path in (CONSUMERS, brokers.brokers_path)}:
        return False
    found = store.get_acls([ROOT])[0] or ()
    if not policy.is_secure:
        return _combined(found) == _combined(acl_of(ROOT, replace(policy, is_secure=True)))
    admins = {one.identity for one in found if one.permissions & ADMIN}
    return not admins.isdisjoint((WORLD, *policy.operators))


def _as_shown(expected: Acl, found: Acl) -> Acl:
    """`expected` as the server shows it: it masks digests where this client is no administrator."""
    if not _is_masked(found):
        return expected
    return tuple(
        AclEntry(one.permissions, f"{one.identity.rpartition(':')[0]}:x") if one.identity.startswith("digest:") else one
        for one in expected
    )


def _is_masked(acl: Acl) -> bool:
    """Whether the server hides digests in it: from who may not administer the znode."""
    return any(one.identity.startswith("digest:") and one.identity.endswith(":x") for one in acl)


def _combined(acl: Acl) -> dict[str, int]:
    """Identity -> permissions; an ACL may name one twice."""
    found: dict[str, int] = {}
    for permissions, identity in acl:
        found[identity] = found.get(identity, 0) | permissions
    return found


def _meaning(found: Acl, expected: Acl) -> str:
    """What a deviation allows and prevents, in one line."""
    if not found:
        return "this client may neither read nor administer it: an operator may remove it"
    has, needs = _combined(found), _combined(_as_shown(expected, found))
    more = {one: has[one] & ~needs.get(one, 0) for one in has}
    less = {one: needs[one] & ~(has.get(one, 0) | has.get(WORLD, 0)) for one in needs}
    parts = [
        f"{'anybody' if one == WORLD else one} {may} {_verbs(rights)}"
        for may, found_rights in (("may", more), ("may not", less))
        for one, rights in found_rights.items()
        if rights
    ]
    return "; ".join(parts) or "it names rights of a party twice"


def _verbs(permissions: int) -> str:
    names = {"c": "create below it", "d": "delete below it", "r": "read it", "w": "write it", "a": "set its ACL"}
    return ", ".join(names[letter] for letter in letters_of(permissions))
