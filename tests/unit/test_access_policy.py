"""The access policy: its record, the rights of each party, and the ACLs that a session gives to what it creates."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support.points import Point, at_every_point
from zk_group.coordinator.zk.errors import BadData, NotAuthorized, UsageError
from zk_group.coordinator.zk.security.policy import (
    RIGHTS,
    AclPolicy,
    AclSource,
    acl_of,
    checked_identities,
    group_of,
    is_identity,
    letters_of,
    pattern_of,
)
from zk_group.coordinator.zk.store import DENIED, Acl, AclEntry, AclStore, Create, Listing, Node, SetData, Stat, Watch
from zk_group.coordinator.zk.wire import OPEN_ACL
from zk_group.coordinator.zk.znodes.paths import ACL_POLICY, CONSUMERS, GROUPS, TURN_TIMES, GroupPaths, RegionPaths

HASH = "a" * 27 + "="
SECURE = AclPolicy(True, False, ("sasl:c",), ("sasl:o",), ("sasl:r",))
OF_G = replace(SECURE, members=("sasl:g",), regions=("r",))
OF_X = replace(OF_G, members=("sasl:x",))
OF_H = replace(SECURE, members=("sasl:h",), regions=("r",))
Step = tuple[str, AclPolicy | str | None]
G, H, R = GroupPaths("g"), GroupPaths("h"), RegionPaths("r")

# ---- the record


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(OF_G.to_bytes()) | fields).encode()


def test_policy_is_read_back_as_it_was_written() -> None:
    assert AclPolicy.parse("where", OF_G.to_bytes()) == OF_G
    assert AclPolicy.parse("where", b"{}") == AclPolicy()


@pytest.mark.parametrize(
    "data",
    [
        b"", DENIED, changed(acl="closed"), changed(acl_read="secure"), changed(acl=True), changed(coordinators=[]),
        changed(operators=None), changed(members=["world:anyone"]), changed(members=["auth:"]),
        changed(members=["super:"]), changed(members=["sasl:"]), changed(members=["digest:ann:secret"]),
        changed(members="sasl:a"), changed(members=[f"sasl:{n}" for n in range(9)]),
        changed(members=["sasl:" + "a" * 246]), changed(members=["sasl:a\nb"]),
        changed(members=[f"sasl:{n}{'a' * 200}" for n in range(5)]), changed(regions=["a/b"]), changed(regions=[".."]),
    ],
)  # fmt: skip
def test_malformed_policy_is_bad_data(data: bytes) -> None:
    with pytest.raises(BadData) as caught:
        AclPolicy.parse("the policy", data)

    assert "the policy" in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["sasl:a", "sasl:a@REALM", "x509:CN=a,O=b", f"digest:ann:{HASH}", "ip:10.0.0.1"])
def test_identity_is_of_one_client(text: str) -> None:
    assert is_identity(text)
    assert checked_identities("--members", [text, text]) == (text,)


@pytest.mark.parametrize("text", ["world:anyone", "digest:ann:secret", "ann:secret", "secret", "auth:x", ""])
def test_identity_that_may_be_a_password_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_identities("--members", [text])

    assert "--members" in str(caught.value) and "acl identity" in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="--members: 9 identities; the limit is 8"):
        checked_identities("--members", [f"sasl:{n}" for n in range(9)])


# ---- rights


def letters(path: str, policy: AclPolicy) -> dict[str, str]:
    return {identity: letters_of(permissions) for permissions, identity in acl_of(path, policy)}


READ = replace(OF_G, is_read_open=True)
LETTERS: dict[str, tuple[str, AclPolicy, str]] = {
    "each party has its own, and operators all": (G.channel("c1"), OF_G, "c=cdrw g=drw o=cdrwa r=r"),
    "a state, with closed reading": (G.state, OF_G, "c=rw g=r o=cdrwa r=r"),
    "a state, with open reading": (G.state, READ, "c=rw g=r o=cdrwa w=r"),
    "a policy, which readers may not read": (G.acl, OF_G, "c=r g=r o=cdrwa"),
    "a policy, with open reading": (G.acl, READ, "c=r g=r o=cdrwa"),
    "members who are coordinators too": (G.ids, replace(OF_G, coordinators=("sasl:g",)), "g=cdr o=cdrwa r=r"),
    "coordinators who are operators": (G.state, replace(OF_G, operators=("sasl:c",)), "c=cdrwa g=r r=r"),
    "the root of a chroot": (CONSUMERS, SECURE, "c=cdrw o=cdrwa w=r"),
    "the policy of an open chroot": (ACL_POLICY, replace(SECURE, is_secure=False), "c=r o=cdrwa"),
    "a later release's, of a group": ("/consumers/groups/g/later", OF_G, "c=cdrw g=cdrw o=cdrwa r=r"),
    "a later release's": ("/consumers/later", SECURE, "c=cdrw o=cdrwa r=r"),
    "elsewhere": ("/elsewhere", SECURE, "c=r o=cdrwa w=r"),
}


@pytest.mark.parametrize(("path", "policy", "expected"), LETTERS.values(), ids=LETTERS)
def test_acl_has_the_letters_of_each_party(path: str, policy: AclPolicy, expected: str) -> None:
    has = {name: letters for name, _, letters in (word.partition("=") for word in expected.split())}

    assert letters(path, policy) == {"world:anyone" if name == "w" else f"sasl:{name}": has[name] for name in has}


def test_only_operators_may_administer_and_the_world_only_read() -> None:
    for path in RIGHTS:
        for identity, has in letters(path, READ).items():
            assert ("a" in has) == (identity == "sasl:o")
            assert identity != "world:anyone" or has == "r"


def test_open_chroot_leaves_everything_open_but_its_policy() -> None:
    ready = replace(OF_G, is_secure=False)

    assert {path for path in RIGHTS if acl_of(path, ready) != OPEN_ACL} == {ACL_POLICY, GroupPaths("[group]").acl}
    assert all(acl_of(path, AclPolicy()) == OPEN_ACL for path in RIGHTS)


@pytest.mark.parametrize(
    ("path", "pattern", "group"),
    [
        ("/", "/", ""),
        ("/brokers/topics/consumers", "/brokers/topics/[topic]", ""),
        ("/brokers/topics/t/partitions", "", ""),
        ("/consumers/groups/groups", "/consumers/groups/[group]", "groups"),
        ("/consumers/groups/g/acl", "/consumers/groups/[group]/acl", "g"),
        ("/consumers/groups/g/ids/acl", "/consumers/groups/[group]/ids/[consumer]", "g"),
        (G.answer("ask-1"), "/consumers/groups/[group]/sync/[ask]/[answer]", "g"),
        ("/consumers/groups/g/later", "", "g"),
        ("/consumers/later", "", ""),
        (R.root, "/consumers/regions/[region]", ""),
        (R.request, "/consumers/regions/[region]/request", ""),
        (R.initial, "/consumers/regions/[region]/initial", ""),
        (R.initial_of("g", "t"), "/consumers/regions/[region]/initial/[group]/[topic]", "g"),
        (R.contribution(1, "g", "c1"), "/consumers/regions/[region]/checkpoints/[checkpoint]/[contribution]", "g"),
        (R.end(1, "completed"), "/consumers/regions/[region]/checkpoints/[checkpoint]/[contribution]", ""),
    ],
)
def test_path_has_its_row_and_its_group(path: str, pattern: str, group: str) -> None:
    assert (pattern_of(path), group_of(path)) == (pattern, group)


# ---- where a session has it from


class Znodes:
    """Reads of a session: data by path, `DENIED` where it may not read.

    :ivar reads: the paths that were read.
    :ivar acls: the ACLs by path.
    :ivar point: where something happens between two reads.
    """

    def __init__(self, data: dict[str, bytes]) -> None:
        self.data = data
        self.reads: list[str] = []
        self.acls: dict[str, Acl] = {CONSUMERS: OPEN_ACL, GROUPS: OPEN_ACL}
        self.point = Point(0)
        self._watches: dict[str, Watch] = {}

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        self.reads.append(path)
        with self.point.asked(path):
            data = self.data.get(path)
            if watch is not None and data != DENIED:
                self._watches[path] = watch
        return Node(data, Stat(*[0] * 7)) if data is not None else None

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        return [self.get(path, watch) for path in paths]

    def get_acls(self, paths: Sequence[str]) -> list[Acl | None]:
        return [self.acls.get(path) for path in paths]

    def children(self, path: str) -> Listing:
        with self.point.asked(path):
            names = [name.split("/")[3] for name in self.data if name.startswith(f"{GROUPS}/")]
        return Listing(names, Stat(*[0] * 7))

    def go(self, acls: AclSource, steps: Sequence[Step]) -> None:
        """A policy is put; or what is created at a path has the identities of these letters, in an ACL of its own."""
        for path, what in steps:
            if isinstance(what, str):
                letters = {"world:anyone" if letter == "w" else f"sasl:{letter}" for letter in what}
                assert given(acls, path) == (None if what == "-" else letters), path
            else:
                self.put(path, what.to_bytes() if what is not None else None)

    def put(self, path: str, data: bytes | None) -> None:
        self.data = {name: each for name, each in self.data.items() if name != path}
        if data is not None:
            self.data[path] = data
        for each in (path, CONSUMERS):  # a change of a policy sets this as well
            if each in self._watches:
                self._watches.pop(each)(each)


def source(znodes: Znodes) -> AclSource:
    return AclSource(cast("AclStore", znodes))


def given(acls: AclSource, path: str) -> set[str] | None:
    """The identities in the ACL of a znode that is created; None when it has none of its own."""
    (operation,) = acls.applied([Create(path)])
    assert isinstance(operation, Create)
    return None if operation.acl is None else {one.identity for one in operation.acl}


def of_coordinator(**changes: bytes) -> Znodes:
    return Znodes({ACL_POLICY: SECURE.to_bytes(), G.acl: OF_G.to_bytes(), H.acl: OF_H.to_bytes(), **changes})


def of_member() -> Znodes:
    return Znodes({ACL_POLICY: DENIED, G.acl: OF_G.to_bytes(), H.acl: DENIED})


FOLLOWED: dict[str, tuple[Znodes, list[Step], list[str]]] = {
    "open chroot costs two reads a session": (
        Znodes({}), [(path, "-") for path in (G.id("c1"), R.request, "/consumers/nodes/1", H.state)],
        [CONSUMERS, ACL_POLICY],
    ),
    "policies are read once by a coordinator": (
        of_coordinator(), [(G.state, "cgor")] * 3, [CONSUMERS, ACL_POLICY, G.acl],
    ),
    "policies are read once by a member": (of_member(), [(G.state, "cgor")] * 3, [CONSUMERS, ACL_POLICY, G.acl]),
    # Else each znode of a multi would cost two requests, with the consumer's fence locked.
    "policy that may not be read is read once": (
        Znodes({ACL_POLICY: DENIED, H.acl: DENIED}),
        [(paths.owner("t", number), "-") for number in range(100) for paths in (G, H)],
        [CONSUMERS, ACL_POLICY, G.acl, H.acl],
    ),
    # A group's may be of before an interrupted migration, or made by a member.
    "coordinator goes by the chroots policy and not by a groups copy": (
        of_coordinator(**{
            G.acl: replace(
                OF_G, is_secure=False, is_read_open=True, coordinators=("sasl:x",), operators=("sasl:x",)
            ).to_bytes()
        }),
        [(G.state, "cgor")], [],
    ),
    "policy that appears changes and vanishes is followed": (
        Znodes({}),
        [
            (G.state, "-"), (ACL_POLICY, SECURE), (G.state, "cor"), (G.acl, OF_G), (G.state, "cgor"),
            (G.acl, OF_X), (G.state, "cxor"), (ACL_POLICY, None), (G.state, "-"),
        ], [],
    ),
    "member follows its groups policy": (
        of_member(),
        [
            (G.id("c1"), "cgor"), (G.acl, replace(OF_G, is_secure=False)), (G.id("c1"), "-"),
            (G.acl, OF_X), (G.id("c1"), "cxor"), (R.request, "cxor"),
        ], [],
    ),
    # The chroot is open, or ZooKeeper refuses the commit.
    "group without a policy goes on beside one that it may not read": (
        Znodes({ACL_POLICY: DENIED}),
        [(G.id("c1"), "-"), ("/consumers/nodes/1", "-"), (G.acl, OF_G), (G.id("c1"), "cgor")], [],
    ),
    # Its refusal has no watch: a node whose identity was added must create no open znode.
    "policy that may be read by now is read": (
        Znodes({ACL_POLICY: DENIED}),
        [("/consumers/nodes/1", "-"), (ACL_POLICY, SECURE), ("/consumers/nodes/1", "cow")], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("znodes", "steps", "reads"), FOLLOWED.values(), ids=FOLLOWED)
def test_policy_is_followed(znodes: Znodes, steps: list[Step], reads: list[str]) -> None:
    znodes = Znodes(znodes.data)  # those of the table stay as they are
    znodes.go(source(znodes), steps)

    assert not reads or znodes.reads == reads


def test_no_other_operation_reads_the_policy_and_a_given_acl_stays() -> None:
    znodes = of_coordinator()
    one = Create("/x", acl=(AclEntry(1, "sasl:x"),))

    assert source(znodes).applied([SetData("/x", b""), one]) == [SetData("/x", b""), one]
    assert znodes.reads == []


def test_partition_and_its_parent_in_one_multi_have_the_acls_that_each_has_alone() -> None:
    """An operator sets the first offsets of a topic so."""
    acls = source(of_coordinator())
    for parent in (G.offsets_of("t"), G.owners_of("t")):
        both = acls.applied([Create(parent), Create(f"{parent}/0"), Create(f"{parent}/1")])

        assert [one.acl for one in both if isinstance(one, Create)] == [
            acl_of(path, OF_G) for path in (parent, f"{parent}/0", f"{parent}/1")
        ]


OF_GROUPS = [G.state, G.owner("t", 1)]
OF_OTHERS = [R.checkpoints, R.contribution(1, "g", "c1"), TURN_TIMES]
OTHER_MEMBERS: list[Step] = [(G.acl, OF_X)]
OPEN_GROUP: list[Step] = [(G.acl, replace(OF_G, is_secure=False))]
OF_THE_CHROOT: list[list[Step]] = [
    [*OTHER_MEMBERS, (ACL_POLICY, SECURE)],  # as `acl members` does it
    [(ACL_POLICY, replace(SECURE, operators=("sasl:new",)))],
    [(ACL_POLICY, AclPolicy())],
]


@pytest.mark.parametrize(
    ("made", "paths", "changes"),
    [
        (of_coordinator, OF_GROUPS + OF_OTHERS, [*OF_THE_CHROOT, OPEN_GROUP]),
        (of_member, OF_GROUPS, [OTHER_MEMBERS, OPEN_GROUP]),
    ],
)
def test_change_between_reads_is_seen(made: Callable[[], Znodes], paths: list[str], changes: list[list[Step]]) -> None:
    """Also between an answer and its use: the watch has fired by then, and what was read must not be kept."""
    for path in paths:
        for change in changes:

            def play(point: Point, path: str = path, change: list[Step] = change) -> None:
                znodes = made()
                znodes.point = point
                acls = source(znodes)
                with point.sequence(lambda: znodes.go(acls, change)):
                    given(acls, path)
                assert given(acls, path) == given(source(Znodes(dict(znodes.data))), path)

            assert at_every_point(play) >= 2


def test_client_that_is_nobody_creates_open_znodes_and_its_refusal_names_the_party() -> None:
    """The chroot is open, or ZooKeeper refuses the commit."""
    acls = source(of_member())

    assert given(acls, H.id("c1")) is None

    assert (acls.missing(H.id("c1")), acls.missing(G.id("c1"))) == ("a member of group h", "")
    assert acls.missing("/consumers/nodes/1") == "a coordinator or operator"


@pytest.mark.parametrize("path", [ACL_POLICY, G.acl])
def test_nothing_is_created_open_while_a_policy_is_malformed(path: str) -> None:
    znodes = of_coordinator()
    znodes.put(path, b'{"acl":"sec')
    znodes.acls = {path: (AclEntry(31, "sasl:mallory"),) for path in (CONSUMERS, GROUPS)}
    acls = source(znodes)

    with pytest.raises(NotAuthorized, match=f"no znode is created while .* {path}"):
        given(acls, G.state)
    znodes.put(path, (SECURE if path == ACL_POLICY else OF_G).to_bytes())

    assert "sasl:c" in (given(acls, G.state) or ())


@pytest.mark.parametrize("data", [b"x", b"[]", b'{"acl":"secure"}'])
@pytest.mark.parametrize("policy", [AclPolicy(), SECURE, replace(SECURE, is_read_open=True, readers=())])
def test_chroot_of_bad_policy_stays_as_it_is(policy: AclPolicy, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    znodes = Znodes({ACL_POLICY: data})
    znodes.acls = {path: acl_of(path, policy) for path in (CONSUMERS, GROUPS)}
    acls = source(znodes)

    for path in (TURN_TIMES, G.id("c1"), "/consumers/coordinator"):
        expected = {one.identity for one in acl_of(path, policy)} if policy.is_secure else None
        assert given(acls, path) == expected

    assert caplog.text.count(f"ignoring unreadable znode: path={ACL_POLICY}") == 1


def test_members_of_a_region_are_those_of_its_permitted_groups(caplog: pytest.LogCaptureFixture) -> None:
    other = replace(SECURE, members=("sasl:x",), regions=("another",)).to_bytes()
    znodes = of_coordinator(**{GroupPaths("x").acl: other, GroupPaths("bad").acl: b"[", GroupPaths("no").acl: DENIED})
    acls = source(znodes)

    assert given(acls, R.checkpoints) == {"sasl:c", "sasl:g", "sasl:h", "sasl:o", "sasl:r"}
    assert given(acls, R.contribution(1, "g", "c1")) == {"sasl:c", "sasl:g", "sasl:o", "sasl:r"}
    assert GroupPaths("bad").acl in caplog.text and GroupPaths("no").acl in caplog.text
    reads = len(znodes.reads)
    assert given(acls, R.root) == {"sasl:c", "sasl:g", "sasl:h", "sasl:o", "sasl:r"}
    assert len(znodes.reads) == reads

    znodes.put(GroupPaths("x").acl, replace(SECURE, members=("sasl:x",), regions=("r",)).to_bytes())
    znodes.put(ACL_POLICY, SECURE.to_bytes())  # as with each change of a group's

    assert "sasl:x" in (given(acls, R.root) or ())
