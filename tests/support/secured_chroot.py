"""A secured chroot in full use, on a real server: each znode of the access control's table is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.clients import connected
from tests.support.memlog import MemoryLog
from tests.support.region import Counting, region, running
from tests.support.slots import SlotBench
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World
from zk_group.consumer.streaming.source.query_znode import QueryPost
from zk_group.coordinator.admin.acl import apply, check, create_group
from zk_group.coordinator.admin.control import pause
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.term.elector import listed
from zk_group.coordinator.zk.embedded.ensemble import Ensemble
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.security.policy import AclPolicy
from zk_group.coordinator.zk.session.kazoo_store import KazooStore, kazoo_factory, open_kazoo
from zk_group.coordinator.zk.store import Create
from zk_group.coordinator.zk.znodes.group_state import SyncRequest
from zk_group.coordinator.zk.znodes.paths import DRILL, TURN_TIMES, Brokers, GroupPaths, RegionPaths
from zk_group.coordinator.zk.znodes.records import ASSIGN, Command, TurnRequest
from zk_group.coordinator.zk.znodes.regions import CHECKPOINT, RegionRequest

TEAM, OTHER_TEAM = "team-a", "team-b"
GROUPS = {"g": TEAM, "slots": TEAM, "counts": TEAM, "other": OTHER_TEAM}
"""Group -> the identity of its members: of client-side assignment, of slots, of a consistent region, and another's."""
QUIET_MS = 600_000
"""No process writes at intervals while the intruder is at work."""


