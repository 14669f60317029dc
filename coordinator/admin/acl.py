"""The access policy of a chroot and of its groups; finding deviating ACLs, and setting them while groups run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

from ..zk.errors import AccessDenied, BadData, CoordinatorError, OutcomeUnknown, Refused, UsageError
from ..zk.security.policy import ADMIN, ALL, CREATE, WORLD, AclPolicy, acl_of, group_of, letters_of
from ..zk.store import DENIED, Acl, AclEntry, AclStore, Check, Create, Delete, Node, Operation, SetData, nodes_at
from ..zk.update import Change, Failure, ensure, retried, update
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.json_fields import readable
from ..zk.znodes.paths import (
    ACL_POLICY,
    CONSUMERS,
    GROUPS,
    NODES,
    REGIONS,
    ROOT,
    Brokers,
    GroupPaths,
    checked_name,
    is_name,
    names_below,
)
from .topics import ensure_parents

PROBE: Final = "acl-probe-"
"""Prefix of a znode below `/consumers` that shows whether a client is an operator."""
_KEEPS_CHANGING: Final = "the access policy keeps changing: try again"
_NO_POLICY: Final = "this chroot has no access policy: run zk-coordinator acl apply first"
_NO_MEMBERS: Final = "name the identities of the group's members with --members"

_VERBS: Final = {"c": "create below it", "d": "delete below it", "r": "read it", "w": "write it", "a": "set its ACL"}
PASSES: Final = 20
"""Maximum passes of a migration over the tree."""
SET_AT_ONCE: Final = 1000
"""ACLs to set between two reads of a migration."""


def read_policy(store: AclStore) -> AclPolicy:
    """The policy of the chroot; the open one when it has none.

    :raises AccessDenied: when this client may not read it.
    :raises BadData: when it is malformed.
    """
    node = _readable(ACL_POLICY, store.get(ACL_POLICY))
    return AclPolicy.parse(ACL_POLICY, node.data) if node is not None else AclPolicy()


def group_policies(store: AclStore) -> dict[str, AclPolicy | None]:
    """Every group, with its policy; None without one.

    :raises BadData: when one is malformed, or may not be read.
    """
    nodes = nodes_at(store, names_below(store, GROUPS), lambda group: GroupPaths(group).acl)
    return {group: parsed_group(group, node) for group, _, node in nodes}


def groups_without_members(groups: Mapping[str, AclPolicy | None]) -> list[str]:
    """The groups without members in the policy."""
    return [group for group, own in groups.items() if own is None or not own.members]


def groups_outside_their_region(store: AclStore, groups: Mapping[str, AclPolicy | None]) -> list[tuple[str, str]]:
    """Groups that are bound to a consistent region which their policy does not permit, with the region."""
    outside = []
    for group, path, node in nodes_at(store, groups, lambda group: GroupPaths(group).state):
        state = readable(GroupState.parse, path, node)  # the coordinator reports an unreadable one
        region, policy = state.region if state is not None else None, groups[group]
        if region is not None and (policy is None or region.name not in policy.regions):
            outside.append((group, region.name))
    return outside


def create_group(store: AclStore, group: str, members: Sequence[str], regions: Sequence[str]) -> None:
    """Create a group without members: its parents, its empty state, and its members' identities.

    :raises UsageError: when it exists, or the chroot is secured and it has no members.
    """
    checked_name("group", group)
    paths = GroupPaths(group)

    def attempt(before: Failure | None) -> None:
        top, policy = _top(store, members, regions)
        if policy.is_secure and not members:
            raise UsageError(f"this chroot is secured: {_NO_MEMBERS}")
        if members and top is None:
            raise UsageError(_NO_POLICY)
        if store.get(paths.root) is not None:
            node, wanted = store.get(paths.acl), policy.to_bytes() if members else b""
            if isinstance(before, OutcomeUnknown) and (node.data if node is not None else b"") == wanted:
                return  # created by the previous attempt
            raise UsageError(f"group {group} exists: zk-coordinator acl members changes who its members may be")
        ensure(store, (CONSUMERS, GROUPS))
        made: list[Operation] = [Create(path, acl=acl_of(path, policy)) for path in (*paths.skeleton[2:], paths.sync)]
        made.append(Create(paths.state, GroupState().to_bytes(), acl=acl_of(paths.state, policy)))
        if members and top is not None:
            made += [Create(paths.acl, policy.to_bytes(), acl=acl_of(paths.acl, policy)), *_touched(store, top)]
        _commit(store, made, policy)

    retried(store, attempt, lambda: _KEEPS_CHANGING)


def set_members(store: AclStore, group: str, members: Sequence[str], regions: Sequence[str] | None = None) -> None:
    """Set the members' identities of an existing group. ACLs of its znodes follow with `apply`.

    :param regions: the consistent regions that it may be bound to; None keeps the present ones.
    :raises UsageError: when there is no such group, or no policy.
    """
    checked_name("group", group)
    if not members:
        raise UsageError(_NO_MEMBERS)
    path = GroupPaths(group).acl

    def attempt(failure: Failure | None) -> None:
        allowed = regions
        if allowed is None:
            before = parsed_group(group, store.get(path))
            allowed = before.regions if before is not None else ()
        top, policy = _top(store, members, allowed)
        if top is None:
            raise UsageError(_NO_POLICY)
        if store.get(GroupPaths(group).root) is None:
            raise UsageError(f"there is no group {group}: zk-coordinator groups create makes it")
        _commit(store, [*_written(store, path, policy), *_touched(store, top)], policy)

    retried(store, attempt, lambda: _KEEPS_CHANGING)


def of_group(policy: AclPolicy, found: AclPolicy | None) -> AclPolicy:
    """The policy of a group by that of the chroot, with its own members."""
    return replace(policy, members=found.members, regions=found.regions) if found is not None else policy


def parsed_group(group: str, node: Node | None) -> AclPolicy | None:
    """The policy in a group's znode, None without one.

    :raises BadData: when it is malformed, or may not be read.
    """
    try:
        return AclPolicy.parse(GroupPaths(group).acl, node.data) if node is not None else None
    except BadData as error:
        remedy = f"zk-coordinator acl members {group} --members ID --no-regions writes it again"
        raise BadData(f"{error}; {remedy}") from error


def _readable(path: str, node: Node | None) -> Node | None:
    if node is not None and node.data == DENIED:
        raise AccessDenied(path)
    return node


def require_operator(store: AclStore, policy: AclPolicy) -> None:
    """Refuse a policy that would lock out its author: a znode with READ for operators only must be readable.

    Its ACL has the policy's other identities, too: an unknown scheme is refused before any change.

    :raises UsageError: when this client is none of its operators, or the server does not know a scheme.
    """
    others = [*policy.coordinators, *policy.readers]
    acl = {one: CREATE for one in others} | dict.fromkeys(policy.operators, ALL)
    entries = tuple(AclEntry(permissions, one) for one, permissions in acl.items())
    [path] = _commit(store, [Create(f"{CONSUMERS}/{PROBE}", ephemeral=True, sequential=True, acl=entries)], policy)
    try:
        node = store.get(path)
    finally:
        store.commit([Delete(path)])
    if node is None or node.data == DENIED:
        raise UsageError("this client is none of --operators: it would lock itself out; check its credentials")


def _commit(store: AclStore, operations: Sequence[Operation], policy: AclPolicy) -> list[str]:
    try:
        return store.commit(operations)
    except Refused as refused:
        if refused.reason != "InvalidACLError":
            raise
        schemes = ", ".join(sorted({one.partition(":")[0] for one in policy.identities}))
        raise UsageError(f"the server lacks one of the schemes {schemes}") from refused


def checked_size(path: str, policy: AclPolicy) -> AclPolicy:
    """The policy, when every process can read it.

    :raises UsageError: when it is too large.
    """
    try:
        return AclPolicy.parse(path, policy.to_bytes())
    except BadData as error:
        raise UsageError(str(error)) from error


def _top(store: AclStore, members: Sequence[str], regions: Sequence[str]) -> tuple[Node | None, AclPolicy]:
    """The znode of the chroot's policy, None without one, and the policy of a group by it."""
    node = _readable(ACL_POLICY, store.get(ACL_POLICY))
    top = AclPolicy.parse(ACL_POLICY, node.data) if node is not None else AclPolicy()
    return node, checked_size("the group's policy", replace(top, members=tuple(members), regions=tuple(regions)))


