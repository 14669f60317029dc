"""ZooKeeper refuses the client by an ACL: exit code 77, or for lack of credentials: 78; with a sentence, at once."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.property.tree import MemoryTree, MemoryTreeStore
from tests.support.memlog import MemoryLog
from tests.support.parties import OPEN as OPEN_STEP
from tests.support.parties import SECURE as SECURE_STEP
from tests.support.parties import Parties, owned_by
from tests.support.stores import Reads
from tests.support.wait import eventually
from tests.support.world import World
from tests.unit.manual import ManualRuntime
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.consumer.streaming.source.planner import Planner
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from zk_group.coordinator.zk.errors import (
    GRANT,
    AuthenticationFailed,
    CoordinatorError,
    NotAuthorized,
    Refused,
    UsageError,
    WriteDenied,
    ZooKeeperUnreachable,
)
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.policy import READ
from zk_group.coordinator.zk.session.kazoo_client import BACKOFF, OutageLog
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import AclStore, Create, Store
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.wire import OPEN_ACL
from zk_group.coordinator.zk.znodes.paths import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, GROUPS, PAUSED, GroupPaths

CLOSED = owned_by("boss")
READ_ONLY = owned_by("boss", others=READ)
STARTS_PROCESS = pytest.mark.real_zookeeper("it starts a process")
FULL = pytest.mark.full("processes, beside the same in virtual time")
NODE = ["zk_group.coordinator.cli", "run", "--node", "a"]
CONSUMER = ["zk_group.consumer.cli", "run", "--group", "g", "--topics", "t", "--log-dir", "/tmp"]


@pytest.fixture
def boss(world: World, tmp_path: Path) -> Iterator[AclStore]:
    """A client with credentials that the product does not have here."""
    store = Parties(world.zk, tmp_path).session("boss")
    yield store
    store.close()


def run(zk: str, words: list[str]) -> tuple[int, str]:
    """A command's exit code, and its last line on stderr."""
    command = [sys.executable, "-m", *words, "--zk", zk]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


@STARTS_PROCESS
@pytest.mark.parametrize("chroot", ["/closed", "/closed/below"])
def test_closed_chroot_ends_every_command_with_its_own_exit_code(world: World, boss: AclStore, chroot: str) -> None:
    boss.commit([Create("/closed", acl=CLOSED)])

    with pytest.raises(NotAuthorized, match="the ACL of the chroot, or of its parent, refuses"):
        open_kazoo(world.zk + chroot, 2000)
    for words in (NODE, CONSUMER):
        code, line = run(world.zk + chroot, words)
        assert code == 77
        assert GRANT in line and "Error(" not in line


@FULL
@STARTS_PROCESS
@pytest.mark.parametrize(
    ("words", "path"), [(NODE, ""), (NODE, CONSUMERS), (CONSUMER, ""), (CONSUMER, CONSUMERS), (CONSUMER, GROUPS)]
)
def test_start_ends_where_an_acl_refuses_to_write(world: World, boss: AclStore, words: list[str], path: str) -> None:
    world.put(f"/chroot{path}")
    boss.set_acl(f"/chroot{path}", READ_ONLY)

    code, line = run(f"{world.zk}/chroot", words)

    assert code == 77
    assert f"or of its parent, refuses to write it: {GRANT}" in line


@FULL
@STARTS_PROCESS
def test_restarted_consumer_without_its_groups_identity_ends(world: World, tmp_path: Path) -> None:
    """Its channel is there, and may not be read."""
    parties = Parties(world.zk, tmp_path)
    ensure(world.store, [*GroupPaths("g").skeleton, GroupPaths("g").channel("c1")])
    assert parties.applies(*OPEN_STEP).exit_code == 0
    parties.names("g", "team-a")
    assert parties.applies("--acl", "secure", "--acl-read", "closed").exit_code == 0

    code, line = run(world.zk, [*CONSUMER, "--consumer", "c1", "--zk-auth-file", parties.file("team-b")])

    assert code == 77 and "c1 cannot register" in line


@FULL
@STARTS_PROCESS
def test_node_without_a_coordinators_identity_does_not_stand_by(world: World, tmp_path: Path) -> None:
    """On standby it would notice only when it is needed."""
    parties = Parties(world.zk, tmp_path)
    assert parties.applies(*SECURE_STEP).exit_code == 0
    with a_node(world.zk, parties.file("coordinator")):
        eventually(lambda: world.store.get(COORDINATOR), 10, "a node is elected")

        code, line = run(world.zk, [*NODE, "--zk-auth-file", parties.file("team-a")])

    assert code == 77 and "this node has no identity of a coordinator" in line


