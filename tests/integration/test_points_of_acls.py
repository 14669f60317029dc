"""What happens between any two requests of `acl apply` is neither undone nor left with an ACL of before.

The modelled ZooKeeper has no ACLs: a table beside it has those of its znodes, and nothing is refused by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import pytest

from coordinator.admin.acl import apply, check
from coordinator.admin.acl_policy import create_group, group_policies, read_policy, set_members
from coordinator.admin.delete_group import delete_group
from coordinator.admin.inactive_group import GroupIdNotFound
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.security.policy import AclPolicy
from coordinator.zk.security.rights import WORLD, acl_of
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Acl, AclEntry, AclStore, Create, Operation, SetData, Store
from coordinator.zk.znodes.paths import CONSUMERS, Brokers, GroupPaths
from tests.support.made_group import MadeGroup
from tests.support.points import Point, at_every_point, in_virtual_time, nothing, reply_to_a_commit_is_lost
from tests.support.stores import FrontStore
from tests.support.world import World, a_world

PATHS = GroupPaths("g")
OPEN: Acl = (AclEntry(31, WORLD),)
BEFORE = AclPolicy(False, False, ("sasl:coordinator",), ("sasl:ann",), ())
SECURE = replace(BEFORE, is_secure=True)
OTHER = replace(SECURE, operators=("sasl:ann", "sasl:bob"))


class TabledStore(FrontStore, AclStore):
    """A session with ACLs.

    :param table: path -> ACL, of all sessions.
    """

    def __init__(self, store: Store, table: dict[str, Acl], point: Point | None = None) -> None:
        super().__init__(store if point is None else point.wrap(store))
        self._table = table
        self._point = point

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        created = self.behind.commit(operations)
        for path, each in zip(created, operations, strict=True):
            if isinstance(each, Create):
                self._table[path] = each.acl or OPEN
        return created

    def get_acls(self, paths: Sequence[str]) -> list[Acl | None]:
        there = self.behind.get_many(paths)
        return [self._table.get(path, OPEN) if node else None for path, node in zip(paths, there, strict=True)]

    def set_acls(self, acls: Sequence[tuple[str, Acl]]) -> list[bool | None]:
        there = self.behind.get_many([path for path, _ in acls])
        self._table.update(one for one, node in zip(acls, there, strict=True) if node)
        return [True if node else None for node in there]

    def set_acl(self, path: str, acl: Acl) -> bool:
        return self.set_acls([(path, acl)]) == [True]


@dataclass
class Scene:
    """A chroot with a policy that is open still, and groups `g` and `h`; `store` is another operator's session."""

    world: World
    point: Point
    store: AclStore


def another_applies_another_policy(scene: Scene) -> None:
    apply(scene.store, OTHER, Brokers())


def another_names_other_members(scene: Scene) -> None:
    set_members(scene.store, "g", ["sasl:team-b"])


def group_is_created(scene: Scene) -> None:
    create_group(scene.store, "i", ["sasl:team-c"], ())


def group_is_deleted(scene: Scene) -> None:
    with suppress(GroupIdNotFound):
        delete_group(scene.store, "h")


def member_registers(scene: Scene) -> None:
    """By the policy of before, as long as no ACL of its group is another: it has not read the new one yet."""
    policy = group_policies(scene.store)["g"]
    assert policy is not None
    policy = replace(policy, is_secure=scene.store.get_acls([PATHS.root]) != [OPEN])
    scene.store.commit([Create(path, acl=acl_of(path, policy)) for path in (PATHS.channel("c2"), PATHS.id("c2"))])


def node_is_elected(scene: Scene) -> None:
    """It keeps its epoch in `/consumers`."""
    scene.store.commit([SetData(CONSUMERS, b'{"version":1,"epoch":7}')])


CHANGES = [
    nothing,
    reply_to_a_commit_is_lost,
    another_applies_another_policy,
    another_names_other_members,
    group_is_created,
    group_is_deleted,
    member_registers,
    node_is_elected,
]

MAY_FAIL = (reply_to_a_commit_is_lost, another_applies_another_policy, group_is_deleted)
"""It says so, and the next one carries it out."""


@pytest.mark.parametrize("change", CHANGES)
def test_all_znodes_are_by_the_policy_whatever_happens_meanwhile(change: Callable[[Scene], None]) -> None:
    def play(zk: str, point: Point) -> None:
        table = dict[str, Acl]()
        with a_world(zk) as world, closing(open_kazoo(zk, 30_000)) as session:
            store = TabledStore(world.store, table)
            apply(store, BEFORE, Brokers())
            for name in "gh":
                MadeGroup(store, name).member("c1", {"t": 1})
                MadeGroup(store, name).leaves("c1")
                set_members(store, name, ["sasl:team-a"])
            scene, failed = Scene(world, point, store), None
            with point.sequence(lambda: change(scene)):
                try:
                    apply(TabledStore(session, table, point), SECURE, Brokers())
                except CoordinatorError as error:
                    failed = error
            if change is another_applies_another_policy:
                assert read_policy(store) in ((OTHER,) if failed is not None else (OTHER, SECURE))
            elif failed is None:
                assert read_policy(store) == SECURE
            assert failed is None or change in MAY_FAIL
            if failed is not None or change is another_names_other_members:  # `acl members` asks for it, too
                apply(store, SECURE, Brokers())
            assert list(check(store, Brokers())) == []
            groups = group_policies(store)
            members = "sasl:team-b" if change is another_names_other_members else "sasl:team-a"
            assert groups["g"] is not None and groups["g"].members == (members,)
            assert ("h" in groups) == (change is not group_is_deleted)
            if change is node_is_elected:
                assert world.data(CONSUMERS) == b'{"version":1,"epoch":7}'

    assert at_every_point(in_virtual_time(play), answers=False) > 20
