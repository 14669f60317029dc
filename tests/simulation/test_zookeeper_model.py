"""The modelled ZooKeeper, held against a real one."""

from __future__ import annotations

import itertools

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Check, Create, Delete, Operation, SetData
from tests.property.effort import effort
from tests.simulation.alone import Alone
from tests.simulation.twins import Twin, Twins

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
    _numbers = itertools.count()

    @initialize(seed=st.integers(0, 1000), servers=st.sampled_from([1, 3]))
    def begin(self, seed: int, servers: int) -> None:
        chroot = f"{self.hosts}/{next(self._numbers)}"
        self.world = Alone(seed, servers)
        self.twins = Twins(self.world, lambda: open_kazoo(chroot, SESSION_MS))
        self.made: list[str] = []
        self.is_ordered = True
        self._commit(self.twins.open().number, [Create(path, b"", path == "/b/e") for path in FIRST])

    def teardown(self) -> None:
        if hasattr(self, "twins"):
            self.twins.close_all()
            self.world.scheduler.close()

    def _one(self, which: int) -> Twin:
        return self.twins.all[which % len(self.twins.all)]

    @rule(which=WHICH, is_open=st.booleans())
    def open_or_close(self, which: int, is_open: bool) -> None:
        if is_open and len(self.twins.all) < 4:
            self.twins.open()
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

    @rule(which=WHICH)
    def look_at_everything(self, which: int) -> None:
        self.twins.same(self._one(which), lambda store, _: store.sync())
        self.twins.same(self._one(which), lambda store, _: store.get_many([*FIRST, *self.made]))

    @invariant()
    def the_same_watches_have_fired(self) -> None:
        if hasattr(self, "twins"):
            self.twins.compare_watches(self.is_ordered)
            self.is_ordered = True


def test_it_answers_as_zookeeper_does(zk: str) -> None:
    class OnThisServer(SameAsZooKeeper):
        hosts = zk

    # A long history fails soon enough, and to look for a shorter one takes minutes.
    run_state_machine_as_test(OnThisServer, settings=settings(effort(130), stateful_step_count=20, phases=PHASES))
