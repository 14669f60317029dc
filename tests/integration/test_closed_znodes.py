"""Znodes whose ACL refuses to read or to write: bad data of that znode, and never the end of a term."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cli import run, run_json
from tests.support.listening import Listening
from tests.support.memlog import MemoryLog
from tests.support.parties import Parties, owned_by
from tests.support.terms import a_term
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World
from tests.unit.manual import ManualRuntime
from zk_group.consumer.membership.registration import register
from zk_group.coordinator.admin.health import read_status
from zk_group.coordinator.listeners.listeners import Event
from zk_group.coordinator.retention.leftovers import OffsetCollector
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.term.elector import listed
from zk_group.coordinator.zk.errors import AccessDenied, BadData, StoreError
from zk_group.coordinator.zk.security.policy import READ, WORLD
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import DENIED, Acl, AclEntry, AclStore, Create, Delete, SetData
from zk_group.coordinator.zk.wire import OPEN_ACL
from zk_group.coordinator.zk.znodes.group_state import FAILED, GroupState
from zk_group.coordinator.zk.znodes.paths import (
    CONSUMERS,
    COORDINATOR_EPOCH,
    GROUPS,
    NODES,
    PAUSED,
    Brokers,
    GroupPaths,
)
from zk_group.coordinator.zk.znodes.records import (
    START_FETCHER,
    Channel,
    Command,
    EpochRecord,
    NodeRecord,
    Registration,
)

PATHS = GroupPaths("g")
CLOSED = owned_by("mallory")
"""Only their owner may read, write or list below."""
READ_ONLY = (AclEntry(READ, WORLD),)


@pytest.fixture
def mallory(world: World, tmp_path: Path) -> Iterator[AclStore]:
    """A member that closes znodes."""
    store = Parties(world.zk, tmp_path).session("mallory")
    yield store
    store.close()


@pytest.fixture
def service(world: World) -> CoordinatorService:
    world.topic("t", 4)
    return world.coordinator(sweep_interval_ms=200)


class Groups:
    """Groups `g` and `other`, each of a member c1 that reads topic `t`, and their coordinator."""

    def __init__(self, world: World, service: CoordinatorService) -> None:
        self.world = world
        self.service = service
        self.log = MemoryLog(10)
        self.mine, self.other = self.joins("g", "c1"), self.joins("other", "c1")
        world.stable("g", 1)
        world.stable("other", 1)
        assert service.term is not None
        self._epoch = service.term.epoch

    def joins(self, group: str, name: str) -> PollingConsumer:
        return self.world.consumer(group, name, {"t": 1}, log=self.log)

    def goes_on(self, group: str, members: int = 2) -> None:
        """With another member, which reads on in the same term."""
        late = self.joins(group, "late")
        self.world.stable(group, members)
        self.read_on(late, *([self.other] if group == "other" else []))
        assert self.service.term is not None and self.service.term.epoch == self._epoch

    def read_on(self, *consumers: PollingConsumer) -> None:
        self.log.end += 50
        for consumer in consumers:
            eventually(lambda c=consumer: any(o == self.log.end - 1 for _, o in c.records), 10, "it reads on")
            assert consumer.error is None

    def are_reported(self, path: str) -> None:
        eventually(lambda: path in self.service.problems.current(), 10, "it is reported")


@pytest.fixture
def groups(world: World, service: CoordinatorService) -> Groups:
    return Groups(world, service)


def close(mallory: AclStore, path: str, data: bytes = b"") -> None:
    if not mallory.set_acl(path, CLOSED):
        mallory.commit([Create(path, data, acl=CLOSED)])


@pytest.mark.real_zookeeper("one that refuses to read, and one that refuses to write")
def test_store_reads_a_closed_znode_as_bad_data(world: World, mallory: AclStore) -> None:
    world.store.commit([Create("/open", b"1"), Create("/open/child")])
    close(mallory, "/closed", b"secret")

    assert [node.data for node in world.store.get_many(["/open", "/closed"]) if node] == [b"1", DENIED]
    for node in (world.store.get("/closed"), *world.store.get_many(["/closed", "/no"], watch=print)):
        assert node is None or node.data == DENIED
    with pytest.raises(BadData, match="/closed may not be read"):
        Registration.parse("/closed", DENIED)

    one, two, three = world.store.children_many(["/open", "/closed", "/no"])
    assert one is not None and one.names == ["child"] and three is None
    with pytest.raises(AccessDenied, match="/closed may not be read"):
        assert two is not None and two.names


@pytest.mark.parametrize(
    "path",
    [
        PATHS.id("mallory"),
        PATHS.channel("mallory"),
        PATHS.seat("mallory"),
        Brokers().topic("mallory"),
        PAUSED,
        PATHS.request,
        PATHS.segments,
        PATHS.queries,
        PATHS.query("mallory"),
        PATHS.sync_request,
    ],
)
def test_znode_that_may_not_be_read_leaves_everything_else_going(groups: Groups, mallory: AclStore, path: str) -> None:
    world, problems = groups.world, groups.service.problems

    close(mallory, path)

    groups.goes_on("g")
    sealed = (PATHS.queries, PATHS.query("mallory"), PATHS.segments)  # nothing was sealed: they are not read
    if path not in (PATHS.request, PATHS.sync_request, *sealed):
        groups.are_reported(path)
        assert "ACL" in problems.current()[path]
    read_status(world.store, world.brokers)
    assert (groups.mine.error, groups.other.error) == (None, None)


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("path", [PATHS.pools, PATHS.pool("mallory")])
def test_pools_that_may_not_be_read_keep_no_group_from_starting(world: World, mallory: AclStore, path: str) -> None:
    world.put(PATHS.pools)
    close(mallory, path)

    world.consumer("g", "c1", {"t": 1}, log=MemoryLog(10))

    world.stable("g", 1)


@pytest.mark.parametrize("path", [PATHS.ids, PATHS.channels, PATHS.owners, PATHS.owners_of("t"), PATHS.state])
def test_closed_parent_fails_its_own_group_and_no_other(groups: Groups, mallory: AclStore, path: str) -> None:
    close(mallory, path)

    groups.are_reported(path)
    groups.goes_on("other")
    mallory.set_acl(path, OPEN_ACL)
    eventually(lambda: path not in groups.service.problems.current(), 40, "the next turn finds it open")


@pytest.mark.parametrize("acl", [CLOSED, READ_ONLY], ids=["closed", "read only"])
@pytest.mark.parametrize(
    "path",
    [
        *(PATHS.root, PATHS.ids, PATHS.id("c1"), PATHS.id("mallory"), PATHS.seats, PATHS.seat("c1"), PATHS.channels),
        *(PATHS.channel("c1"), PATHS.channel("mallory"), PATHS.owners, PATHS.owners_of("t"), PATHS.owner("t", 0)),
        *(PATHS.offsets, PATHS.offsets_of("t"), PATHS.offset("t", 0), PATHS.segments),
        *(PATHS.segment("segment-0000000009"), PATHS.queries, PATHS.query("mallory"), PATHS.pools),
        *(PATHS.pool("mallory"), PATHS.sync, PATHS.ask("ask-0000000009"), PATHS.sync_request, PATHS.request),
        *(PATHS.state, PATHS.history),
    ],
)
def test_closed_znode_stops_no_other_group_and_no_term(groups: Groups, mallory: AclStore, path: str, acl: Acl) -> None:
    if groups.world.store.get(path) is None:
        groups.world.put(path)
    mallory.set_acl(path, acl)
    groups.mine.close()  # a turn of the group has to write

    groups.goes_on("other")
    groups.other.close()
    groups.world.stable("other", 1)
    assert groups.service.term is not None and groups.service.term.epoch == 1


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "nothing can be created in it"])
def test_node_runs_although_it_cannot_be_listed(world: World, mallory: AclStore, is_closed: bool) -> None:
    world.store.commit([Create(CONSUMERS), *([] if is_closed else [Create(NODES, ephemeral=True)])])
    if is_closed:
        close(mallory, NODES)

    store = listed(kazoo_factory(world.zk, 10_000), "a", "host")()

    assert not store.lost and run_json(world.zk, "status")["standby"] == []
    store.close()


def test_only_what_a_session_of_its_name_has_listed_is_on_standby(world: World) -> None:
    world.elected(world.coordinator())
    world.store.commit([Create(NODES), Create(f"{NODES}/{7:016x}", NodeRecord("ghost", "h").to_bytes())])
    store = listed(kazoo_factory(world.zk, 10_000), "a", "host")()

    assert run_json(world.zk, "status")["standby"] == [{"node": "a", "host": "host"}]
    store.close()


@pytest.mark.parametrize("path", [GROUPS, Brokers().topics])
def test_closed_list_of_groups_or_topics_leaves_known_ones_going(groups: Groups, mallory: AclStore, path: str) -> None:
    close(mallory, path)

    groups.are_reported(path)
    mallory.set_acl(path, OPEN_ACL)
    groups.goes_on("g")
    eventually(lambda: path not in groups.service.problems.current(), 5, "it is open again")


@pytest.mark.real_zookeeper("one that refuses to read, and one that refuses to write")
def test_channel_that_refuses_commands_fails_its_own_group_and_no_other(groups: Groups, mallory: AclStore) -> None:
    world = groups.world
    registration = Registration("m1", {"t": 1}, host="here")
    mallory.commit([Create(PATHS.channel("mallory"), Channel("m1").to_bytes(), acl=READ_ONLY)])
    mallory.commit([Create(PATHS.id("mallory"), registration.to_bytes(), ephemeral=True, acl=READ_ONLY)])

    eventually(lambda: world.state("g").state == FAILED, 60, "the state has the reason")
    assert PATHS.channel("mallory") in (world.state("g").reason or "")
    groups.goes_on("other")

    world.remove(PATHS.channel("mallory"))
    eventually(lambda: world.state("g").target.keys() == {"c1"}, 60, "its turns are taken again")
    groups.read_on(groups.mine)


def test_group_whose_owners_refuse_writes_fails_with_their_path(groups: Groups, mallory: AclStore) -> None:
    mallory.set_acl(PATHS.history, READ_ONLY)

    groups.joins("g", "late")

    eventually(lambda: groups.world.state("g").state == FAILED, 60, "the state has the reason")
    assert PATHS.history in (groups.world.state("g").reason or "")


def test_command_that_may_not_be_read_is_removed_and_nothing_stops(groups: Groups, mallory: AclStore) -> None:
    data = Command(START_FETCHER, 1, 1, "x").to_bytes()
    (made,) = mallory.commit([Create(PATHS.command_prefix("c1"), data, sequential=True, acl=CLOSED)])

    eventually(lambda: mallory.get(made) is None, 10, "a command that nobody can read is removed")
    groups.read_on(groups.mine)


COMMANDS = """\
status
status --check
groups list
groups describe g
groups verify g
groups reset-offsets g --topic t --to-offset 5 --log-dir /tmp --execute
groups remove-members g --all-members --timeout 0.2
groups delete-offsets g --topic t
groups delete g
channel show g
history g
queries list g
segments list g
topics list
regions list
pause g
resume g
rebalance g --timeout 0.2
"""


@pytest.mark.parametrize(
    "path",
    [
        *(PATHS.root, PATHS.ids, PATHS.channels, PATHS.owners, PATHS.offsets, PATHS.segments, PATHS.queries),
        *(PATHS.state, PATHS.history, PATHS.seats, PATHS.channel("c1"), PATHS.id("c1"), PATHS.offsets_of("t")),
        *(PATHS.owners_of("t"), PATHS.offset("t", 0), GROUPS, PAUSED, Brokers().topics, Brokers().topic("t")),
        COORDINATOR_EPOCH,
    ],
)
def test_every_command_ends_with_a_table_or_one_sentence(world: World, mallory: AclStore, path: str) -> None:
    service = world.coordinator(sweep_interval_ms=60_000)
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1}, log=MemoryLog(10))
    world.stable("g", 1)
    world.stop_coordinator(service)
    close(mallory, path)

    for command in COMMANDS.splitlines():
        result = run(world.zk, *command.split())

        assert result.exit_code in (0, 1, 2, 4, 5, 77), (command, result.exit_code, result.output, result.exception)
        assert "Traceback" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
        if "verify" in command and path in (PATHS.ids, PATHS.channels, PATHS.owners, PATHS.state):
            assert result.exit_code == 5 and f"{path}: " in result.output


def test_consumer_whose_channel_was_closed_by_another_names_the_reason(world: World, mallory: AclStore) -> None:
    world.topic("t", 2)
    world.consumer("g", "other", {"t": 1}, log=MemoryLog(10))
    eventually(lambda: world.registrations("g"), 5, "the group exists")
    mallory.commit([Create(PATHS.channel("c1"), acl=READ_ONLY)])

    with pytest.raises(StoreError, match=r"c1 cannot register: the ACL of .*/channel/c1"):
        register(world.store, PATHS, "c1", Registration("i1", {"t": 1}), None)


# ---- what one group has closed, and what is open again


@pytest.mark.parametrize("closed", ["offsets", "owners/gone"])
def test_closed_offsets_of_one_group_stop_no_other_collection(world: World, mallory: AclStore, closed: str) -> None:
    world.topic("kept", 1)
    for group in ("evil", "g"):
        paths = GroupPaths(group)
        for path in (paths.root, *paths.skeleton, paths.offsets_of("gone"), paths.owners_of("gone")):
            world.put(path)
        world.put(paths.state, GroupState(epoch=1).to_bytes())
    world.store.commit([Delete(PATHS.owners_of("gone"))])
    close(mallory, f"{GroupPaths('evil').root}/{closed}")
    runtime = ManualRuntime()
    world.put(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())
    collector = OffsetCollector(a_term(world.store, runtime, channel_retention_ms=30_000), lambda group: False)

    for _ in range(2):
        collector.collect(["evil", "g"])
        runtime.now += 31

    assert world.store.get(PATHS.offsets_of("gone")) is None


def listening(world: World) -> tuple[Listening, Callable[..., None]]:
    """Listeners without a thread, and what lets them handle an event, with all that follows from it."""
    some = Listening(world.store)
    some.listeners.start()
    events = some.listeners._events

    def handle(*kinds: Event) -> None:
        for event in kinds:
            some.listeners._handle(event)
        while events._round or events._changes or events._long:
            some.listeners._handle(events.take())

    handle()
    return some, handle


@pytest.fixture
def in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations are read two at a time, as those of a large group are."""
    monkeypatch.setattr("zk_group.coordinator.listeners.members.REGISTRATIONS_AT_ONCE", 2)
    monkeypatch.setattr("zk_group.coordinator.listeners.members.READ_AT_ONCE", 2)


