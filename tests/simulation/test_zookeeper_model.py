"""The modelled ZooKeeper, held against a real one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.property.effort import effort
from tests.simulation.alone import Alone, alone
from tests.simulation.twins import Twin, Twins
from zk_group.coordinator.zk.security.access import ZooKeeperAccess, digest_identity
from zk_group.coordinator.zk.security.policy import ALL, WORLD
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Acl, AclEntry, AclStore, Check, Create, Delete, Operation, SetData, Watch

SESSION_MS = 10_000
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]

FIRST = ["/a", "/b", "/a/x", "/a/y", "/b/e"]
BELOW = ["/a/x/p", "/b/e/p"]
ODD = ["/a/", "/a/..", "/b/./x", "/c/x"]
PATHS = st.sampled_from([*FIRST, *FIRST, *BELOW])
WRITTEN = st.one_of(PATHS, PATHS, PATHS, st.sampled_from(ODD))
DATA = st.sampled_from([b"", b"1", b"two"])
VERSIONS = st.sampled_from([-1, -1, 0, 0, 1, 2])
WATCHES = st.sampled_from([None, "v", "w"])
DIGESTS = ("", "ann:secret", "bob:secret")
"""Of the sessions, in turn."""
OWNERS = st.sampled_from([*map(digest_identity, DIGESTS[1:]), "auth:mine"])
OTHERS = st.one_of(st.just(WORLD), OWNERS)
ACLS = st.tuples(st.builds(AclEntry, st.just(ALL), OWNERS), st.builds(AclEntry, st.integers(0, ALL), OTHERS))
INVALID = ((), (AclEntry(31, "sasl:ann"),), (AclEntry(31, "digest:ann"),), (AclEntry(31, "world:ann"),))
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, WRITTEN, DATA, st.booleans()),
    st.builds(Create, st.sampled_from(["/a/s-", "/a/x/s-", "/b/", "/s-"]), DATA, st.booleans(), st.just(True)),
    st.builds(SetData, WRITTEN, DATA, VERSIONS),
    st.builds(Delete, WRITTEN, VERSIONS),
    st.builds(Delete, PATHS),
    st.builds(Check, WRITTEN, VERSIONS),
)
ABOUT_IT = st.sampled_from(["create", "ephemeral", "below", "numbered", "set", "stale", "delete", "again", "parent"])
WHICH = st.integers(0, 3)
READS = st.sampled_from(["get", "children", "get_many", "children_many"])


def _about(path: str, what: str) -> list[Operation]:
    """A commit that concerns who watches `path`."""
    parent = path.rpartition("/")[0]
    operations: dict[str, list[Operation]] = {
        "create": [Create(path, b"new")],
        "ephemeral": [Create(path, b"", ephemeral=True)],
        "below": [Create(f"{path}/q", b"")],
        "numbered": [SetData(path, b""), Create(f"{path}/s-", b"", sequential=True)],
        "set": [SetData(path, b"set")],
        "stale": [SetData(path, b"stale", 7)],
        "delete": [Delete(path)],
        "again": [Delete(path), Create(path)],
        "parent": [Create(f"{parent}/s-", b"", sequential=True), SetData(path, b"")],
    }
    return operations[what]


class SameAsZooKeeper(RuleBasedStateMachine):
    """Several sessions read, write, watch and end, with the model and with a real server alike."""

    hosts = ""
    folder = Path()
    _numbers = itertools.count()

    @initialize(
        seed=st.integers(0, 1000), servers=st.sampled_from([1, 3]), has_acls=st.sampled_from([False, False, True])
    )
    def begin(self, seed: int, servers: int, has_acls: bool) -> None:
        chroot = f"{self.hosts}/{next(self._numbers)}"
        self.world = Alone(seed, servers)
        self.twins = Twins(self.world, lambda digest: open_real(chroot, digest, self.folder))
        self.has_acls = has_acls
        self.made: list[str] = []
        self.is_ordered = True
        self._commit(self._open().number, [Create(path, b"", path == "/b/e") for path in FIRST])
        for _ in DIGESTS[1:] if has_acls else ():
            self._open()

    def teardown(self) -> None:
        if hasattr(self, "twins"):
            self.twins.close_all()
            self.world.scheduler.close()

    def _open(self) -> Twin:
        return self.twins.open(DIGESTS[len(self.twins.all) % len(DIGESTS)] if self.has_acls else "")

    def _one(self, which: int) -> Twin:
        return self.twins.all[which % len(self.twins.all)]

    @rule(which=WHICH, is_open=st.booleans())
    def open_or_close(self, which: int, is_open: bool) -> None:
        if is_open and len(self.twins.all) < 4:
            self._open()
        elif not is_open and len(self.twins.all) > 1:
            self.twins.close(self._one(which))
            self.is_ordered = False  # ephemerals go in no order

    @rule(which=WHICH, operations=st.lists(OPERATIONS, min_size=1, max_size=5))
    def commit(self, which: int, operations: list[Operation]) -> None:
        self._commit(which, operations)

    @rule(which=WHICH, path=PATHS, watched=st.sets(st.sampled_from(["data", "children", "siblings"])), what=ABOUT_IT)
    def watch_and_commit(self, which: int, path: str, watched: set[str], what: str) -> None:
        """Two watch what a third changes; they may be the same."""
        if "data" in watched:
            self.twins.same(self._one(which), lambda store, w: store.get(path, w), "v")
        if "siblings" in watched:
            parent = path.rpartition("/")[0] or "/"
            self.twins.same(self._one(which), lambda store, w: store.children(parent, w), "v")
        if "children" in watched:
            self.twins.same(self._one(which + 1), lambda store, w: store.children(path, w), "w")
        self._commit(which + 2, _about(path, what))

    def _commit(self, which: int, operations: list[Operation]) -> None:
        made = self.twins.same(self._one(which), lambda store, _: store.commit(operations))
        if isinstance(made, list):
            self.made += [path for path in made if path and path not in FIRST]

    @rule(which=WHICH, n=st.integers(0, 100), watch=WATCHES)
    def delete_what_was_made(self, which: int, n: int, watch: str | None) -> None:
        if self.made:
            path = self.made.pop(n % len(self.made))
            self.twins.same(self._one(which), lambda store, w: store.get(path, w), watch)
            self.twins.same(self._one(which + 1), lambda store, _: store.commit([Delete(path)]))

    @rule(which=WHICH, kind=READS, paths=st.lists(PATHS, max_size=6), watch=WATCHES)
    def read(self, which: int, kind: str, paths: list[str], watch: str | None) -> None:
        what = paths if kind.endswith("many") else (paths or ["/"])[0]
        self.twins.same(self._one(which), lambda store, w: getattr(store, kind)(what, w), watch)

    @precondition(lambda self: self.has_acls)
    @rule(which=WHICH, path=PATHS, acl=st.one_of(ACLS, ACLS, ACLS, st.sampled_from(INVALID)), what=ABOUT_IT)
    def set_acl(self, which: int, path: str, acl: Acl, what: str) -> None:
        self.twins.same(self._one(which + 1), lambda store, w: store.get(path, w), "v")
        self.twins.same(self._one(which), lambda store, _: store.set_acls([(path, acl)]))
        self.twins.same(self._one(which + 1), lambda store, _: store.get_acls([path]))
        self._commit(which + 1, _about(path, what))

    @precondition(lambda self: self.has_acls)
    @rule(which=WHICH, path=PATHS, acl=ACLS, ephemeral=st.booleans(), watch=WATCHES)
    def create_with_acl(self, which: int, path: str, acl: Acl, ephemeral: bool, watch: str | None) -> None:
        self.twins.same(self._one(which + 1), lambda store, w: store.get(path, w), watch)
        self._commit(which, [Create(path, b"acl", ephemeral, acl=acl)])

    @rule(which=WHICH)
    def look_at_everything(self, which: int) -> None:
        self.twins.same(self._one(which), lambda store, _: store.sync())
        self.twins.same(self._one(which), lambda store, _: store.get_many([*FIRST, *self.made]))

    @invariant()
    def the_same_watches_have_fired(self) -> None:
        if hasattr(self, "twins"):
            self.twins.compare_watches(self.is_ordered)
            self.is_ordered = True


def test_acls_refuse_what_those_of_zookeeper_do(zk: str, tmp_path: Path) -> None:
    """Each set of permissions, for everybody or for one of two others."""
    with alone() as world:
        twins = Twins(world, lambda digest: open_real(zk, digest, tmp_path))
        try:
            nobody, ann, bob = map(twins.open, DIGESTS)
            twins.same(ann, lambda store, _: store.commit([Create("/m")]))
            for permissions, other in itertools.product(range(ALL + 1), (WORLD, digest_identity(DIGESTS[2]))):
                acl = (AclEntry(ALL, digest_identity(DIGESTS[1])), AclEntry(permissions, other))
                _try_acl(twins, ann, [nobody, bob], acl)
        finally:
            twins.close_all()


def _try_acl(twins: Twins, owner: Twin, others: Sequence[Twin], acl: Acl) -> None:
    twins.same(owner, lambda store, _: store.commit([Create("/n"), Create("/n/c")]))
    for one in others:
        twins.same(one, lambda store, w: store.get("/n", w), "before")
        twins.same(one, lambda store, w: store.children("/n", w), "before")
    twins.same(owner, lambda store, _: store.set_acls([("/n", acl)]))
    for one in others:
        _try_everything(twins, one, acl)
    for operation in (SetData("/n", b"new"), Create("/n/d"), Delete("/n/d"), Delete("/n/c"), Delete("/n")):
        twins.same(owner, _commits([operation]))
        twins.compare_watches()


def _commits(operations: Sequence[Operation]) -> Callable[[AclStore, Watch | None], list[str]]:
    return lambda store, _: store.commit(operations)


def _try_everything(twins: Twins, one: Twin, acl: Acl) -> None:
    for operation in (Create("/n/d"), Delete("/n/d"), Delete("/n/c"), SetData("/n", b"new"), Check("/n", -1)):
        for operations in ([operation], [Check("/m", -1), operation, Check("/m", -1)]):
            twins.same(one, _commits(operations))
    twins.same(one, lambda store, _: store.get_acls(["/n", "/n/d"]))
    twins.same(one, lambda store, _: store.set_acls([("/n", acl)]))
    twins.same(one, lambda store, _: store.get_many(["/m", "/n"]))
    twins.same(one, lambda store, w: store.get_many(["/n", "/n/d"], w), "after")
    twins.same(one, lambda store, w: store.children("/n", w), "after")
    twins.compare_watches()


def open_real(zk: str, digest: str, folder: Path) -> AclStore:
    """A session of the real server's, with the credentials."""
    file = folder / f"{digest}.auth"
    if digest:
        file.touch(mode=0o600)
        file.write_text(f"digest:{digest}")
    return open_kazoo(zk, SESSION_MS, access=ZooKeeperAccess(zk_auth_file=str(file) if digest else ""))


def test_it_answers_as_zookeeper_does(zk: str, tmp_path: Path) -> None:
    class OnThisServer(SameAsZooKeeper):
        hosts = zk
        folder = tmp_path

    # A long history fails soon enough, and to look for a shorter one takes minutes.
    run_state_machine_as_test(OnThisServer, settings=settings(effort(130), stateful_step_count=20, phases=PHASES))
