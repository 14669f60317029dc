"""What happens to Kafka's brokers and to their reader, and what must be true then, as lines of text.

Statements stand on a line, between semicolons; `30x` before a line plays it thirty times, # is a comment.

    ends 0=5 u-0=3           end offsets. A place is a number of topic t, or names its topic; 1,2 and 0-4 are several
    begins 0=5               earliest offsets; leaders 1=b:2 (a:1 leads the others)
    ids t=new u=-            of topics; - while there is none
    down b:2                 all addresses that are down, or none; likewise refusing (credentials), and denied (topics)
    servers b:2              where the brokers are found from now on; - is an error
    brokers mute size=1000   attributes of `Brokers`: mute, holding, unfair (no longer: mute=no) and numbers
    answer behind=1          requests for topics up to now while they are held, but the last ones
    signal 0 CORRUPT 3 text  what clients say of a place, at an offset; of none without words
    again 0                  it is said again
    append 0 300 gaps=0,7    more records, without some of them
    expire 0 0.5             a part of its records

    assign 0,1 at=3          or at=50% of what there is; with the topic's id of now, or id=
    release 0; loses         partitions; its client
    poll 500 wanted=1        at most so many bytes; takes= seconds, times=; gives=1:0-4,2:0 are the offsets by
                             partition, of each poll that returns some
    polls 5 step=0.5         for seconds; gives= the number of records
    wait outages=1           polls until `count` has it
    fails                    a poll has no memory for records; `fails 500` polls single ones until then
    bound 5000               UNCONFIRMED_BYTES

    at 0=5                   next offsets
    problem 0 text           or -; has= a part of it, begins=, without=
    assigned 0,1             by the client; `assigned has=0` others too
    asked 0-3 0              requests for end offsets since `forget`, by their places; first= has= of=
    count described=..11     numbers (`Schedule.counted`): so many, at most ..11, at least 11..
    described without=t      requests for topics; only=t times=1
    latest 0 gives=3         fails= has a part of the error
    clients a:1 b:2          by their servers; closed=no,yes
    said "one" "another"     the log's messages, up to their first colon
    gaps 10                  seconds between lookups of the servers, to one second
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from unittest.mock import Mock

import pytest

from tests.support.stories import split, statements
from tests.unit.modelled_kafka import MB, Brokers, Reader
from zk_group.consumer.logs.base import LogError, Position
from zk_group.consumer.logs.kafka import client
from zk_group.consumer.logs.kafka.client import Signal
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

PLACE = re.compile(r"(?:([a-z]+)-)?(\d+)(?:-(\d+))?")


def places(text: str) -> list[TopicPartition]:
    """Those that are named in `0,u-1-3`; none in `-`."""
    found = [PLACE.fullmatch(one) for one in text.split(",") if text != "-"]
    assert None not in found, text
    split = [(one[1] or "t", int(one[2]), int(one[3] or one[2])) for one in found if one]
    return [TopicPartition(topic, number) for topic, first, last in split for number in range(first, last + 1)]


def by_place(options: dict[str, str]) -> dict[TopicPartition, int]:
    return {place: int(value) for some, value in options.items() for place in places(some)}


def offsets_of(text: str) -> dict[TopicPartition, list[int]]:
    """Of each partition, from `0:0-4,1:7`."""
    each = (one.partition(":") for one in text.split(","))
    return {places(some)[0]: [offset for _, offset in places(offsets)] for some, _, offsets in each}


def fits(value: int, bounds: str) -> bool:
    least, dots, most = bounds.partition("..")
    return int(least or 0) <= value <= int((most if dots else least) or value)


def variants(title: str, text: str) -> Iterator[tuple[str, str]]:
    """Of `title: one=1, other=2` one case for each word, whose $ is its value."""
    name, _, some = title.partition(": ")
    for one in some.split(", ") if some else [""]:
        word, _, value = one.partition("=")
        yield (f"{name}, {word}" if word else name), text.replace("$", value)


class Schedule:
    """A reader of modelled brokers to whom it happens. Each statement is a method, or a name in `play`."""

    def __init__(self, kafka: Brokers, caplog: pytest.LogCaptureFixture | None = None) -> None:
        self.kafka = kafka
        self._caplog = caplog

    @cached_property
    def reader(self) -> Reader:
        """It looks for the brokers when it is made."""
        return Reader(self.kafka)

    def play(self, text: str) -> None:
        for line in text.splitlines():
            times, _, rest = line.partition("x ") if re.match(r"\d+x ", line) else ("1", "", line)
            for _ in range(int(times)):
                for name, *words in statements(rest):
                    try:
                        self._play(name, *split(words))
                    except Exception as error:
                        error.add_note(f"in: {line.strip()}")
                        raise

    def _play(self, name: str, words: list[str], options: dict[str, str]) -> None:
        if name in ("down", "refusing", "denied"):
            setattr(self.kafka, name, set(words))
        elif name in ("ends", "begins"):
            getattr(self.kafka, name).update(by_place(options))
        elif name in ("release", "again", "assigned", "problem", "latest") and words:
            getattr(self, name)(places(words[0]), *words[1:], **options)
        else:
            getattr(self, name)(*words, **options)

    @property
    def counted(self) -> dict[str, int]:
        kafka, source = self.kafka, self.reader.source
        return {
            "described": len(kafka.described),
            "asked": len(kafka.asked),
            "looked": len(kafka.looked),
            "fetched": kafka.fetched,
            "clients": len(kafka.clients),
            "outages": self.reader.log.outages,
            "queue": source._queue.size,
            "most": self.reader.most,
            "lost": len(source._lost),
            "pending": source.is_pending,
        }

    # ---- the brokers

    def leaders(self, **leaders: str) -> None:
        self.kafka.leaders |= {place: address for some, address in leaders.items() for place in places(some)}

    def ids(self, **ids: str) -> None:
        self.kafka.ids |= {topic: topic_id.strip("-") for topic, topic_id in ids.items()}

    def servers(self, address: str) -> None:
        self.kafka.servers = address.strip("-")

    def brokers(self, *flags: str, **values: str) -> None:
        for name in flags:
            setattr(self.kafka, f"is_{name}", True)
        for name, value in values.items():
            setattr(self.kafka, f"is_{name}" if value == "no" else name, value != "no" and int(value))

    def answer(self, behind: str = "0") -> None:
        self.kafka.answered = len(self.kafka.described) - int(behind)

    def signal(self, some: str = "-", kind: str = "OTHER", offset: str = "0", text: str = "") -> None:
        of = getattr(client, kind)
        self.kafka.signals = {place: Signal(of, *place, int(offset), text) for place in places(some)}

    def again(self, some: list[TopicPartition]) -> None:
        for each in self.kafka.clients:
            for place in some:
                each.reports_again(place)

    def append(self, some: str, count: str, gaps: str = "-") -> None:
        for topic, number in places(some):
            end = self.kafka.ends.get((topic, number), 0)
            self.kafka.ends[topic, number] = end + int(count)
            markers = self.kafka.markers.setdefault((topic, self.kafka.ids.get(topic, "id"), number), set())
            markers.update(end + gap for _, gap in places(gaps))

    def expire(self, some: str, part: str) -> None:
        for place in places(some):
            begin = int(float(part) * self.kafka.ends.get(place, 0))
            self.kafka.begins[place] = max(self.kafka.begins.get(place, 0), begin)
            self.again([place])

    # ---- the reader

    def assign(self, some: str, at: str = "0", id: str = "") -> None:
        ids = self.kafka.ids
        self.reader.begin(
            {place: Position(id or ids.get(place.topic) or "id", self._offset(place, at)) for place in places(some)}
        )

    def _offset(self, place: TopicPartition, at: str) -> int:
        begin, end = self.kafka.begins.get(place, 0), self.kafka.ends.get(place, 0)
        return begin + (end - begin) * int(at[:-1]) // 100 if at.endswith("%") else int(at)

    def release(self, some: list[TopicPartition]) -> None:
        self.reader.end(some)

    def loses(self) -> None:
        self.reader.log._connection.discard()

    def close(self) -> None:
        self.reader.log.close()

    def poll(
        self, max_bytes: str = str(MB), wanted: str = "", takes: str = "0.02", times: str = "1", gives: str = ""
    ) -> None:
        targets = places(wanted) if wanted else None
        found = [self.reader.poll(int(max_bytes), targets, float(takes)) for _ in range(int(times))]
        if gives:
            assert [each for each in found if each] == [offsets_of(one) for one in gives.split() if one != "-"]

    def polls(self, seconds: str, step: str = "0.02", gives: str = "0..") -> None:
        count = self.reader.polls(float(seconds), float(step))
        assert fits(count, gives), f"{count} records"

    def wait(self, **counts: str) -> None:
        until = self.kafka.now + 100
        while not self._has(counts):
            self.reader.poll()
            assert self.kafka.now < until, self.counted

    def fails(self, most: str = "") -> None:
        self.kafka.spoil = Mock(side_effect=MemoryError)
        with pytest.raises(MemoryError) if most else suppress(MemoryError):
            for _ in range(int(most or 1)):
                self.reader.poll(1 if most else MB)
        self.kafka.spoil = lambda: None

    def bound(self, size: str) -> None:
        self.kafka.patched.setattr("zk_group.consumer.logs.kafka.source.UNCONFIRMED_BYTES", int(size))

    def forget(self) -> None:
        self.kafka.asked.clear()
        self.kafka.described.clear()
        self.kafka.looked.clear()

    # ---- what must be true

    def at(self, **offsets: str) -> None:
        expected = by_place(offsets)
        assert {place: self.reader.positions[place].offset for place in expected} == expected

    def problem(
        self, some: list[TopicPartition], text: str | None = None, has: str = "", begins: str = "", without: str = ""
    ) -> None:
        for place in some:
            found = str(self.reader.source.problems.get(place, ""))
            assert text is None or found == text.removesuffix("-" if text == "-" else ""), found
            assert has in found and found.startswith(begins) and not (without and without in found), found

    def assigned(self, some: list[TopicPartition] | None = None, has: str = "-") -> None:
        found = set(self.kafka.clients[-1].assigned)
        assert found >= set(places(has))
        assert some is None or found == set(some)

    def asked(self, *requests: str, first: str = "", has: str = "", of: str = "-", times: str = "") -> None:
        found = self.kafka.asked
        assert not requests or found == [set(places(one)) for one in requests]
        assert not first or found[0] == set(places(first))
        assert not has or set(places(has)) in found
        assert not times or sum(set(places(of)) <= each for each in found) == int(times), found

    def described(self, without: str = "", only: str = "", times: str = "") -> None:
        found = self.kafka.described
        assert all(without not in topics for topics in found)
        assert not only or found.count({only}) == int(times), found

    def _has(self, counts: dict[str, str]) -> bool:
        found = self.counted
        return all(fits(found[name], bounds) for name, bounds in counts.items())

    def count(self, **counts: str) -> None:
        assert self._has(counts), self.counted

    def latest(self, some: list[TopicPartition], gives: str = "", fails: str = "") -> None:
        ((topic, number),) = some
        try:
            found = self.reader.log.latest(topic, "id", number)
        except LogError as error:
            assert fails and fails in str(error), error
        else:
            assert not fails and found == int(gives)

    def clients(self, *servers: str, closed: str = "") -> None:
        assert [each.servers for each in self.kafka.clients] == [*servers]
        found = ["yes" if each.is_closed else "no" for each in self.kafka.clients]
        assert not closed or found == closed.split(",")

    def said(self, *heads: str) -> None:
        assert self._caplog is not None
        assert [message.partition(":")[0] for message in self._caplog.messages] == [*heads]

    def gaps(self, seconds: str) -> None:
        found = [later - earlier for earlier, later in pairwise(self.kafka.looked)]
        assert found and all(abs(gap - float(seconds)) <= 1 for gap in found), found