def six_members(world: World, *also: str) -> None:
    for path in (PATHS.root, *PATHS.skeleton, *also):
        world.put(path)
    for number in range(6):
        world.put(PATHS.id(f"c{number}"), Registration("i", {"t": 1}).to_bytes())


@pytest.mark.usefixtures("in_slices")
def test_registration_that_is_open_again_is_read_amid_changes(world: World, mallory: AclStore) -> None:
    six_members(world)
    close(mallory, PATHS.id("c0"))
    some, handle = listening(world)
    assert PATHS.id("c0") in some.problems.current()
    mallory.set_acl(PATHS.id("c0"), OPEN_ACL)
    known = some.listeners._members._groups["g"]

    for sweep in range(3):
        changed = {f"c{number}" for number in range(1, 6)}
        data = Registration("i", {"t": 1, f"u{sweep}": 1}).to_bytes()
        world.store.commit([SetData(PATHS.id(name), data) for name in sorted(changed)])
        eventually(lambda names=changed: not names & known.known.keys(), 5, "the watches have fired")
        some.listeners._handle(Event("members", "g"))  # its first slice; the others are long work
        assert known.steps is not None
        handle(Event("everything"))

    assert PATHS.id("c0") not in some.problems.current()


@pytest.mark.usefixtures("in_slices")
def test_problems_of_deleted_groups_and_topics_are_forgotten(world: World, mallory: AclStore) -> None:
    some, handle = listening(world)
    world.topic("doomed", 1)
    close(mallory, world.brokers.topic("doomed"))
    six_members(world, f"{PATHS.ids}/b d")
    some.listeners._handle(Event("groups"))
    some.listeners._handle(Event("unread"))  # its first slice
    handle(Event("everything"))
    assert some.problems.current()

    mallory.commit([Delete(world.brokers.topic("doomed"))])
    world.remove(PATHS.root)
    handle(Event("groups"), Event("everything"))

    assert not some.problems.current()