def _touched(store: AclStore, top: Node) -> list[Operation]:
    """Sessions read the policies again when `/consumers/acl` is set, or `/consumers`, where they may not read that.

    Refused when either has changed since: an elected node keeps its epoch in `/consumers`.
    """
    node = store.get(CONSUMERS)
    same = [SetData(CONSUMERS, node.data, node.stat.version)] if node is not None else []
    return [SetData(ACL_POLICY, top.data, top.stat.version), *same]


def _written(store: AclStore, path: str, policy: AclPolicy) -> list[Operation]:
    """The operations that write a policy. The ACL of an existing znode is set before: clients notified of the change
    may then read it."""
    acl, data = acl_of(path, policy), policy.to_bytes()
    node = _readable(path, store.get(path)) if store.set_acl(path, acl) else None
    if node is None:
        return [Create(path, data, acl=acl)]
    return [SetData(path, data, node.stat.version)] if node.data != data else []


def write_policy(store: AclStore, policy: AclPolicy) -> None:
    """Write the policy of the chroot, and those of its groups, which repeat it.

    :raises CoordinatorError: when another operator changes it meanwhile.
    """
    update(store, ACL_POLICY, lambda node: Change(_written(store, ACL_POLICY, policy), None))
    write_groups(store, policy)
    retried(store, lambda before: store.commit(_touched(store, _same(store, policy))), lambda: _KEEPS_CHANGING)


