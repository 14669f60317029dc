"""Topics: the admin functions, `zk-coordinator topics` and `zk-consumer produce`, and groups whose topics change."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.cli import run_json
from tests.support.memlog import MemoryLog
from tests.support.stores import Interrupted, lost_reply
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.cli import main as consumer_main
from zk_group.consumer.logs import open_log
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.admin.topics import alter_topic, create_topic, delete_topic, list_topics
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.store import Create, Store
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.records import BLACK_LIST, WHITE_LIST, OffsetRecord, Topic

BROKERS = Brokers()
LARGE = 1 << 30


@pytest.mark.parametrize(
    ("name", "partitions", "message"),
    [
        ("a/b", 1, "'a/b' cannot name a topic"),
        ("..", 1, "'..' cannot name a topic"),
        ("", 1, "'' cannot name a topic"),
        ("flights", 0, "a topic has 1 to 100000 partitions, not 0"),
        ("flights", 100_001, "not 100001"),
    ],
)
def test_a_bad_name_or_number_is_refused_in_a_sentence(store: Store, name: str, partitions: int, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        create_topic(store, BROKERS, name, partitions)
    assert list_topics(Reading(store), BROKERS) == {}


def test_change_is_applied_on_top_of_a_concurrent_one(store: Store) -> None:
    create_topic(store, BROKERS, "flights", 1)
    interfering = Interrupted(store, lambda: alter_topic(store, BROKERS, "flights", 3))
    assert len(alter_topic(interfering, BROKERS, "flights", 5).partitions) == 5

    interfering = Interrupted(store, lambda: alter_topic(store, BROKERS, "flights", 9))
    with pytest.raises(UsageError, match="it has 9, which cannot become fewer"):
        alter_topic(interfering, BROKERS, "flights", 7)


def test_a_commit_whose_reply_was_lost_counts_as_done_when_it_was(store: Store) -> None:
    created = create_topic(store, BROKERS, "warm-up", 1)  # makes the parents, so that the next commit is the topic's
    assert created

    topic = create_topic(Interrupted(store, after=lost_reply), BROKERS, "flights", 1)
    altered = alter_topic(Interrupted(store, after=lost_reply), BROKERS, "flights", 2)
    assert list_topics(Reading(store), BROKERS)["flights"] == altered == Topic("flights", topic.id, (0, 1))
    delete_topic(Interrupted(store, after=lost_reply), BROKERS, "flights")

    assert [*list_topics(Reading(store), BROKERS)] == ["warm-up"]


def test_a_topic_is_deleted_with_everything_below_it(store: Store) -> None:
    create_topic(store, BROKERS, "flights", 1)
    root = BROKERS.topic("flights")
    store.commit([Create(f"{root}/partitions")])
    for first in range(0, 500, 250):  # more than one multi takes
        store.commit([Create(f"{root}/partitions/{number}") for number in range(first, first + 250)])
    late = Interrupted(store, lambda: store.commit([Create(f"{root}/late")]))

    removed = delete_topic(late, BROKERS, "flights")

    assert len(removed) == 503
    assert (removed[-1], store.get(root)) == (root, None)
    with pytest.raises(UsageError, match="there is no topic flights"):
        delete_topic(store, BROKERS, "flights")


def test_a_producer_learns_of_topics_from_zookeeper(store: Store, tmp_path: Path) -> None:
    topic = create_topic(store, BROKERS, "flights", 2)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", topic.id)

    with Producer.for_store(store, tmp_path, BROKERS) as producer:
        producer.send("flights", b"x", partition=1)
        with pytest.raises(UsageError, match="there is no topic trains at /brokers/topics/trains"):
            producer.send("trains", b"x")
        with pytest.raises(UsageError, match="cannot name a topic"):
            producer.send("../flights", b"x")

    assert open_log(str(tmp_path)).latest("flights", topic.id, 1) == 1


# ---- the command lines


def created(zk: str, name: str, partitions: int) -> str:
    """Create a topic by the command line; its id."""
    return str(run_json(zk, "topics", "create", name, "--partitions", str(partitions))[0]["topic_id"])


def produced(zk: str, folder: Path, lines: bytes, *options: str) -> Result:
    """Run `zk-consumer produce` on a file with these lines."""
    (folder / "input").write_bytes(lines)
    args = ["produce", "--zk", zk, "--log-dir", str(folder / "log"), "flights", str(folder / "input"), *options]
    return CliRunner().invoke(consumer_main, args)


def fetched(folder: Path, topic_id: str, partition: int = 0) -> list[dict[str, Any]]:
    batches = open_log(str(folder / "log")).fetch("flights", topic_id, partition, 0, LARGE).batches
    return [row for batch in batches for row in batch.to_pylist()]


def test_each_line_of_a_file_becomes_a_record(zk: str, tmp_path: Path) -> None:
    topic_id = created(zk, "flights", 1)

    result = produced(zk, tmp_path, b"one\r\n\ntwo \xff\nlast")

    assert result.exit_code == 0, result.output
    assert re.fullmatch(r"4 records written to flights in \d+\.\d s\n", result.stderr)
    assert [row["value"] for row in fetched(tmp_path, topic_id)] == [b"one", b"", b"two \xff", b"last"]


def test_a_line_of_json_gives_key_partition_time_and_headers(zk: str, tmp_path: Path) -> None:
    topic_id = created(zk, "flights", 2)
    lines = [
        {"value": {"a": 1, "b": "ü"}, "key": "k", "partition": 1, "timestamp": 1000, "headers": {"h": "x", "n": None}},
        {"value": "text", "partition": 1, "headers": [{"key": "h", "value": "1"}, {"key": "h", "value": "2"}]},
        {"value": None, "key": "gone", "partition": 1},
    ]

    result = produced(zk, tmp_path, "\n\n".join(map(json.dumps, lines)).encode(), "--format", "jsonl")

    assert result.exit_code == 0, result.output
    first, second, third = fetched(tmp_path, topic_id, 1)
    assert (first["value"], first["key"], first["timestamp"].timestamp()) == ('{"a":1,"b":"ü"}'.encode(), b"k", 1)
    assert first["headers"] == [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    assert (second["value"], second["key"], len(second["headers"])) == (b"text", None, 2)
    assert (third["value"], third["key"]) == (None, b"gone")


def test_bad_lines_are_reported_with_their_numbers_and_the_good_ones_are_written(zk: str, tmp_path: Path) -> None:
    topic_id = created(zk, "flights", 1)
    bad = {
        b"nonsense": "is no JSON: 'nonsense'",
        b'{"value": NaN}': "has a value that JSON does not know",
        b"[1]": "is no JSON object with a value",
        b'{"key": "k"}': "is no JSON object with a value",
        b'{"value": "x", "vlaue": 1}': "has an unknown field 'vlaue'",
        b'{"value": "x", "key": 7}': ": field 'key' must be a string",
        b'{"value": "x", "partition": 9}': ": topic flights has no partition 9",
        b'{"value": "x", "partition": -1}': ": field 'partition' must be a whole number",
        b'{"value": "x", "timestamp": "now"}': ": field 'timestamp' must be a whole number",
        b'{"value": "x", "headers": {"h": 1}}': "has a header 'h' that is neither a string nor null",
        b'{"value": "\\ud800"}': ": field 'value' has half a character",
        b"\xff": "is no JSON",
        b"[" * 100_000: "is no JSON",
    }
    aside, lines = tmp_path / "aside", [b'{"value": "a"}', *bad, b'{"value": "b"}']

    result = produced(zk, tmp_path, b"\n".join(lines), "--format", "jsonl", "--bad-lines", str(aside))

    assert result.exit_code == 1
    assert "2 records written to flights" in result.stderr and f"{len(bad)} bad lines were skipped" in result.stderr
    assert [row["value"] for row in fetched(tmp_path, topic_id)] == [b"a", b"b"]
    assert aside.read_bytes() == b"".join(line + b"\n" for line in bad)
    for number, words in enumerate(bad.values(), start=2):
        assert re.search(f"error: line {number}:? ?{re.escape(words.removeprefix(': '))}", result.stderr), words


def test_after_twenty_bad_lines_the_rest_is_only_counted(zk: str, tmp_path: Path) -> None:
    created(zk, "flights", 1)

    result = produced(zk, tmp_path, b"?\n" * 100, "--format", "jsonl")

    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 22)
    assert "100 bad lines were skipped" in result.stderr


@pytest.mark.real_zookeeper("processes")
def test_piped_input_is_written_while_the_pipe_is_open_and_ends_on_interrupt(zk: str, tmp_path: Path) -> None:
    topic_id = created(zk, "flights", 1)
    log = open_log(str(tmp_path))
    (tmp_path / "flights" / topic_id).mkdir(parents=True)
    command = [sys.executable, "-c", "from zk_group.consumer.cli import main; main()", "produce", "flights"]
    env = {**os.environ, "ZK_GROUP_ZK": zk, "ZK_GROUP_LOG_DIR": str(tmp_path)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stderr
        process.stdin.write(b"one\ntwo\nthr")
        process.stdin.flush()

        eventually(lambda: log.latest("flights", topic_id, 0) == 2, 20, "two lines in the log")
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()

    assert process.returncode == 130
    assert "2 records written to flights" in said
    assert "Traceback" not in said


# ---- partitions of groups while topics are created, grow, are deleted and are created again


PATHS = GroupPaths("g")


@pytest.mark.parametrize(
    ("pattern", "kind", "wanted"),
    [
        ("fl.*", WHITE_LIST, {"flights", "fleet"}),
        ("fl.*,weather", BLACK_LIST, {"planes"}),
        ('"planes"', WHITE_LIST, {"planes"}),
    ],
    ids=["white list", "black list", "a name as Kafka quotes it"],
)
def test_a_wildcard_group_reads_what_its_pattern_means(world: World, pattern: str, kind: str, wanted: set[str]) -> None:
    world.coordinator()
    for name in ("flights", "fleet", "weather", "planes", "__consumer_offsets"):
        world.topic(name, 1)

    consumer = world.consumer("g", "c1", {pattern: 1}, pattern=kind)

    world.stable("g", 1)
    eventually(lambda: {part.topic for part in consumer.held} == wanted, 5, "it holds what its pattern means")


def test_sixty_topics_that_appear_at_once_make_a_history_that_can_be_read(world: World) -> None:
    service = world.coordinator(rebalance_debounce_ms=500)
    consumer = world.consumer("g", "c1", {"t.*": 1}, pattern=WHITE_LIST)
    world.stable("g", 1)

    names = [f"t-{'x' * 150}-{number}" for number in range(60)]
    world.topic("model", 1)  # which the group does not mean
    data = world.data(world.brokers.topic("model")) or b""
    world.store.commit([Create(world.brokers.topic(name), data) for name in names])

    eventually(lambda: len(consumer.held) == 60, 10, "all are read")
    world.stable("g", 1)
    eventually(lambda: all(r.finished_ms is not None for r in world.history("g")), 5, "each rebalance is finished")
    assert service.problems.current() == {}


def test_recreated_topic_is_another_topic_and_begins_at_the_earliest_offset(world: World) -> None:
    world.coordinator()
    old = world.topic("t", 2)
    log = MemoryLog(end=50)
    consumer = world.consumer("g", "c1", {"t": 1}, log=log)
    before = world.stable("g", 1)
    eventually(lambda: len(consumer.records) == 100, 10, "all is read")

    world.remove(world.brokers.topic("t"))
    gone = world.stable("g", 1, above=before.generation)
    eventually(lambda: consumer.held == frozenset(), 5, "it is given up")
    assert OffsetRecord.parse("", world.data(PATHS.offset("t", 0)) or b"").offset == 50
    assert gone.left_out == {"t": "no such topic (yet)"}
    new = world.topic("t", 3)

    after = world.stable("g", 1, above=gone.generation)
    assert (after.topics["t"], after.left_out) == (new.id, {})
    assert new.id != old.id
    eventually(lambda: len(consumer.records) == 100 + 150, 10, "the new topic is read from its beginning")
    assert world.channel("g", "c1").running[TopicPartition("t", 0)] == 50


def test_kafka_topic_without_an_id_is_distinguished_from_its_successor_by_czxid(world: World) -> None:
    world.coordinator()
    world.put(world.brokers.topic("t"), b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    consumer = world.consumer("g", "c1", {"t": 1}, log=MemoryLog(end=10))
    before = world.stable("g", 1)
    eventually(lambda: len(consumer.records) == 20, 10, "all is read")

    world.put(world.brokers.topic("t"), b'{"version":2,"partitions":{"0":[2],"1":[2]}}')
    world.more_partitions("t", 2)
    assert world.state("g").generation == before.generation, "other replicas are no other topic"
    world.remove(world.brokers.topic("t"))
    world.put(world.brokers.topic("t"), b'{"version":1,"partitions":{"0":[1],"1":[1]}}')

    world.stable("g", 1, above=before.generation)
    eventually(lambda: len(consumer.records) == 40, 10, "its successor is read from the beginning")
