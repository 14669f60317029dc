"""Malformed and foreign data in every znode: logged once with its path, counted, shown, isolated."""

from __future__ import annotations

import json
import logging

import pytest

from tests.support.cli import run, run_json, run_ok
from tests.support.hand import ManualStage
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, parts
from zk_group.coordinator.admin.health import read_status
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.zk.store import Create
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from zk_group.coordinator.zk.znodes.records import WHITE_LIST

PATHS = GroupPaths("g")
DEEP = b"[" * 100_000 + b"]" * 100_000
GARBAGE = {
    "no JSON": b"\xff\xfe not json",
    "an array": b"[1,2,3]",
    "a number": b"17",
    "too deep": DEEP,
    "deep object": b'{"version":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    "nearly 1 MB": b'{"version":1,"pad":"' + b"x" * 990_000,
    "wrong types": b'{"incarnation":7,"subscription":"t","partitions":[],"option":[],"offset":"x","state":7,"run":1}',
    "an endless number": b'{"version":1,"generation":' + b"9" * 5000 + b"}",
}
garbage = pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())


class Group:
    """Group `g` of the member `good`, beside its coordinator, and topic `t` of two partitions."""

    def __init__(self, world: World, service: CoordinatorService, **topics: int) -> None:
        self.world = world
        self.service = service
        self.log = MemoryLog(10)
        self.good = world.consumer("g", "good", {"t": 1, **topics}, log=self.log)
        self.before = world.stable("g", 1)

    def goes_on(self, *also: PollingConsumer) -> None:
        """Members hold partitions and read new records; so does a new group."""
        other = self.world.consumer(f"other-{self.log.end}", "c1", {"t": 1}, log=self.log)
        self.log.end += 50
        newest = self.log.end - 1
        for one in (self.good, *also, other):
            eventually(lambda c=one: any(offset == newest for _, offset in c.records), 10, f"{one.name} reads on")
            assert one.error is None

    def is_reported(self, path: str) -> None:
        """Logged once, counted once, and shown, after any number of reads."""
        eventually(lambda: path in self.service.problems.current(), 10, f"{path} is reported")
        assert path in self.service.problems.current()[path] or path.rsplit("/", 1)[0] in path
        assert path in read_status(self.world.store, self.world.brokers).problems


@pytest.fixture
def service(world: World) -> CoordinatorService:
    world.topic("t", 2)
    return world.coordinator(sweep_interval_ms=200)


@pytest.fixture
def group(world: World, service: CoordinatorService) -> Group:
    return Group(world, service)


# ---- registrations


@garbage
def test_a_registration_that_cannot_be_read_leaves_that_member_out(world: World, group: Group, data: bytes) -> None:
    problems = group.service.problems
    world.put(PATHS.id("bad"), data)

    group.is_reported(PATHS.id("bad"))

    group.goes_on()
    why = {"bad": "its registration cannot be read"}
    eventually(lambda: world.stable("g", 1).left_out == why, 5, "the state has the reason")
    count = problems.count
    world.remove(PATHS.id("bad"))
    eventually(lambda: not world.state("g").left_out, 5, "no member is left out any more")
    eventually(lambda: problems.current() == {}, 5, "what is gone is no problem any more")
    assert problems.count == count == 1, "it was logged once"


@pytest.mark.parametrize(
    "pattern",
    ["(", "[z-a]", "(?#[)(.+)+1(?#])", "(?x)(.+#)\n)+1", "x" * 1001, r"(t)\1", "a{9999}", "(?=t)t", "\\"],
    ids=lambda pattern: pattern[:12],
)
def test_member_with_a_bad_pattern_has_nothing(world: World, stage: ManualStage, group: Group, pattern: str) -> None:
    bad = stage.puppet("g", "bad", {pattern: 1}, WHITE_LIST)
    bad.obey_until(frozenset())

    eventually(lambda: "bad" in world.state("g").left_out, 10, "the state has the reason")

    assert "pattern" in world.state("g").left_out["bad"]
    assert PATHS.id("bad") in read_status(world.store, world.brokers).problems
    group.goes_on()


def test_odd_names_are_reported_and_passed_over(world: World, group: Group) -> None:
    odd = ["with space", "t\u00e4st", "x" * 250, "a;b", "\u65e5\u672c", "..."]
    places = [PATHS.ids, PATHS.channels, PATHS.owners, PATHS.offsets, "/consumers/groups", world.brokers.topics]
    places += [PATHS.owners_of("t"), PATHS.offsets_of("t"), PATHS.history, PATHS.channel("good")]
    for place in places:
        for name in odd:
            world.store.commit([Create(f"{place}/{name}", b"odd")])
    world.more_partitions("t", 3)

    eventually(lambda: group.good.held == parts("t", 0, 1, 2), 10, "the group continues")

    group.goes_on()
    shown = read_status(world.store, world.brokers).problems
    for place in (PATHS.ids, "/consumers/groups"):
        path = f"{place}/'with space'"
        assert path in group.service.problems.current()
        assert path in shown


