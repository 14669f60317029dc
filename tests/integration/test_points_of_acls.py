"""What happens between any two requests of `acl apply` is neither undone nor left with an ACL of before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from coordinator.admin.acl import apply, check, create_group, group_policies, read_policy, set_members
from coordinator.admin.delete_group import delete_group
from coordinator.admin.offsets import GroupIdNotFound
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.security.policy import WORLD, AclPolicy, acl_of
from coordinator.zk.store import Acl, AclEntry, AclStore, Create, SetData
from coordinator.zk.znodes.paths import CONSUMERS, Brokers, GroupPaths
from tests.support.made_group import MadeGroup
from tests.support.parties import Parties, identity_of
from tests.support.points import Point, at_every_point, in_virtual_time, nothing, reply_to_a_commit_is_lost
from tests.support.stores import FrontStore
from tests.support.world import a_world

PATHS = GroupPaths("g")
OPEN: Acl = (AclEntry(31, WORLD),)
BEFORE = AclPolicy(False, False, (identity_of("coordinator"),), (identity_of("operator"),), ())
SECURE = replace(BEFORE, is_secure=True)
OTHER = replace(SECURE, operators=(identity_of("operator"), identity_of("bob")))


class PointedStore(FrontStore, AclStore):
    """A session at a point, requests for ACLs included."""

    def __init__(self, store: AclStore, point: Point) -> None:
        super().__init__(point.wrap(store))
        self._acls = store
        self._point = point

    def get_acls(self, paths: Sequence[str]) -> list[Acl | None]:
        with self._point.asked("get ACLs"):
            return self._acls.get_acls(paths)

    def set_acls(self, acls: Sequence[tuple[str, Acl]]) -> list[bool | None]:
        with self._point.asked("set ACLs"):
            return self._acls.set_acls(acls)

    def set_acl(self, path: str, acl: Acl) -> bool:
        return self.set_acls([(path, acl)]) == [True]


@dataclass
class Scene:
    """A chroot with a policy that is open still, and groups `g` and `h`; `store` is another operator's session."""

    point: Point
    store: AclStore


def another_applies_another_policy(scene: Scene) -> None:
    apply(scene.store, OTHER, Brokers())


def another_names_other_members(scene: Scene) -> None:
    set_members(scene.store, "g", [identity_of("team-b")])


def group_is_created(scene: Scene) -> None:
    create_group(scene.store, "i", [identity_of("team-c")], ())


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
def test_all_znodes_are_by_the_policy_whatever_happens_meanwhile(
    change: Callable[[Scene], None], tmp_path: Path
) -> None:
    def play(zk: str, point: Point) -> None:
        operator = Parties(zk, tmp_path).session
        with a_world(zk), closing(operator("operator")) as store, closing(operator("operator")) as session:
            apply(store, BEFORE, Brokers())
            for name in "gh":
                MadeGroup(store, name).member("c1", {"t": 1})
                MadeGroup(store, name).leaves("c1")
                set_members(store, name, [identity_of("team-a")])
            scene, failed = Scene(point, store), None
            with point.sequence(lambda: change(scene)):
                try:
                    apply(PointedStore(session, point), SECURE, Brokers())
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
            members = identity_of("team-b") if change is another_names_other_members else identity_of("team-a")
            assert groups["g"] is not None and groups["g"].members == (members,)
            assert ("h" in groups) == (change is not group_is_deleted)
            if change is node_is_elected:
                assert [node.data for node in store.get_many([CONSUMERS]) if node] == [b'{"version":1,"epoch":7}']

    assert at_every_point(in_virtual_time(play), answers=False) > 20
