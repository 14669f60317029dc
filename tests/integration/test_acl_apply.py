"""`acl apply` and `members`: interruptions, two operators, processes, and the way to a secured chroot and back.

All else is in `command_lines/acl.txt`. While groups run, no record is lost or repeated, and no member is ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_side import ProcessKilled
from tests.support.memlog import MemoryLog
from tests.support.parties import OPEN, SECURE, Parties
from tests.support.processes import node_process
from tests.support.region import Counting, checkpoint, exact, running
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World, parts
from zk_group.consumer.config import Subscription
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.consumer.streaming.fetchers.config import SlotConfig, SlotSpec
from zk_group.consumer.streaming.fetchers.slot import PoolPost, Slot
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.consumer.streaming.source.planner import Planner
from zk_group.coordinator.admin.acl import apply, group_policies, read_policy, set_members
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.zk.errors import CoordinatorError, NotAuthorized, WriteDenied
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import Acl, AclStore, Create, Operation
from zk_group.coordinator.zk.wire import OPEN_ACL
from zk_group.coordinator.zk.znodes.paths import COORDINATOR_EPOCH, GROUPS, NODES, Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.segments import Segment

BROKERS = Brokers()


@pytest.fixture
def parties(zk: str, tmp_path: Path) -> Parties:
    return Parties(zk, tmp_path)


@pytest.fixture
def prepared(world: World, parties: Parties) -> None:
    """A chroot in which groups `g` and `h` have been: everybody is named, and it is open still."""
    for group in ("g", "h"):
        paths = GroupPaths(group)
        for path in (paths.root, *paths.skeleton, paths.id("c1"), paths.channel("c1"), paths.offset("t", 0)):
            world.put(path)
    assert parties.applies(*OPEN).exit_code == 0
    for group, team in (("g", "team-a"), ("h", "team-b")):
        parties.names(group, team)


class Interrupting(FrontStore, AclStore):
    """A session with ACLs, which does something once before it sends a commit or ACLs."""

    def __init__(self, store: AclStore, before: Callable[[], Any], at_acls: int = 0) -> None:
        super().__init__(store)
        self._acls = store
        self._before: list[Callable[[], Any]] = [before]
        self._at_acls = at_acls

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        if not self._at_acls and any(GroupPaths("g").acl == each.path for each in operations):
            self._act()
        return self.behind.commit(operations)

    def get_acls(self, paths: Sequence[str]) -> list[Acl | None]:
        return self._acls.get_acls(paths)

    def set_acls(self, acls: Sequence[tuple[str, Acl]]) -> list[bool | None]:
        if len(acls) > self._at_acls > 0:
            self._acls.set_acls(acls[: self._at_acls])
            self._act()
        return self._acls.set_acls(acls)

    def set_acl(self, path: str, acl: Acl) -> bool:
        return self._acls.set_acl(path, acl)

    def _act(self) -> None:
        if self._before:
            self._before.pop()()


# ---- what an operator sees


@pytest.mark.real_zookeeper("it is about the server's schemes")
def test_scheme_that_the_server_lacks_is_refused_before_anything_changes(prepared: None, parties: Parties) -> None:
    done = parties.applies(*SECURE, "--coordinators", "sasl:coordinator")
    member = parties.run("operator", "acl", "members", "g", "--members", "sasl:team-a")

    for result in (done, member):
        assert result.exit_code == 2 and "the server lacks one of the schemes digest, sasl" in result.output
    assert parties.run("operator", "acl", "check").exit_code == 0


def test_policy_too_large_for_a_group_is_refused_before_any_is_written(prepared: None, parties: Parties) -> None:
    many = [part for number in range(8) for part in ("--members", f"digest:{'x' * 60}{number}:{'A' * 27}=")]

    member = parties.run("operator", "acl", "members", "g", *many)

    assert member.exit_code == 2 and "the identities have over 1000 bytes" in member.output
    assert parties.applies(*SECURE).exit_code == 0 and parties.deviations() == ""


# ---- interruptions, and two operators


@pytest.mark.parametrize(
    ("sent", "seen"),
    [(0, "it repeats an earlier policy: run acl apply"), (1, "/consumers"), (7, "/consumers")],
    ids=["before the groups' policies", "after one ACL", "after seven ACLs"],
)
def test_interrupted_apply_is_finished_by_the_next(prepared: None, parties: Parties, sent: int, seen: str) -> None:
    operator = parties.session("operator")

    def killed() -> None:
        raise ProcessKilled

    with pytest.raises(ProcessKilled):
        apply(Interrupting(operator, killed, at_acls=sent), parties.policy(is_secure=True), BROKERS)

    assert seen in parties.deviations()
    assert parties.applies(*SECURE).exit_code == 0
    assert parties.deviations() == ""
    operator.close()


def test_two_operators_who_apply_at_once_leave_no_mixed_policies(prepared: None, parties: Parties) -> None:
    operator, other = parties.session("operator"), parties.session("operator")
    opened = parties.policy(is_secure=False)
    closed = replace(opened, is_secure=True, is_read_open=False)

    with pytest.raises(CoordinatorError, match="another operator has changed the policy meanwhile"):
        apply(Interrupting(operator, lambda: apply(other, opened, BROKERS)), closed, BROKERS)

    assert read_policy(operator) == opened
    assert parties.applies(*OPEN).exit_code == 0 and parties.deviations() == ""
    for session in (operator, other):
        session.close()


def test_members_named_while_another_operator_applies_get_the_new_policy(prepared: None, parties: Parties) -> None:
    operator, other = parties.session("operator"), parties.session("operator")
    closed = parties.policy(is_secure=True)
    new = (parties.identity("team-c"),)

    set_members(Interrupting(operator, lambda: apply(other, closed, BROKERS)), "g", new, ())

    assert group_policies(operator)["g"] == replace(closed, members=new)
    assert parties.applies(*SECURE).exit_code == 0 and parties.deviations() == ""
    for session in (operator, other):
        session.close()


# ---- what a process creates


def test_process_without_identity_creates_until_a_chroot_is_secured(prepared: None, parties: Parties) -> None:
    nobody = parties.session("")

    nobody.commit([Create(GroupPaths("g").id("c2"), ephemeral=True)])
    nobody.commit([Create(f"{GROUPS}/i")])
    nobody.commit([Create(f"{NODES}")])

    parties.names("i", "team-a")
    assert parties.applies(*SECURE).exit_code == 0
    with pytest.raises(WriteDenied, match="this client has no identity of a member of group g, check the credentials"):
        nobody.commit([Create(GroupPaths("g").id("c3"), ephemeral=True)])
    with pytest.raises(NotAuthorized, match="this client has no identity of a coordinator or operator"):
        nobody.commit([Create(f"{NODES}/1", ephemeral=True)])
    assert parties.deviations() == ""
    assert parties.applies(*OPEN).exit_code == 0
    nobody.commit([Create(GroupPaths("g").id("c3"), ephemeral=True)])
    assert parties.deviations() == ""
    nobody.close()


def test_identity_that_is_named_later_is_used_by_the_session_that_runs(prepared: None, parties: Parties) -> None:
    team = parties.session("team-c")
    path = GroupPaths("g").channel("c2")
    team.commit([Create(f"{path}-first")])  # it may not read the policy

    parties.names("g", "team-a", "team-c")
    assert parties.applies(*SECURE).exit_code == 0

    team.commit([Create(path)])
    assert parties.deviations() == ""
    team.close()


# ---- from an open chroot to a secured one and back, while groups run


SESSION_MS = 20_000
"""Nothing here waits for the end of a session, and a machine that stalls for seconds shall end none."""

ALL = parts("t", 0, 1, 2, 3)
SEALED = GroupPaths("s")


@pytest.fixture
def world(parties: Parties) -> Iterator[World]:
    """Its observer is an operator."""
    world = World(parties.zk, parties.session("operator"))
    try:
        yield world
    finally:
        world.close()


@contextmanager
def a_sealing_group(world: World, parties: Parties, folder: Path, log: MemoryLog) -> Iterator[Planner]:
    """Group `s`: one slot that seals, and the planner of a query."""
    file = parties.file("team-s")
    opener = kazoo_factory(world.zk, SESSION_MS, access=parties.access("team-s"))
    post = PoolPost(opener, ThreadRuntime(), "s", "p", "run-1")
    config = SlotConfig(
        zk=world.zk, group="s", pool="p", log_dir="m", segments_dir=SegmentFolder(str(folder)).url, seal_interval_ms=20,
        session_timeout_ms=SESSION_MS, zk_auth_file=file,
    )  # fmt: skip
    slot = Slot(SlotSpec(config, Subscription({"t": 1}), 0, "run-1", "0"), log, opener, ThreadRuntime())
    post.keep(1)
    task = ThreadRuntime().spawn(slot.run, "slot")
    source = SourceConfig(zk=world.zk, group="s", query="q", session_timeout_ms=SESSION_MS, zk_auth_file=file)
    planner = Planner(source, opener, ThreadRuntime())
    try:
        yield planner
    finally:
        planner.close()
        slot.stop("the test is over")
        task.join(10)
        post.close()


class Running:
    """Four groups and two nodes, all with credentials: what they do while an operator applies a policy."""

    def __init__(self, world: World, parties: Parties, folder: Path, stack: ExitStack) -> None:
        self.world, self.parties = world, parties
        self.log = MemoryLog(100)
        self.node = self._coordinator("a")
        world.topic("t", 4)
        self.joined = {"g": 0, "h": 0}
        self.members: dict[str, list[Any]] = {"g": [], "h": []}
        self.first = self.join("g", "c1")
        self.leaving = self.join("g", "leaving")
        self.join("g", "static", group_instance_id="static")
        self.join("h", "c1", assignment="client")
        calm = {"session_timeout_ms": SESSION_MS, "zk_auth_file": parties.file("team-r")}
        self.counting = Counting(world, "c1", self.log, group="r", **calm)
        stack.callback(self.counting.vanish)
        self.planner = stack.enter_context(a_sealing_group(world, parties, folder, self.log))
        self.start = self.planner.initial()
        self.stable()
        running(world)

    def _coordinator(self, name: str) -> CoordinatorService:
        options = {"zk_auth_file": self.parties.file("coordinator"), "segment_retention_ms": 3_600_000}
        made = self.world.coordinator(name, session_timeout_ms=SESSION_MS, **options)
        if name == "a":
            self.world.elected(made)
        return made

    def join(self, group: str, name: str, **options: Any) -> Any:
        self.joined[group] += 1
        options |= {"zk_auth_file": self.parties.file(f"team-{group}"), "session_timeout_ms": SESSION_MS}
        self.members[group].append(self.world.consumer(group, name, {"t": 1}, log=self.log, **options))
        return self.members[group][-1]

    def stable(self) -> None:
        for group, joined in self.joined.items():
            self.world.stable(group, joined)

    def act(self) -> None:
        """A failover, members that come and go, a rebalance by a leader, a checkpoint, and records all the while."""
        world = self.world
        self.log.end += 100
        epoch = self.node.term.epoch if self.node.term is not None else 0
        before, self.node = self.node, self._coordinator(f"after-{epoch}")
        world.stop_coordinator(before)
        world.elected(self.node, above=epoch)
        self.leaving.close()
        self.joined["g"] -= 1
        self.leaving = self.join("g", f"leaving-{epoch}")
        self.join("h", f"late-{epoch}", assignment="client")
        self.stable()
        assert world.state("h").client is not None, "its leader assigns"
        checkpoint(world)

    def has_lost_nothing(self) -> None:
        end = self.log.end
        for group, members in self.members.items():
            wanted = {(part, offset) for part in ALL for offset in range(end)}
            eventually(lambda m=members, w=wanted: w <= {i for c in m for i in c.polled.copy()}, 20, f"{group} reads")
            read = [item for each in members for item in each.records]
            assert len(read) == len(set(read)), f"{group} has committed a record twice"
            assert [each.error for each in members] == [None] * len(members)
            assert all(each.consumer.member.registrations == 1 for each in members), "nobody was evicted"
        exact(self.log, 4, self.counting)
        assert self.counting.errors == []
        eventually(lambda: self._sealed_rows() == 4 * end, 20, "all is sealed, once")

    def _sealed_rows(self) -> int:
        end = self.planner.latest(self.start)
        rows = sum(one.segment.rows for run in self.planner.plan(self.start, end) for one in run)
        names = self.world.names(SEALED.segments)
        made = [Segment.parse("", self.world.data(SEALED.segment(name)) or b"") for name in names]
        assert sum(one.rows for one in made) == rows
        return rows


@pytest.fixture
def groups(world: World, parties: Parties, tmp_path: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(world, parties, tmp_path / "segments", stack)


@pytest.mark.parametrize("is_read_open", [True, False], ids=["readable", "closed"])
def test_groups_run_while_it_is_secured(world: World, parties: Parties, groups: Running, is_read_open: bool) -> None:
    assert parties.applies(*OPEN).exit_code == 0
    for group in (*groups.joined, "r", "s"):
        parties.names(group, f"team-{group}", regions=("r",) if group == "r" else ())
    opened = parties.policy(is_secure=False)
    secured = replace(opened, is_secure=True, is_read_open=is_read_open)
    operator = parties.session("operator")

    for policy in (secured, opened):
        count, refused = apply(Interrupting(operator, groups.act, at_acls=20), policy, Brokers())
        assert count and not refused
        groups.act()  # and after it
        groups.has_lost_nothing()
        assert parties.deviations() == ""

    node = world.store.get(COORDINATOR_EPOCH)
    assert node is not None and groups.node.term is not None
    assert groups.node.term.epoch == 5, "four failovers of the test's own, and no term ended besides"
    operator.close()


# ---- an earlier release


class EarlierRelease(FrontStore):
    """A session of a release without access control: it has no credentials, and every znode that it creates is open."""

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        return self.behind.commit([replace(op, acl=OPEN_ACL) if isinstance(op, Create) else op for op in operations])


def share(world: World, *members: Any) -> None:
    world.stable("g", len(members))
    eventually(lambda: sorted(part for each in members for part in each.held) == sorted(ALL), 15, "they share all")


def earlier(world: World, name: str, log: MemoryLog) -> Any:
    opener = kazoo_factory(world.zk, SESSION_MS)
    return world.consumer("g", name, {"t": 1}, log=log, opener=lambda: EarlierRelease(opener()))


@pytest.mark.parametrize("node", ["this", "earlier"])
def test_both_releases_work_in_an_open_chroot_with_a_policy(world: World, parties: Parties, node: str) -> None:
    log = MemoryLog(100)
    options = {"zk_auth_file": parties.file("coordinator")} if node == "this" else {"wrap": EarlierRelease}
    world.coordinator(**options)
    world.topic("t", 4)
    old = earlier(world, "old", log)
    world.stable("g", 1)
    assert parties.applies(*OPEN).exit_code == 0
    parties.names("g", "team-g")

    new = world.consumer("g", "new", {"t": 1}, log=log, zk_auth_file=parties.file("team-g"))
    bare = world.consumer("g", "bare", {"t": 1}, log=log)  # of this release, and not configured yet

    share(world, old, new, bare)
    late = earlier(world, "late", log)
    share(world, old, new, bare, late)
    log.end = 200
    eventually(lambda: len({i for c in world.consumers for i in c.polled.copy()}) == 800, 15, "all is read")
    world.delivered_once("t", 4, 200)
    assert parties.deviations() == ""


@pytest.mark.full("processes, beside the same in virtual time")
@pytest.mark.real_zookeeper("it starts a process")
def test_earlier_release_is_refused_by_a_secured_chroot(world: World, parties: Parties, tmp_path: Path) -> None:
    log = MemoryLog(100)
    service = world.coordinator(zk_auth_file=parties.file("coordinator"))
    world.topic("t", 4)
    new = world.consumer("g", "new", {"t": 1}, log=log, zk_auth_file=parties.file("team-g"))
    state = world.stable("g", 1)
    assert parties.applies(*OPEN).exit_code == 0
    parties.names("g", "team-g")
    assert parties.applies(*SECURE, "--acl-read", "closed").exit_code == 0

    old = earlier(world, "old", log)
    eventually(lambda: isinstance(old.error, NotAuthorized), 10, "it is refused")
    world.stop_coordinator(service)  # else it stands by
    with node_process(tmp_path, world.zk, "bare") as bare:
        assert bare.ends() == 77
        assert bare.said().splitlines()[-1].startswith("error: this node has no identity of a coordinator: the ACL of ")
        assert "Traceback" not in bare.said()

    assert isinstance(old.error, NotAuthorized) and old.error.exit_code == 77
    world.elected(world.coordinator(zk_auth_file=parties.file("coordinator")), above=1)
    log.end = 200
    eventually(lambda: len(new.polled) == 800, 15, "the group goes on")
    assert world.stable("g", 1).generation == state.generation
    assert parties.deviations() == ""