# ---- topics


@garbage
def test_an_unreadable_topic_leaves_the_others_alone(world: World, service: CoordinatorService, data: bytes) -> None:
    world.put(world.brokers.topic("bad"), data)
    group = Group(world, service, bad=1)

    group.is_reported(world.brokers.topic("bad"))

    assert world.stable("g", 1).left_out == {"bad": "no such topic (yet)"}
    group.goes_on()
    world.put(world.brokers.topic("bad"), b'{"partitions":{"0":[]}}')
    eventually(lambda: group.good.held == parts("t", 0, 1) | parts("bad", 0), 10, "once mended it is read")
    assert service.problems.current() == {}


@pytest.mark.parametrize(
    "key",
    ["-1", "one", "1.5", "\u0663", "\u00b2", "9" * 5000, "1000001"],
    ids=["-1", "one", "1.5", "3", "2", "huge", "1e6"],
)
def test_invalid_partition_number_is_bad_data(world: World, group: Group, key: str) -> None:
    world.put(world.brokers.topic("bad"), json.dumps({"version": 3, "partitions": {key: []}}).encode())

    group.is_reported(world.brokers.topic("bad"))
    group.goes_on()
    term = group.service.term
    assert term is not None and term.epoch == 1, "the coordinator has not resigned over it"


def test_a_topic_that_becomes_unreadable_stays_as_it_was(world: World, group: Group) -> None:
    world.put(world.brokers.topic("t"), b"scribble")

    group.is_reported(world.brokers.topic("t"))
    group.goes_on()
    assert group.good.held == parts("t", 0, 1)
    assert world.state("g").generation == group.before.generation


def test_a_topic_without_partitions_is_left_out_with_the_reason(world: World, service: CoordinatorService) -> None:
    world.put(world.brokers.topic("empty"), b'{"version":3,"partitions":{}}')
    group = Group(world, service, empty=1)

    assert group.before.left_out == {"empty": "the topic has no partitions"}
    group.goes_on()


# ---- commands, channels, offsets, history, the coordinator's znodes


@garbage
def test_a_command_that_cannot_be_read_is_removed_and_nothing_stops(world: World, group: Group, data: bytes) -> None:
    world.store.commit([Create(PATHS.command_prefix("good"), data, sequential=True)])

    eventually(lambda: not world.names(PATHS.channel("good")), 10, "it is removed")
    group.goes_on()
    assert group.good.held == parts("t", 0, 1)
    assert group.good.events == [("assigned", parts("t", 0, 1))]
    assert world.stable("g", 1).generation == group.before.generation


def test_a_command_for_a_consumer_that_cannot_exist_is_withdrawn(world: World, group: Group) -> None:
    path = f"{PATHS.channel('missing')}/command-0000000007"

    world.put(path, b"garbage")

    eventually(lambda: world.data(path) is None, 10, "it is withdrawn")
    group.goes_on()


@garbage
def test_unreadable_channel_of_no_member_delays_none(world: World, service: CoordinatorService, data: bytes) -> None:
    world.put(PATHS.channel("ghost"), data)
    group = Group(world, service)

    group.is_reported(PATHS.channel("ghost"))
    group.goes_on()


@garbage
def test_other_znodes_that_cannot_be_read_stop_nothing(world: World, service: CoordinatorService, data: bytes) -> None:
    for path in (PATHS.offset("t", 0), PATHS.rebalance(1), PATHS.query("q"), f"{PATHS.segments}/segment-0000000000"):
        world.put(path, data)
    group = Group(world, service)

    group.goes_on()

    assert group.good.held == parts("t", 1), "the other partition's start is unreadable"
    eventually(lambda: PATHS.query("q") in service.problems.current(), 10, "the query is reported")
    assert PATHS.offset("t", 0) in read_status(world.store, world.brokers).problems
    assert service.term is not None and service.term.epoch == 1