@contextmanager
def a_node(zk: str, auth_file: str) -> Iterator[None]:
    """A node with this file of credentials, in its own process."""
    words = [*NODE[:-1], "elected", "--zk-auth-file", auth_file]
    with subprocess.Popen([sys.executable, "-m", *words, "--zk", zk], stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@FULL
@STARTS_PROCESS
def test_node_ends_where_an_acl_refuses_its_election(world: World, boss: AclStore) -> None:
    world.put(GROUPS)
    boss.commit([Create(COORDINATOR_EPOCH, b'{"version":1,"epoch":3}', acl=READ_ONLY)])

    code, line = run(world.zk, NODE)

    assert code == 77 and COORDINATOR_EPOCH in line


def test_node_on_standby_outlasts_a_refusal(world: World, boss: AclStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first, has_looked = world.elected(world.coordinator("a")), ThreadRuntime().event()
    second = world.coordinator("b", wrap=lambda store: Reads(store).after(COORDINATOR, has_looked.set))
    eventually(has_looked.is_set, 5, "the second stands by")
    boss.set_acl(COORDINATOR_EPOCH, READ_ONLY)

    world.stop_coordinator(first)
    eventually(lambda: "election failed, retrying: node=b" in caplog.text, 5, "the second is refused")
    boss.set_acl(COORDINATOR_EPOCH, OPEN_ACL)

    eventually(lambda: second.term is not None, 10, "the second is elected")


def test_elected_node_outlasts_a_refusal(world: World, boss: AclStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = world.elected(world.coordinator("a"))
    boss.set_acl(COORDINATOR_EPOCH, READ_ONLY)
    world.remove(COORDINATOR)

    eventually(lambda: "election failed, retrying: node=a" in caplog.text, 10, "its next election is refused")
    assert "resigned: node=a reason=the ACL" not in caplog.text
    boss.set_acl(COORDINATOR_EPOCH, OPEN_ACL)

    eventually(lambda: node.term is not None, 10, "it is elected again")


WRONG_PASSWORD = AuthenticationFailed("wrong password")
REFUSALS = [WRONG_PASSWORD, UsageError("the file may be read by others")]


class Refusing:
    """Servers that refuse once they have an error, until some time; `outages` opens sessions with them.

    :ivar asked: how often they were.
    """

    def __init__(self, client: str = "node a", *, had_session: bool = True) -> None:
        self.runtime = ManualRuntime()
        self.outages = OutageLog(client, "zk1", self._open, self.runtime)
        self.error: CoordinatorError | None = None
        self.relents_at = math.inf
        self.asked = 0
        if had_session:
            self.outages.open().close()

    def _open(self) -> Store:
        self.asked += 1
        if self.error is not None and self.runtime.now < self.relents_at:
            raise self.error
        return MemoryTreeStore(MemoryTree(), 1, lambda: None, 3.0)

    def refuse(self, error: CoordinatorError = WRONG_PASSWORD) -> float:
        """From now on; when that is."""
        self.error, self.asked = error, 0
        return self.runtime.now

    def refuse_again(self, times: int, raised: type[Exception], pause_s: float) -> None:
        for _ in range(times):
            with pytest.raises(raised, match=str(self.error)):
                self.outages.open()
            self.runtime.sleep(pause_s)


@pytest.mark.parametrize("before", [None, ZooKeeperUnreachable("away")], ids=["begins one", "in one that runs"])
def test_refusal_is_logged_once_in_an_outage(before: CoordinatorError | None, caplog: pytest.LogCaptureFixture) -> None:
    servers = Refusing("consumer c1")
    for error in (before, WRONG_PASSWORD):
        if error is not None:
            servers.refuse(error)
            servers.refuse_again(3, type(error), 10)

    said = [record.getMessage().partition("reason=") for record in caplog.records]
    assert said[0][0] == "ZooKeeper unavailable: client=consumer c1 servers=zk1 "
    assert [reason for *_, reason in said] == ["no server answers"] * (before is not None) + ["wrong password"]


@pytest.mark.parametrize("error", REFUSALS)
def test_servers_that_refuse_are_asked_again_at_a_bounded_rate(error: CoordinatorError) -> None:
    servers = Refusing()
    servers.refuse(error)

    servers.refuse_again(600, AuthenticationFailed, 0.1)  # a minute of a caller that tries every 0.1 s

    assert 12 <= servers.asked <= 20
    servers.error = None
    servers.runtime.sleep(BACKOFF.longest_s)
    assert servers.outages.open() is not None


def test_first_refusal_is_raised_as_it_is() -> None:
    servers = Refusing(had_session=False)
    for error in REFUSALS:
        servers.refuse(error)
        with pytest.raises(type(error)):
            servers.outages.open()


def test_node_at_work_that_is_refused_later_asks_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    servers = Refusing()
    service = CoordinatorService(CoordinatorConfig("zk1", "a"), servers.outages.open, servers.runtime)
    began = servers.refuse()
    servers.relents_at = began + 60

    assert service._handle_new_session() is not None
    assert began + 60 <= servers.runtime.now <= began + 66
    assert servers.asked <= 20
    assert [record.getMessage().partition(":")[0] for record in caplog.records].count("ZooKeeper unavailable") == 1


def test_query_at_work_waits_for_its_credentials_and_a_new_one_does_not() -> None:
    servers = Refusing("query q", had_session=False)
    config = SourceConfig("zk1", "g", zk_wait_ms=60_000)
    servers.refuse()
    with pytest.raises(AuthenticationFailed):
        Planner(config, servers.outages.open, servers.runtime)._patiently(lambda store: None)
    assert servers.asked == 1

    servers.error = None
    planner = Planner(config, servers.outages.open, servers.runtime)
    planner._patiently(lambda store: store.close())
    began = servers.refuse()
    planner.close()
    with pytest.raises(AuthenticationFailed):
        planner._patiently(lambda store: None)

    assert 60 <= servers.runtime.now - began < 61
    assert servers.asked <= 20


@STARTS_PROCESS
def test_command_is_refused_at_once_and_not_tried_again(world: World, boss: AclStore) -> None:
    world.put(GROUPS)
    boss.commit([Create(PAUSED, acl=READ_ONLY)])

    code, line = run(world.zk, ["zk_group.coordinator.cli", "pause"])

    assert code == 77
    assert line.startswith(f"error: the ACL of {PAUSED}, or of its parent, refuses")


def test_commit_that_an_acl_refuses_is_a_refusal_too(world: World, boss: AclStore) -> None:
    boss.commit([Create("/closed", acl=CLOSED)])

    with pytest.raises(WriteDenied) as raised:
        world.store.commit([Create("/open"), Create("/closed/child")])

    assert isinstance(raised.value, Refused) and isinstance(raised.value, NotAuthorized)
    assert (raised.value.index, raised.value.path, raised.value.reason) == (1, "/closed/child", "no-auth")
    assert world.store.get("/open") is None


def test_member_outlasts_an_acl_that_refuses(world: World, boss: AclStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    paths = GroupPaths("g")
    world.coordinator()
    world.topic("t", 1)
    consumer = world.consumer("g", "c1", {"t": 1}, log=MemoryLog(10))
    world.stable("g", 1)
    boss.set_acl(paths.ids, READ_ONLY)
    world.remove(paths.channel("c1"))

    eventually(lambda: "c1 cannot register: the ACL of" in caplog.text, 20, "it is refused")
    assert consumer.error is None
    boss.set_acl(paths.ids, OPEN_ACL)

    world.stable("g", 1)
    assert consumer.error is None


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """A server that requires authentication."""
    rules = {"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest"}
    config = EnsembleConfig(servers=1, tick_ms=200, durable=False, extra=rules)
    with Ensemble(tmp_path_factory.mktemp("strict"), config) as ensemble:
        yield ensemble


@pytest.mark.parametrize(
    "words", [NODE, CONSUMER, ["zk_group.coordinator.cli", "status"]], ids=["node", "consumer", "command"]
)
@pytest.mark.parametrize("chroot", ["", "/below"])
def test_ensemble_that_requires_credentials_is_named(strict: Ensemble, words: list[str], chroot: str) -> None:
    code, line = run(strict.hosts + chroot, words)

    assert code == 78
    assert "ZooKeeper refuses the credentials of this client, or requires some" in line


def test_first_poll_of_an_application_raises_not_authorized(world: World, boss: AclStore) -> None:
    boss.set_acl("/", READ_ONLY)
    config = ConsumerConfig(world.zk, "g", "c1")
    consumer = Consumer(config, Subscription({"t": 1}), source=MemoryLog())

    with pytest.raises(NotAuthorized, match="c1 cannot register: the ACL of /consumers, or of its parent"):
        consumer.poll(0)
    consumer.close()
