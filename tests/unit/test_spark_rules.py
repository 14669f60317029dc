"""Options of a pool and a source, read or refused, without Spark."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumer.errors import Inherited
from consumer.spark.fetchers.config import SlotConfig
from consumer.spark.fetchers.pool import FetcherPool, pool_name, slot_config, subscription_of
from consumer.spark.fetchers.supervisor import SlotStatus, reason_of, slots_table
from consumer.spark.resources import SparkCluster, cluster_of, context_of
from consumer.spark.source.options import ClaimedReader, SourceConfig, is_reader_of, source_config
from consumer.spark.source.planner import check_batch, check_stream
from consumer.spark.source.segment_index import Sealed, SourceOffset, gaps
from coordinator.zk.errors import BadData, UsageError
from coordinator.zk.znodes.paths import is_name
from coordinator.zk.znodes.records import BLACK_LIST, STATIC, WHITE_LIST
from coordinator.zk.znodes.segments import Segment

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
def test_speculation_is_refused_where_it_reaches_jobs_of_one_task(
    conf: dict[str, str], words: str, harmless: dict[str, str]
) -> None:
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
        "coordinator.zk.errors.ZooKeeperUnreachable: no server answered\n\n\tat org.apache.spark.api.python"
    )
    assert reason_of(Exception(text)) == "coordinator.zk.errors.ZooKeeperUnreachable: no server answered"
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
