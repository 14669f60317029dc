"""Options of a pool and a source, read or refused, and what slots do and wait for: without Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zk_group.consumer.config import Subscription
from zk_group.consumer.errors import Inherited
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.consumer.streaming.fetchers.config import SlotConfig
from zk_group.consumer.streaming.fetchers.pool import FetcherPool, pool_name, slot_config, subscription_of
from zk_group.consumer.streaming.fetchers.slot import check_folders
from zk_group.consumer.streaming.fetchers.supervisor import (
    ENDED,
    NEW,
    RUNNING,
    WAITING,
    GroupView,
    SlotStatus,
    late_slots,
    late_text,
    read_group,
    reason_of,
    shown_slots,
    slots_table,
    view_of,
)
from zk_group.consumer.streaming.resources import SparkCluster, cluster_of, context_of
from zk_group.consumer.streaming.source.options import ClaimedReader, SourceConfig, is_reader_of, source_config
from zk_group.consumer.streaming.source.planner import check_batch, check_stream
from zk_group.consumer.streaming.source.segment_index import Sealed, SourceOffset, gaps
from zk_group.coordinator.zk.errors import BadData, ConnectionLost, SessionLost, UsageError
from zk_group.coordinator.zk.store import Node
from zk_group.coordinator.zk.znodes.group_state import COMPLETING, FAILED, PREPARING, STABLE, GroupState, Target
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GroupPaths, is_name
from zk_group.coordinator.zk.znodes.records import BLACK_LIST, STATIC, WHITE_LIST, Channel
from zk_group.coordinator.zk.znodes.segments import Segment, SegmentsRecord

PLACES = {"zk": "h:1", "group": "g", "log_dir": "/log", "segments_dir": "/segments"}


@pytest.mark.parametrize(
    ("cluster", "slots", "has_room"),
    [
        (SparkCluster(4, 1, 4, 1), 3, True),
        (SparkCluster(4, 1, 4, 1), 4, False),
        (SparkCluster(0, 2, 2, 1), 4, True),
        (SparkCluster(0, 2, 2, 1), 9, True),  # one executor has at most four of them
        (SparkCluster(0, 2, 2, 1), 10, False),
        (SparkCluster(0, 1, 1, 1), 1, False),  # 0.75 of a core is no room for a task of 1
        (SparkCluster(0, 1, 1, 0.5), 1, True),
        (SparkCluster(0, 4, 1, 1), 3, True),
        (SparkCluster(0, 4, 1, 1), 4, False),
        (SparkCluster(0, 4, 1, 2), 1, False),
        (SparkCluster(0, 1, 1, 1, is_dynamic=True), 8, True),
    ],
)
def test_a_pool_must_leave_room_for_the_querys_own_tasks(cluster: SparkCluster, slots: int, has_room: bool) -> None:
    assert (cluster.refusal(slots, 0.25) is None) is has_room


def context(master: str, **conf: str) -> Any:
    options = {name.replace("_", "."): value for name, value in conf.items()}
    return SimpleNamespace(master=master, getConf=lambda: options, defaultParallelism=8)


@pytest.mark.parametrize(
    ("sc", "cluster"),
    [
        (context("local"), SparkCluster(1, 1, 1, 1)),
        (context("local[4]"), SparkCluster(4, 1, 4, 1)),
        (context("local[4,3]"), SparkCluster(4, 1, 4, 1)),
        (context("local-cluster[2,3,1024]", spark_task_cpus="0.5"), SparkCluster(0, 2, 3, 0.5)),
        (context("yarn", spark_executor_instances="5", spark_executor_cores="2"), SparkCluster(0, 5, 2, 1)),
        (context("yarn", spark_executor_instances="5"), SparkCluster(0, 5, 1, 1)),
        (context("spark://h:7077", spark_executor_instances="2"), SparkCluster(0, 2, 4, 1)),
    ],
)
def test_environment_of_an_application_is_read_from_its_configuration(sc: Any, cluster: SparkCluster) -> None:
    assert cluster_of(sc) == cluster


IDLE = {"spark.python.worker.killOnIdleTimeout": "true", "spark.python.worker.idleTimeoutSeconds": "30s"}
SPECULATES = {"spark.speculation": "TRUE", "spark.speculation.task.duration.threshold": "15s"}


@pytest.mark.parametrize(
    ("conf", "words", "harmless"),
    [
        (IDLE, "killOnIdleTimeout", {"spark.python.worker.idleTimeoutSeconds": "0"}),
        (SPECULATES, "false, or leave out the threshold", {"spark.speculation": "false"}),
        (SPECULATES, "false, or leave out", {"spark.speculation.task.duration.threshold": "0"}),
    ],
    ids=["idle workers are killed", "speculation", "no threshold"],
)
def test_speculation_of_one_task_jobs_is_refused(conf: dict[str, str], words: str, harmless: dict[str, str]) -> None:
    """So are applications that would kill silent workers."""
    conf = dict(conf)
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    with pytest.raises(UsageError, match=words):
        context_of(session)
    conf |= harmless
    assert context_of(session) is session.sparkContext


def test_a_spark_connect_session_is_refused() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(UsageError, match="Spark Connect"):
        context_of(session)


def test_a_pool_is_named_after_its_application_and_so_are_its_consumers() -> None:
    name = pool_name("My app: Flüge / 2024")
    assert name == "My-app-Fl-ge-2024"
    config = slot_config(PLACES, name)
    assert config.consumer(3) == "My-app-Fl-ge-2024-slot-3"
    assert pool_name("///") == "spark"
    assert is_name(SlotConfig(**PLACES, pool=pool_name("x" * 400), slots=1000).consumer(999))


def test_options_that_are_unknown_missing_or_wrong_are_refused() -> None:
    with pytest.raises(UsageError, match="no option 'sluts'"):
        slot_config(PLACES | {"sluts": 3}, "p")
    with pytest.raises(UsageError, match="group is needed"):
        slot_config({"zk": "h:1"}, "p")
    with pytest.raises(UsageError, match="slots must be from 1"):
        slot_config(PLACES | {"slots": 0}, "p")


def test_exactly_one_kind_of_subscription_is_given() -> None:
    assert subscription_of(["a", "b"], None, None).topics == {"a": 1, "b": 1}
    assert subscription_of({"a": 2}, None, None).pattern == STATIC
    assert subscription_of(None, "fl.*", None).pattern == WHITE_LIST
    assert subscription_of(None, None, "fl.*").pattern == BLACK_LIST
    for wrong in ((None, None, None), (["a"], "b", None), ("a", None, None)):
        with pytest.raises(UsageError):
            subscription_of(*wrong)


def test_every_call_of_an_inherited_pool_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sc = context("local[9]")
    sc.appName = "app"
    pool = FetcherPool(SimpleNamespace(sparkContext=sc), ["t"], **PLACES | {"segments_dir": str(tmp_path)})  # type: ignore[arg-type]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    calls = (pool.start, pool.wait_until_running, lambda: pool.resize(3), pool.stop, pool.status, pool.sweep)
    for call in calls:
        with pytest.raises(Inherited, match="make a pool in each process"):
            call()


def test_a_jobs_error_is_the_last_line_of_the_tasks_traceback() -> None:
    text = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n"
        'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n'
        "zk_group.coordinator.zk.errors.ZooKeeperUnreachable: no server answered\n\n\tat org.apache.spark.api.python"
    )
    assert reason_of(Exception(text)) == "zk_group.coordinator.zk.errors.ZooKeeperUnreachable: no server answered"
    assert reason_of(Exception("Job 3 cancelled\nmore")) == "Job 3 cancelled"


def test_options_of_a_source_are_read_and_checked() -> None:
    options = {"zk": "h:1", "group": "g", "maxRecordsPerTrigger": "5", "includeHeaders": "True", "readers": "3"}
    assert source_config(options) == SourceConfig("h:1", "g", max_rows=5, include_headers=True, readers=3)
    for name, value in (("readers", "0"), ("readers", "x"), ("failOnDataLoss", "no"), ("group", "a/b"), ("zk", "")):
        with pytest.raises(UsageError):
            source_config(options | {name: value})


def test_readers_of_one_query_are_numbered_while_they_live() -> None:
    config = SourceConfig("h:1", "g", query="numbered")
    first, second, third = ClaimedReader(config), ClaimedReader(config), ClaimedReader(config)
    assert [each.query for each in (first, second, third)] == ["numbered", "numbered.reader-2", "numbered.reader-3"]
    first.close()
    again = ClaimedReader(config)
    assert again.query == "numbered"
    for each in (again, second, third):
        assert is_reader_of(each.query, "numbered")
        each.close()
    assert not is_reader_of("other.reader-2", "numbered")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startingSegmnts", "did you mean startingSegments?"),
        ("startingOffsets", "did you mean startingSegments?"),
        ("maxOffsetsPerTrigger", "did you mean maxRecordsPerTrigger?"),
        ("groupp", "did you mean group?"),
        ("subscribe", "topics are those of its FetcherPool"),
        ("frobnicate", "known are zk, group, query, maxRecordsPerTrigger"),
    ],
)
def test_unknown_option_of_a_source_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        source_config({"zk": "h:1", "group": "g", name: "x"})

    assert str(refused.value).startswith(f"the source has no option '{name}': ")
    assert hint in str(refused.value)


def test_options_of_a_source_have_any_case_and_those_of_kafka_are_passed_on() -> None:
    found = source_config({"zk": "h:1", "GROUP": "x", "group": "g", "kafka.Client.Id": "me"})

    assert (found.group, found.kafka) == ("g", {"kafka.Client.Id": "me"})


def test_offset_is_unchanged_after_a_checkpoint() -> None:
    for offset in (
        SourceOffset(2**40, 7, "q", "segment-0000000001"),
        SourceOffset(7, 1, "q", "segment-0000000003", begun=2, checkpoint=42),
    ):
        assert SourceOffset.of(offset.to_dict()) == offset
    assert SourceOffset.of({"version": 1, "czxid": 5, "root": 1, "query": "q"}).segment == ""
    for wrong in ({"czxid": -1, "root": 1, "query": "q"}, {"root": 1, "query": "q"}):
        with pytest.raises(BadData):
            SourceOffset.of(wrong)


def test_numbers_of_segments_continue_after_two_to_the_31() -> None:
    def sealed(name: str) -> Sealed:
        return Sealed(1, name, Segment("f", "d", 1, 1, (), "c", "i", 1))

    assert gaps("segment-2147483647", [sealed("segment--2147483648"), sealed("segment--2147483647")]) == []
    assert len(gaps("segment-0000000001", [sealed("segment-0000000003")])) == 1
    assert gaps("", [sealed("segment-0000000003")]) == []


def test_where_a_query_starts_and_ends_is_read_and_checked() -> None:
    options = {"zk": "h:1", "group": "g"}
    default = source_config(options)
    assert (default.starting_segments, default.ending_segments) == ("earliest", "latest")
    assert source_config(options | {"startingSegments": "LATEST"}).starting_segments == "latest"
    name = "segment-0000000007"
    assert source_config(options | {"endingSegments": name}).ending_segments == name
    for option in ("startingSegments", "endingSegments"):
        words = f"{option} must be earliest, latest, a segment's name or checkpoint:NUMBER"
        for wrong in ["", "newest", "7", "segment-7", "../x", *(f"checkpoint:{number}" for number in ("", 0, -1, "x"))]:
            with pytest.raises(UsageError, match=words):
                source_config(options | {option: wrong})


@pytest.mark.parametrize(
    ("check", "options", "why"),
    [
        (check_batch, {"startingSegments": "latest"}, "startingSegments=latest makes no sense for a batch read"),
        (check_batch, {"endingSegments": "earliest"}, "endingSegments=earliest makes no sense for a batch read"),
        (
            check_stream,
            {"startingSegments": "segment-0000000007"},
            "must be earliest, latest or checkpoint:NUMBER for a",
        ),
        (check_stream, {"endingSegments": "segment-0000000007"}, "endingSegments is for batch reads"),
        (check_stream, {"endingSegments": "checkpoint:7"}, "endingSegments is for batch reads"),
        (check_batch, {"alignCheckpoints": "true"}, "alignCheckpoints is for streams"),
    ],
)
def test_invalid_start_or_end_is_refused(check: Any, options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check(source_config({"zk": "h:1", "group": "g"} | options))
    assert check(source_config({"zk": "h:1", "group": "g"}))


def test_table_of_slots_escapes_what_it_shows() -> None:
    table = slots_table("pool <p>", [SlotStatus(0, "p-slot-0", "waiting", 1, "<b>&</b>"), SlotStatus(1, "p-slot-1")])

    assert "<caption>pool &lt;p&gt;</caption>" in table
    assert "<td>&lt;b&gt;&amp;&lt;/b&gt;</td>" in table
    assert table.count("<tr>") == 3 and "None" not in table


# ---- what each slot of a pool does and waits for, by its job and by the group's znodes


SLOT = SlotStatus(0, "p-slot-0", RUNNING, attempts=1)
IDLE = SlotStatus(1, "p-slot-1", RUNNING, attempts=1)
RETRIED = replace(SLOT, attempts=3, last_error="no folder")
MISSING = {"t": "no such topic (yet)"}
T0 = TopicPartition("t", 0)
TARGET = {"p-slot-0": Target("i0", {"p-slot-0-0": frozenset({T0})}), "p-slot-1": Target("i1", {})}
BUSY = {"p-slot-0": Channel("i0", running={T0: 7}), "p-slot-1": Channel("i1")}
FREE = {"p-slot-0": Channel("i0"), "p-slot-1": Channel("i1")}
NO_COORDINATOR = "no coordinator is elected: start a node (zk-coordinator run)"
MORE_THREADS = "every partition is assigned to another consumer thread: there are more threads than partitions"


def group(channels: Mapping[str, Channel] = BUSY, state: str = STABLE, **fields: Any) -> GroupView:
    """A group whose target has a partition for the first slot of a pool and none for the second."""
    view = {name: fields.pop(name) for name in ("has_coordinator", "paused") if name in fields}
    return GroupView(channels, GroupState(state, target=TARGET, **fields), **view)


def shown(view: GroupView, *slots: SlotStatus, topics: Sequence[str] = ("s", "t")) -> list[SlotStatus]:
    return shown_slots(view, Subscription(dict.fromkeys(topics, 1)), slots)


COMPLETES = "waits for an assignment: the group is CompletingRebalance (c1 is asked)"
PREPARES = "waits for an assignment: the group is PreparingRebalance"
FAILS = "the group could not be rebalanced: too many"
NO_TOPIC = "topic t: no such topic (yet)"
SLOTS: tuple[tuple[SlotStatus, GroupView, str, str | None, str | bool], ...] = (
    (replace(SLOT, state=NEW, attempts=0), group({}), "new", None, True),
    (replace(SLOT, state=WAITING, last_error="no folder"), group(), "failing", "no folder", True),
    (replace(SLOT, state=ENDED), group(), "ended", None, True),
    (SLOT, GroupView(problem="no answer"), "unknown", "no answer", True),
    (SLOT, group({}), "registering", None, True),
    (SLOT, group({}, left_out={"p-slot-0": "evicted"}), "registering", "evicted", True),
    (RETRIED, group({}), "registering", "attempt 3, after: no folder", True),
    (IDLE, group({"p-slot-0": BUSY["p-slot-0"]}), "registering", None, True),
    (IDLE, group(has_coordinator=False), "unassigned", NO_COORDINATOR, True),
    (IDLE, group(left_out=MISSING), "unassigned", NO_TOPIC, False),
    (IDLE, group(left_out={"p-slot-1": "a bad pattern", **MISSING}), "unassigned", "a bad pattern", False),
    (IDLE, group(state=FAILED, reason="too many"), "unassigned", FAILS, True),
    (IDLE, group(), "unassigned", MORE_THREADS, False),
    (IDLE, GroupView(BUSY), "unassigned", "waits for an assignment: the group is Empty", True),
    (SLOT, group(FREE), "unassigned", "waits for its partitions", True),
    (SLOT, group(FREE, COMPLETING, reason="c1 is asked"), "unassigned", COMPLETES, True),
    (SLOT, group(FREE, PREPARING, left_out=MISSING), "unassigned", NO_TOPIC, PREPARES),
    (SLOT, group(), "fetching", None, False),
    (SLOT, group(has_coordinator=False), "fetching", None, NO_COORDINATOR),
    (SLOT, group(state=FAILED, reason="too many"), "fetching", None, FAILS),
    (SLOT, group(state=PREPARING), "fetching", None, PREPARES),
    (SLOT, group(left_out=MISSING), "fetching", NO_TOPIC, False),
    (SLOT, group(paused="5 GiB"), "paused", "5 GiB", False),
)
"""A slot, its group, its state and the reason; and whether it is waited for, and why if that is another reason."""


@pytest.mark.parametrize(("status", "view", "state", "reason", "late"), SLOTS)
def test_slot_has_its_state_and_the_reason(
    status: SlotStatus, view: GroupView, state: str, reason: str | None, late: str | bool
) -> None:
    (found,) = shown(view, status)

    assert (found.state, found.reason, found.consumer) == (state, reason, status.consumer)
    assert waits(view, status) == ({status.consumer: reason if late is True else late} if late else {})


def waits(view: GroupView, slot: SlotStatus) -> dict[str, str | None]:
    return {late.consumer: late.reason for late in late_slots(view, shown(view, slot))}


def test_of_many_missing_topics_three_are_named() -> None:
    missing = {f"t{number}": "no such topic (yet)" for number in range(9)}

    (found,) = shown(group(left_out=missing), SLOT, topics=sorted(missing))

    assert found.reason is not None and found.reason.endswith("; 6 more topics")


def test_topics_of_a_pattern_are_not_missed() -> None:
    (found,) = shown_slots(group(left_out=MISSING), Subscription({"t": 1}, WHITE_LIST), [SLOT])

    assert (found.state, found.reason) == ("fetching", None)


# ---- which slots are waited for


def test_text_of_slots_that_do_not_run_has_each_reason_once_with_its_slots() -> None:
    slots = [SlotStatus(number, f"p-slot-{number}", "registering") for number in range(7)]
    failing = SlotStatus(7, "p-slot-7", "failing", 2, "no such folder", "OSError: no such folder")

    assert late_text([*slots, failing]) == (
        "registering p-slot-0, p-slot-1, p-slot-2, p-slot-3, p-slot-4, and 2 more; "
        "failing p-slot-7: OSError: no such folder"
    )


# ---- the group's znodes

PATHS = GroupPaths("g")
STAT: Any = None


def store_of(nodes: Mapping[str, bytes]) -> Any:
    """A session that reads these znodes, once."""
    reads = iter([lambda paths: [Node(nodes[path], STAT) if path in nodes else None for path in paths]])
    return SimpleNamespace(get_many=lambda paths: next(reads)(paths))


def znodes(**channels: bytes) -> dict[str, bytes]:
    """The znodes of a Stable group with these channels, of registered consumers."""
    state = GroupState(STABLE, target=TARGET).to_bytes()
    found = {COORDINATOR: b"{}", PATHS.state: state, PATHS.segments: SegmentsRecord(paused="5 GiB").to_bytes()}
    found |= {PATHS.id(name): b"{}" for name in channels}
    return found | {PATHS.channel(name): data for name, data in channels.items()}


def test_group_is_read_by_one_request() -> None:
    view = read_group(store_of(znodes(a=Channel("i").to_bytes())), "g", ["a", "b"], {})

    assert view == GroupView({"a": Channel("i")}, GroupState(STABLE, target=TARGET), True, "5 GiB")


def test_group_without_readable_znodes_is_empty_and_has_no_members() -> None:
    nodes = {PATHS.state: b"?", PATHS.segments: b"?", PATHS.id("a"): b"?", PATHS.channel("a"): b"?"}

    assert read_group(store_of(nodes), "g", ["a"], {}) == GroupView(has_coordinator=False)


@pytest.mark.parametrize("data", [b"", Channel("i", ended="left").to_bytes(), Channel("before").to_bytes()])
def test_consumer_whose_channel_is_not_that_of_a_living_slot_is_registering(data: bytes) -> None:
    """Without an incarnation, ended, or of an earlier process with its name."""
    view = read_group(store_of(znodes(**{"p-slot-0": data})), "g", ["p-slot-0"], {"p-slot-0": "before"})

    assert [slot.state for slot in shown(view, SLOT)] == ["registering"]


def test_consumer_that_is_not_in_ids_is_registering() -> None:
    nodes = znodes(**{"p-slot-0": Channel("i").to_bytes()})
    del nodes[PATHS.id("p-slot-0")]

    assert [slot.state for slot in shown(read_group(store_of(nodes), "g", ["p-slot-0"], {}), SLOT)] == ["registering"]


@pytest.mark.parametrize("error", [ConnectionLost("no answer"), SessionLost("no answer")])
def test_errors_of_zookeeper_are_reasons(error: Exception) -> None:
    def refuse(_: Sequence[str]) -> list[Node | None]:
        raise error

    store: Any = SimpleNamespace(get_many=refuse)
    assert waits(view_of(store, "g", ["p-slot-0"], {}), SLOT) == {"p-slot-0": "no answer"}
    assert waits(view_of(None, "g", ["p-slot-0"], {}), SLOT) == {"p-slot-0": "the driver has no session with ZooKeeper"}


def test_folders_of_a_slot_are_tried_before_it_registers(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "file").touch()
    segments = SegmentFolder(str(tmp_path / "new" / "segments"))

    check_folders(str(tmp_path / "log"), segments, "g")
    check_folders("kafka:", segments, "g")
    assert list((tmp_path / "new" / "segments").rglob("*")) == [tmp_path / "new" / "segments" / "g"]
    with pytest.raises(UsageError, match=r"log_dir .*/nowhere is no folder on"):
        check_folders(f"file://{tmp_path}/nowhere", segments, "g")
    with pytest.raises(UsageError, match=r"segments_dir .*/file/x cannot be written on .*: Not a directory"):
        check_folders(str(tmp_path / "log"), SegmentFolder(str(tmp_path / "file" / "x")), "g")
    (tmp_path / "new" / "segments" / "g").chmod(0o777)
    with pytest.raises(UsageError, match=r"segments_dir .* cannot be written on .*: others may write folder g: "):
        check_folders("kafka:", segments, "g")