def write_groups(store: AclStore, policy: AclPolicy) -> None:
    """Let the policy of every group repeat the chroot's; raises as `write_policy`."""
    for group, current in group_policies(store).items():
        if current is not None and current != of_group(policy, current):
            retried(store, partial(_write_group, store, group, policy), lambda: _KEEPS_CHANGING)


def _write_group(store: AclStore, group: str, policy: AclPolicy, before: Failure | None) -> None:
    top, path = _same(store, policy), GroupPaths(group).acl
    current = parsed_group(group, store.get(path))
    if current is not None:
        written = _written(store, path, of_group(policy, current))
        store.commit([*written, Check(ACL_POLICY, top.stat.version)])


def _same(store: AclStore, policy: AclPolicy) -> Node:
    """The znode of the chroot's policy, if unchanged."""
    node = store.get(ACL_POLICY)
    if node is None or node.data != policy.to_bytes():
        raise CoordinatorError("another operator has changed the policy meanwhile: look at acl check")
    return node


# ---- the ACLs of the tree


@dataclass(frozen=True, slots=True)
class Deviation:
    """A znode's ACL, or a group's policy, that deviates from the policy of the chroot.

    :ivar found: empty when this client may neither read nor administer the znode.
    :ivar meaning: its effect.
    """

    path: str
    found: Acl
    expected: Acl
    meaning: str


def check(store: AclStore, brokers: Brokers) -> Iterator[Deviation]:
    """The znodes whose ACLs deviate from the policy, parents first; before them groups with a deviating policy.

    :raises CoordinatorError: when a policy cannot be read.
    """
    policy = read_policy(store)
    for group, own in group_policies(store).items():
        if own is not None and own != of_group(policy, own):
            yield Deviation(GroupPaths(group).acl, (), (), "it repeats an earlier policy: run acl apply")
        elif policy.is_secure and (own is None or not own.members):
            yield Deviation(GroupPaths(group).acl, (), (), "the group has no members: run acl members")
    yield from deviations(store, policy, brokers)


def deviations(store: AclStore, policy: AclPolicy, brokers: Brokers) -> Iterator[Deviation]:
    """The znodes whose ACLs deviate from `policy`, parents first.

    :raises CoordinatorError: when a group's policy cannot be read.
    """
    wanted = _Wanted(store, policy)
    own = store.get_acls([ACL_POLICY])[0] or ()
    is_operator = bool(own) and not _is_masked(own)
    for paths in _tree(store, policy, brokers):
        for path, actual in zip(paths, store.get_acls(paths), strict=True):
            expected = acl_of(path, wanted.of(path))
            if actual is None:
                continue
            if is_operator and _is_masked(actual):  # it may name the operators with other passwords
                yield Deviation(path, actual, expected, "this client may not administer it: an operator may remove it")
            elif _combined(actual) != _combined(_as_shown(expected, actual)):
                yield Deviation(path, actual, expected, _meaning(actual, expected))


def apply(store: AclStore, policy: AclPolicy, brokers: Brokers) -> tuple[int, list[str]]:
    """Write the policy, then the ACLs of all znodes, while groups run. Repeated after an interruption, it continues.

    First the policy: from then on processes create znodes with the new ACLs. Then the tree, parents first, until a pass
    finds nothing to set. A znode is skipped if this client may not administer it.

    :returns: the number of ACLs set, and the znodes whose ACL this client may not set.
    :raises UsageError: when this client is not an operator of the policy, the server does not know a scheme in it, or a
        group has no members in it.
    :raises CoordinatorError: when the tree does not come to rest, or another operator changes the policy meanwhile.
    """
    ensure(store, (CONSUMERS,))
    require_operator(store, policy)
    groups = group_policies(store)
    nameless = groups_without_members(groups)
    if policy.is_secure and nameless:
        raise UsageError(
            f"group {nameless[0]} has no members in the policy: name them with zk-coordinator acl members "
            f"{nameless[0]} --members ID" + (f" ({len(nameless)} groups in all)" if len(nameless) > 1 else "")
        )
    if policy.is_secure and (outside := groups_outside_their_region(store, groups)):
        group, region = outside[0]
        raise UsageError(
            f"group {group} is bound to consistent region {region}, which its policy does not permit: "
            f"zk-coordinator acl members {group} --members ID --regions {region}"
        )
    for group, own in groups.items():
        checked_size(GroupPaths(group).acl, of_group(policy, own))
    write_policy(store, policy)
    if policy.is_secure:
        ensure(store, (GROUPS, NODES, REGIONS))
        ensure_parents(store, brokers.topics)
    count, refused = 0, set[str]()
    for _ in range(PASSES):
        write_groups(store, policy)
        changed, left = 0, (each for each in deviations(store, policy, brokers) if each.path not in refused)
        while batch := list(islice(left, SET_AT_ONCE)):
            done = store.set_acls([(each.path, each.expected) for each in batch])
            refused.update(each.path for each, is_set in zip(batch, done, strict=True) if is_set is False)
            changed += sum(is_set is True for is_set in done)
        count += changed
        if not changed:
            _same(store, policy)
            return count, sorted(refused)
    raise CoordinatorError(f"after {PASSES} passes znodes are still created with other ACLs: look at acl check")