def test_a_segment_with_numbers_that_are_none_does_not_end_the_collection(world: World, stage: ManualStage) -> None:
    world.elected(world.coordinator(sweep_interval_ms=200, segment_retention_ms=0))
    stage.puppet("g", "c1", {"t": 1})
    ranges = {"t": {"\u00b2": [0, 1]}}
    segment = {"file": "f", "segments_dir": "/nowhere", "rows": 1, "bytes": 1, "ranges": ranges, "topics": {"t": "x"}}
    segment |= {"consumer": "c", "incarnation": "i", "generation": 1}
    for _ in range(2):
        world.put(f"{PATHS.segments}/segment-0000000000", json.dumps(segment).encode())
        world.put(PATHS.query("q"), json.dumps({"run": "r", "finished": 2**60}).encode())

        eventually(lambda: not world.names(PATHS.segments), 5, "it is collected, and the collector lives on")


@pytest.mark.parametrize("data", [b"garbage", b"[]", b'{"node":"\\ud800","host":"\\ud800","epoch":1}'])
def test_a_foreign_coordinator_znode_is_waited_for_and_shown(world: World, data: bytes) -> None:
    world.put(COORDINATOR, data)
    service = world.coordinator()
    world.topic("t", 1)
    world.consumer("g", "c1", {"t": 1})

    assert "COORDINATOR" in run_ok(world.zk, "status").output
    assert service.term is None
    world.remove(COORDINATOR)
    world.elected(service)
    world.stable("g", 1)


def test_text_that_no_terminal_can_show_is_no_reason_for_the_status_to_fail(world: World) -> None:
    world.put(PATHS.state, b'{"state":"Stable","reason":"\\ud800","left_out":{"\\ud800":"\\ud800\\u001b[31m"}}')
    registration = {"incarnation": "\ud800", "subscription": {"t": 1}, "host": "\ud800\x1b[31m"}
    world.put(PATHS.id("c1"), json.dumps(registration).encode())
    for command in ("status", "groups list", "groups describe g --members", "groups describe g"):
        for output in ("table", "json"):
            shown = run_ok(world.zk, *command.split(), "-o", output).output

            assert "\x1b[31m" not in shown, "nor may it colour the terminal"


# ---- log lines


def test_bad_data_is_logged_once_and_again_after_a_change(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zk_group.coordinator.term.reading")
    service = world.coordinator(sweep_interval_ms=100)
    world.topic("t", 1)
    path = world.brokers.topic("bad")
    world.put(path, b"first")
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    topics = eventually(lambda: service.problems.current(), 5, "it is reported")
    assert list(topics) == [path]
    sweeps = len(caplog.records)
    world.put(path, b"second")
    eventually(lambda: service.problems.count == 2, 5, "another complaint counts again")
    world.remove(path)
    eventually(lambda: service.problems.current() == {}, 5, "what is gone is no problem any more")

    said = [record.getMessage() for record in caplog.records if path in record.getMessage()]
    assert sweeps == 1
    ignored = "ignoring unreadable znode"
    assert [line.split(":")[0] for line in said] == [ignored, ignored, "unreadable znode recovered"]


@pytest.mark.parametrize("command", ["status", "groups list", "topics list", "run --connect-timeout-ms 200"])
def test_unreachable_zookeeper_exits_with_4_and_one_sentence(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk_group.coordinator.zk.process.cli.CONNECT_TIMEOUT_S", 0.2)

    result = run("127.0.0.1:1", *command.split())

    assert result.exit_code == 4
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: no ZooKeeper server answered at 127.0.0.1:1 within 0.2 s: check the address")
    assert "Traceback" not in result.stderr


# ---- many of them


def test_many_bad_znodes_are_listed_in_bounds_with_their_number(world: World) -> None:
    world.topic("t", 1)
    for number in range(150):
        world.store.commit([Create(world.brokers.topic(f"bad-{number:03}"), b"garbage")])

    document = run_json(world.zk, "status")
    table = run_ok(world.zk, "status").stdout
    check = run(world.zk, "status", "--check").stdout

    assert (len(document["problems"]), document["problem_count"]) == (100, 150)
    assert table.count("holds no JSON") == 100 and table.endswith("and 50 more\n")
    assert check.count("holds no JSON") == 20 and "130 more znodes cannot be read" in check


def test_many_bad_commands_are_few_lines(world: World, group: Group, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    world.store.commit([Create(PATHS.command_prefix("good"), b"garbage", sequential=True)] * 300)

    eventually(lambda: not world.names(PATHS.channel("good")), 20, "they are removed")
    group.goes_on()
    lines = [line.getMessage() for line in caplog.records if "/channel/good/command" in line.getMessage()]
    lines += [line.getMessage() for line in caplog.records if "command discarded" in line.getMessage()]
    assert len(lines) <= 60  # ten of each of five kinds