class SecuredChroot:
    """The chroot, and its clients of each identity."""

    def __init__(self, ensemble: Ensemble, zk: str, folder: Path) -> None:
        self.zk = zk
        self._identities = ensemble.identities
        self._folder = folder
        self._closing = ExitStack()
        self.operator: KazooStore = self.store("operator")
        self.world = World(zk, self.operator)
        self._closing.callback(self.world.close)

    # ---- clients

    def access(self, identity: str) -> ZooKeeperAccess:
        return self._identities.access(identity)

    def store(self, identity: str) -> KazooStore:
        made = open_kazoo(self.zk, 30_000, access=self.access(identity))
        self._closing.callback(made.close)
        return made

    @contextmanager
    def kazoo(self, identity: str) -> Iterator[Any]:
        """kazoo's own client; without an identity when it is empty."""
        options: dict[str, Any] = {}
        if identity:
            user, password = self.access(identity).credentials().sasl or ("", "")
            options["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
        with connected(self.zk, 30.0, **options) as client:
            yield client

    def policy(self, is_read_open: bool) -> AclPolicy:
        one = self._identities.zookeeper_id
        return AclPolicy(True, is_read_open, (one("coordinator"),), (one("operator"),), (one("reader"),))

    # ---- its use

    def secure(self, is_read_open: bool) -> None:
        """Write the policy, and make the groups and a topic."""
        apply(self.operator, self.policy(is_read_open), Brokers())
        for group, team in GROUPS.items():
            regions = ["r"] if group == "counts" else []
            create_group(self.operator, group, [self._identities.zookeeper_id(team)], regions)
        self.world.topic("t", 2)

    def coordinator(self, node: str, **options: Any) -> CoordinatorService:
        return self.world.coordinator(node, zk_auth_file=self.access("coordinator").zk_auth_file, **options)

    def consumer(self, group: str, name: str, **options: Any) -> PollingConsumer:
        return self.world.consumer(
            group, name, {"t": 1}, zk_auth_file=self.access(GROUPS[group]).zk_auth_file, **options
        )

    def slots(self, folder: Path) -> SlotBench:
        bench = SlotBench(self.world, folder, "slots", self.access(TEAM))
        self._closing.callback(bench.close)
        bench.post.keep(1)
        return bench

    def counting(self, name: str, **options: Any) -> Counting:
        """A member of the region."""
        auth_file = self.access(TEAM).zk_auth_file
        member = Counting(self.world, name, MemoryLog(20), group="counts", zk_auth_file=auth_file, **options)
        self._closing.callback(member.vanish)
        return member

    def use(self, is_read_open: bool) -> None:
        """Let processes of all kinds run, then hold everything still."""
        self.secure(is_read_open)
        self.coordinator("a", sweep_interval_ms=1_000, session_timeout_ms=8_000, rebalance_handlers=1)
        standby = listed(kazoo_factory(self.zk, 8_000, access=self.access("coordinator")), "b", "host")()
        self._closing.callback(standby.close)
        self._consumers()
        self._slots()
        self._region()
        eventually(lambda: self.operator.get(TURN_TIMES), 10, "the coordinator has swept")
        self._pause()
        self._by_hand()

    def _consumers(self) -> None:
        log = MemoryLog(20)
        for name in ("c1", "c2"):
            self.consumer("g", name, log=log, assignment="client", group_instance_id=name, **self._quiet())
        self.consumer("other", "c1", log=log, **self._quiet())
        self.world.stable("g", 2)
        self.world.stable("other", 1)
        past = self.consumer("g", "past", log=log, assignment="client", **self._quiet())
        self.world.stable("g", 3)
        past.close()
        self.world.stable("g", 2)
        for paths in map(GroupPaths, ("g", "other")):
            self._two_below(paths.offsets_of("t"))
            self._two_below(paths.owners_of("t"))

    def _two_below(self, path: str) -> None:
        eventually(lambda: len(self.world.names(path)) == 2, 10, f"{path} has two znodes")

    def _quiet(self) -> dict[str, Any]:
        return {"session_timeout_ms": 8_000, "max_poll_interval_ms": QUIET_MS, "offsets_interval_ms": QUIET_MS}

    def _slots(self) -> None:
        bench = self.slots(self._folder)
        bench.slot(0, **self._quiet())
        bench.end(20)
        eventually(lambda: bench.segments(), 10, "a segment is sealed")
        query = QueryPost(ThreadRuntime(), GroupPaths("slots"), "q", True)
        query.begin(self.store(TEAM), None, True)

    def _region(self) -> None:
        member = self.counting("c1", **self._quiet())
        running(self.world)
        member.consumer.request_checkpoint()
        eventually(lambda: region(self.world).sequence, 10, "a checkpoint is complete")
        assert member.errors == []

    def _pause(self) -> None:
        """Pause all groups but one, and wait until the only handler has taken a turn of that one.

        A turn in progress when a pause begins is finished.
        """
        for group in ("g", "slots", "counts"):
            pause(self.operator, group, "a test", 1, "it stands still")
        request = GroupPaths("other").request
        self.operator.commit([Create(request, TurnRequest("ann", 1, "a test").to_bytes())])
        eventually(lambda: self.operator.get(request) is None, 10, "no turn is in progress")

    def _by_hand(self) -> None:
        """What exists for moments only, made by the party that makes it, or what no process makes without Spark."""
        paths = GroupPaths("g")
        command = Command(ASSIGN, 1, 1, "past", ask="ask-0000000001").to_bytes()
        self.store("coordinator").commit([Create(paths.command_prefix("past"), command, sequential=True)])
        team = self.store(TEAM)
        team.commit([Create(paths.sync_request, SyncRequest("c1", "i", "a test").to_bytes())])
        ask = RegionRequest(CHECKPOINT, "c1", "a test").to_bytes()
        team.commit([Create(RegionPaths("r").request, ask)])
        self.operator.commit([Create(DRILL, ephemeral=True)])
        self.operator.commit([Create(paths.request, TurnRequest("ann", 1, "a test").to_bytes())])

    # ---- looking

    def paths(self) -> list[str]:
        """Every znode, parents first."""
        found, left = [], ["/"]
        while left:
            path = left.pop(0)
            found.append(path)
            listing = self.operator.children(path)
            left += [f"{path.rstrip('/')}/{name}" for name in sorted(listing.names if listing else ())]
        return found

    def deviations(self) -> list[str]:
        return [f"{each.path}: {each.meaning}" for each in check(self.operator, Brokers())]

    def close(self) -> None:
        self._closing.close()


@contextmanager
def a_secured_chroot(ensemble: Ensemble, zk: str, folder: Path, is_read_open: bool) -> Iterator[SecuredChroot]:
    made = SecuredChroot(ensemble, zk, folder)
    try:
        made.use(is_read_open)
        yield made
    finally:
        made.close()