class _Wanted:
    """The policy for each znode, by that of the chroot and the members of groups.

    Not by the groups' own copies of it: an interrupted migration leaves outdated ones.
    """

    def __init__(self, store: AclStore, policy: AclPolicy) -> None:
        self._store = store
        self._policy = policy
        self._groups = group_policies(store)
        self._of_regions: dict[str, AclPolicy] = {}

    def of(self, path: str) -> AclPolicy:
        group, names = group_of(path), path.split("/")
        if group:
            if group not in self._groups:  # created since
                node = self._store.get(GroupPaths(group).acl) if is_name(group) else None
                self._groups[group] = parsed_group(group, node)
            return of_group(self._policy, self._groups[group])
        region = names[3] if path.startswith(f"{REGIONS}/") else ""
        if region and region not in self._of_regions:
            allowed = [each.members for each in self._groups.values() if each is not None and region in each.regions]
            members = tuple(dict.fromkeys(one for some in allowed for one in some))
            self._of_regions[region] = replace(self._policy, members=members)
        return self._of_regions[region] if region else self._policy


def _tree(store: AclStore, policy: AclPolicy, brokers: Brokers) -> Iterator[list[str]]:
    """Every existing znode of the product, parents first; of topics only where Kafka does not manage them."""
    if _owns_chroot(store, policy, brokers):
        yield [ROOT]
    roots = [CONSUMERS]
    if store.get(brokers.ids) is None:  # Kafka in ZooKeeper mode creates it, and keeps it while no broker runs
        roots.append(brokers.root)
    while roots:
        listings = store.children_many(roots)
        found = [(path, each) for path, each in zip(roots, listings, strict=True) if each and path != brokers.ids]
        yield [path for path, _ in found]
        paths = [f"{path}/{name}" for path, listing in found for name in sorted(listing.found)]
        roots = [path for path in paths if not path.startswith(f"{CONSUMERS}/{PROBE}")]


def _owns_chroot(store: AclStore, policy: AclPolicy, brokers: Brokers) -> bool:
    """Whether `/` is the product's alone, and operators may administer it. The ensemble's root, and Kafka's chroot, are
    not; nor is a root closed by another administrator.
    """
    listing = store.children(ROOT)
    if listing is None or not {*listing.found} <= {path.split("/")[1] for path in (CONSUMERS, brokers.root)}:
        return False
    entries = store.get_acls([ROOT])[0] or ()
    if not policy.is_secure:
        return _combined(entries) == _combined(acl_of(ROOT, replace(policy, is_secure=True)))
    admins = {one.identity for one in entries if one.permissions & ADMIN}
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
    """Whether the server hides digests in it: from clients without ADMIN on the znode."""
    return any(one.identity.startswith("digest:") and one.identity.endswith(":x") for one in acl)


def _combined(acl: Acl) -> dict[str, int]:
    """Identity -> permissions; an ACL may name one twice."""
    found: dict[str, int] = {}
    for permissions, identity in acl:
        found[identity] = found.get(identity, 0) | permissions
    return found


def _meaning(found: Acl, expected: Acl) -> str:
    """The effect of a deviation, in one line."""
    if not found:
        return "this client may neither read nor administer it: an operator may remove it"
    has, needs = _combined(found), _combined(_as_shown(expected, found))
    more = {one: has[one] & ~needs.get(one, 0) for one in has}
    less = {one: needs[one] & ~(has.get(one, 0) | has.get(WORLD, 0)) for one in needs}
    parts = [
        f"{'anybody' if one == WORLD else one} {may} {', '.join(_VERBS[letter] for letter in letters_of(rights))}"
        for may, found_rights in (("may", more), ("may not", less))
        for one, rights in found_rights.items()
        if rights
    ]
    return "; ".join(parts) or "it names rights of a party twice"
