"""A group's turn as lines of text: what it reads, and (in `written_turns.py`) what its plan writes.

A line is a subject, plain words, and options as key=value; shell quotes keep what has spaces together:

    group 1/2 Stable range          the state: epoch, generation, name, strategy; with client-side assignment also type=
                                    (its protocol type) ask= failed= attempts= failed_ask= floor=
    coordinator 2                   its epoch, if it is not that of the state
    member a had=a-1 has=t-0        a member, in the order of registration. Its target: had= (incarnation), has=, sent
             runs=t-0 at=1/1 ask=1  its channel: what it says; life= (its incarnation) idle= touched= written by it
             lease=2000 ...         its registration: offers= (client-side protocols) digest= type= instance= ...
             age=0.5 created= took= of its `ids` znode: seconds; milliseconds, when it took over the name
             waits=3.9 written=     its channel: seconds without carrying a command out; milliseconds
             gone, unread, mute     words: without `ids` znode; with an unreadable one; without a channel
             left                   gone, and its channel says so
             shall=t-0              what the cooperative strategy `given` assigns to it
    a gets start 1/2 t-0 ask=1      a pending command (times=10: so many), or one that the plan sends
    seat a czxid=5 away=2.0         a static member's (removed= by whom)
    mark x x-1 t-0 lease=2000       of an eviction (age= seconds)
    ask 1 p a members=a,b           or asks 1-9: protocol and leader (reason= outdated= attempt= age= since=)
             a-0=t-0 ...            its answer: of a thread (a/b-0= in the entry of a), names= error= problem= states=,
                                    unread (its entries)
    request "topic u has changed"   by a leader
    topic t id-t 0,1                its id and partitions (or a range: 0-99)
    owners t-0                      if they are not those that members say they run
    region r Running reset=1        of the group: kind= sequence= next= open= groups= reason= held=1/119.9 (seconds); of
                                    `every` member too; what a member has restored: ready=; group: ready= away=
    ages failed=0.3 grown=1.0       seconds; rules timeout=30 delay=0.5 (of the first generation) most=2 (members)
    pools p-slot-0,p-slot-1         the consumers of its fetcher pools
    history 1 2; record 1 started=  of rebalances; ages now= and changed= (what the turn is for) in milliseconds. Only
                                    where there is a `now` the records that the plan writes are shown

Partitions are t-0,t-1 and `-` is none. `every` gives options to each member. Asks are named by their numbers.
What the plan writes stands below, indented (`likewise` is a reason given above, a withdrawn command has its number in
the channel): epoch, generation, state and strategy (`kept` where nothing is written) with its reason, then only what
changes (starts `of its target` are of all that each member has there). The leader's command is left out where it is
just that of the ask made. `all as before`, `all else as before`: the lines, or all but the first, are those of the
turn before.

Unindented lines below start another turn, which reads the same but for them; `without SUBJECT` leaves a line out.
`after` is for the state as the turn before left it, `obeyed a b` for all that this wrote to state, channels, seats and
history (no asks): those members (or `all`, or `none`) have carried out their commands meanwhile; with options, those of
`ages`. With written= the last fetches are observed over the turns of a case.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.terms import only
from tests.support.written_turns import COMMANDS, RECORD, WORDS, written
from zk_group.coordinator.assignors import Assignment, Assignor, Subscriber
from zk_group.coordinator.planning.invariants import broken_invariants
from zk_group.coordinator.planning.membership import GroupRules
from zk_group.coordinator.planning.plan import Plan, plan
from zk_group.coordinator.planning.snapshot import (
    ChannelView,
    Compliance,
    CoordinatorFacts,
    HistoryFacts,
    Member,
    MemberFacts,
    PartitionFacts,
    RegionView,
    RequestFacts,
    RequestView,
    SeatView,
    SentCommand,
    Snapshot,
    SyncRequestView,
)
from zk_group.coordinator.rebalance.observation import Memory, ReadTimes, observe, writing
from zk_group.coordinator.zk.errors import RebalanceFailed
from zk_group.coordinator.zk.znodes.group_state import (
    Answer,
    Ask,
    AskMember,
    ClientProtocols,
    ClientSide,
    GroupState,
    Mark,
    MemberAnswer,
    Rebalance,
    Target,
)
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition, by_topic
from zk_group.coordinator.zk.znodes.paths import ask_name
from zk_group.coordinator.zk.znodes.records import Channel, Command, Registration, Seat, Topic
from zk_group.coordinator.zk.znodes.regions import CONSUMERS, GroupRegion, Progress, Region, RegionMembership

OFFSET = 5
"""Of every partition that a member says it runs."""


@dataclass(frozen=True)
class Line:
    """What follows its subject: plain words, and options."""

    words: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def over(self, other: Line) -> Line:
        """The same, with another's options where this has none."""
        return Line((*self.words, *other.words), {**other.options, **self.options})

    def text(self, key: str, default: str = "") -> str:
        return self.options.get(key, default)

    def names(self, key: str) -> tuple[str, ...]:
        return tuple(self.text(key).split(",")) if self.text(key) not in ("", "-") else ()

    def number(self, key: str, default: int = 0) -> int:
        return int(self.text(key, str(default)))

    def seconds(self, key: str) -> float:
        return float(self.text(key, "0"))


Lines = dict[str, list[Line]]
"""Subject -> its lines. A subject is a word, or two for what there are several of."""
SEVERAL = ("member", "seat", "mark", "ask", "topic")


def with_facts(snapshot: Snapshot, **known: Any) -> Snapshot:
    """The same, with fields of its facts replaced: each has a name of its own."""
    for part in (None, "coordinator", "members", "partitions", "requests", "history"):
        facts: Any = snapshot if part is None else getattr(snapshot, part)
        own = {name: known.pop(name) for name in [*known] if name in facts.__slots__}
        snapshot = replace(facts, **own) if part is None else replace(snapshot, **{part: replace(facts, **own)})
    assert not known
    return snapshot


def lines_of(text: str) -> Lines:
    """The lines of a turn."""
    found: Lines = {}
    for one in text.splitlines():
        words = shlex.split(one)
        if not words:
            continue
        count = 2 if words[0] in SEVERAL or words[1:2] in (["gets"], ["without"]) else 1
        rest = words[count:]
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        line = Line(tuple(word for word in rest if "=" not in word), options)
        found.setdefault(" ".join(words[:count]), []).append(line)
    return found


def changed(before: Lines, changes: Lines) -> Lines:
    """A turn's lines after some have changed: those of a subject replace its lines, `without` removes them."""
    gone = {word for line in changes.get("without", ()) for word in (" ".join(line.words),)}
    after = {**before, **{subject: lines for subject, lines in changes.items() if subject != "without"}}
    return {subject: lines for subject, lines in after.items() if subject not in gone}


def partitions(text: str) -> PartitionSet:
    """Those that are named in `t-0,t-1`."""
    some = [] if text in ("", "-") else text.split(",")
    return frozenset(TopicPartition(topic, int(number)) for topic, _, number in (one.rpartition("-") for one in some))


def threads(name: str, text: str) -> Mapping[str, PartitionSet]:
    """What a member's first thread has."""
    return {f"{name}-0": partitions(text)} if partitions(text) else {}


def command_name(number: int) -> str:
    return f"command-{number:010d}"


def ask_of(text: str) -> str:
    return ask_name(int(text)) if text else ""


@dataclass
class Given:
    """A cooperative strategy, whose assignment is part of a case."""

    threads: Assignment
    name: str = "given"
    is_eager: bool = False

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        return {one.consumer: self.threads[one.consumer] for one in subscribers}


class Reader:
    """The snapshot that lines of text describe."""

    def __init__(self, lines: Lines, state: GroupState | None = None, rebalance: Rebalance | None = None) -> None:
        self._lines = lines
        self._rebalance = rebalance
        self._topics = {name: Topic(name, one.words[0], _numbers(one.words[1])) for name, one in self._all("topic")}
        every = self._one("every")
        self._members = {name: one.over(every) for name, one in self._all("member")}
        self._there = {name: one for name, one in self._members.items() if not {"gone", "left"} & {*one.words}}
        self.state = state or self._state()

    def _one(self, subject: str) -> Line:
        return self._lines.get(subject, [Line()])[0]

    def _all(self, subject: str) -> list[tuple[str, Line]]:
        some = [(key.partition(" "), lines) for key, lines in self._lines.items()]
        return [(name, line) for (first, _, name), lines in some if first == subject for line in lines]

    def snapshot(self) -> Snapshot:
        ages, marks = self._one("ages"), self._all("mark")
        channels = {name: self._channel(name, one) for name, one in self._members.items() if self._has_channel(one)}
        running = frozenset(part for one in channels.values() for part in one.running)
        owners = self._lines.get("owners")
        request = self._lines.get("request")
        some = self._lines.get("pools", [])
        epoch = int(self._one("coordinator").words[0]) if "coordinator" in self._lines else self.state.epoch
        return Snapshot(
            "g",
            CoordinatorFacts(epoch, ages.number("now")),
            self.state,
            MemberFacts(
                channels,
                {name: self._member(name, place) for place, name in enumerate(self._there)},
                {name: self._seat(name, one) for name, one in self._all("seat")},
                frozenset(name for one in some for name in one.words[0].split(",")),
                {(name, one.words[0]): one.seconds("age") for name, one in marks if "age" in one.options},
            ),
            PartitionFacts(self._topics, partitions(owners[0].words[0]) if owners else running),
            RequestFacts(
                tuple(self._ask(number, one) for name, one in self._all("ask") for number in _numbers(name)),
                SyncRequestView(1, request[0].words[0]) if request else None,
                ages.seconds("failed"),
                ages.seconds("grown"),
            ),
            self._region() if "region" in self._lines else None,
            HistoryFacts(tuple(map(int, self._one("history").words)), self._record()),
        )

    @property
    def is_timed(self) -> bool:
        """Whether the turn has a time: only then are records of history looked at."""
        return "now" in self._one("ages").options

    def observed(self, memory: Memory) -> tuple[Snapshot, Memory]:
        """The snapshot with last fetches; without, where no channel has its time."""
        found, ages = self.snapshot(), self._one("ages")
        now_ms = found.coordinator.now_ms
        if all(view.written_ms == 0 for view in found.members.channels.values()):
            return found, memory
        seen, memory = observe(memory, found, ReadTimes(0.0, now_ms, ages.number("changed", now_ms)))
        return replace(found, history=seen.history), memory

    def given(self) -> dict[str, Assignor]:
        """The strategy of the case, if it has one."""
        shall = {name: threads(name, one.text("shall")) for name, one in self._there.items() if "shall" in one.options}
        return only(Given(shall)) if shall else {}

    def rules(self) -> GroupRules:
        one = self._one("rules")
        return GroupRules(one.seconds("delay"), one.number("most", 2**31 - 1), float(one.text("timeout", "30")))

    def _state(self) -> GroupState:
        words = self._one("group").words or ("0/0", "Empty")
        epoch, generation = map(int, words[0].split("/"))
        targets = {name: self._target(name, one) for name, one in self._members.items() if "has" in one.options}
        return GroupState(
            words[1],
            generation,
            epoch,
            words[2] if len(words) > 2 else "",
            target=targets,
            topics=self._ids(part for one in targets.values() for part in one.partitions),
            marks=tuple(self._mark(name, one) for name, one in self._all("mark")),
            client=self._client() if "type" in self._one("group").options else None,
            region=self._region_of_group() if "ready" in self._one("group").options else None,
        )

    def _region(self) -> RegionView:
        one = self._one("region")
        checkpoint, _, seconds = one.text("held", "0/0").partition("/")
        record = Region(
            one.text("kind", CONSUMERS),
            state=one.words[1],
            open=one.number("open"),
            sequence=one.number("sequence"),
            next_sequence=one.number("next", 1),
            reset=one.number("reset", 1),
            groups=one.names("groups"),
            reason=one.options.get("reason"),
            interval_ms=60_000,
        )
        return RegionView(one.words[0], record, 7, held_for=int(checkpoint), held_s=float(seconds))

    def _region_of_group(self) -> GroupRegion:
        one = self._one("group")
        return GroupRegion(self._one("region").words[0], one.number("ready"), one.names("away"))

    def _client(self) -> ClientSide:
        one = self._one("group")
        return ClientSide(
            one.text("type"),
            ask_of(one.text("ask")),
            failed=one.names("failed"),
            attempts=one.number("attempts"),
            failed_ask=ask_of(one.text("failed_ask")),
            floor=ask_of(one.text("floor")),
        )

    def _target(self, name: str, one: Line) -> Target:
        return Target(one.text("had", f"{name}-1"), threads(name, one.text("has")), is_sent="sent" in one.words)

    def _mark(self, name: str, one: Line) -> Mark:
        return Mark(name, one.words[0], partitions(one.words[1]), one.number("lease"), one.text("reason", "evicted"))

    def _record(self) -> Rebalance | None:
        if "record" not in self._lines:
            return self._rebalance
        one = self._one("record")
        known: dict[str, Any] = {name: one.number(key) for key, name in RECORD.items() if key in one.options}
        return Rebalance(int(one.words[0]), self.state.epoch, one.text("trigger"), **{"started_ms": 0, **known})

    # ---- members

    @staticmethod
    def _has_channel(one: Line) -> bool:
        return "mute" not in one.words and ("gone" not in one.words or "runs" in one.options)

    def _channel(self, name: str, one: Line) -> ChannelView:
        epoch, generation = map(int, one.text("at", "0/0").split("/"))
        running = partitions(one.text("runs"))
        channel = Channel(
            one.text("life", f"{name}-1"),
            epoch,
            generation,
            running=dict.fromkeys(running, OFFSET),
            topics=self._ids(running),
            touched=one.number("touched"),
            ask=ask_of(one.text("ask")),
            region=Progress(one.number("ready"), one.number("ready"), 0) if "ready" in one.options else None,
            ended="closed" if "left" in one.words else None,
        )
        lines = [line for line in self._lines.get(f"{name} gets", ()) for _ in range(line.number("times", 1))]
        sent = tuple(
            SentCommand(command_name(number), self._command(name, one.text("life"), line), line.seconds("age"))
            for number, line in enumerate(lines, 1)
        )
        compliance = Compliance(one.seconds("waits"))
        return ChannelView(name, 1, channel, sent, one.seconds("idle"), one.number("written"), compliance)

    def _command(self, name: str, life: str, one: Line) -> Command:
        epoch, generation = map(int, one.words[1].split("/"))
        some = one.words[2] if len(one.words) > 2 else ""
        is_start = one.words[0] == "start"
        return Command(
            COMMANDS[one.words[0]],
            epoch,
            generation,
            life or f"{name}-1",
            threads(name, some) if is_start else {},
            partitions("" if is_start else some),
            self._ids(partitions(some)),
            ask_of(one.text("ask")),
            one.text("reason"),
        )

    def _member(self, name: str, place: int) -> Member:
        one = self._there[name]
        registration = None if "unread" in one.words else self._registration(name, one)
        return Member(name, 10 + place, registration, one.seconds("age"), created_ms=one.number("created"))

    def _registration(self, name: str, one: Line) -> Registration:
        offers = one.names("offers")
        kind = one.text("type", "consumer")
        kind_of_region = self._one("region").text("kind", CONSUMERS)
        return Registration(
            one.text("life", f"{name}-1"),
            dict.fromkeys(one.names("wants"), 1),
            "client" if offers else "static",
            protocols=one.names("protocols") or ("range",),
            lease_ms=one.number("lease"),
            max_poll_interval_ms=one.number("poll", 300_000),
            instance_id=one.text("instance"),
            took_over_ms=one.number("took"),
            client=ClientProtocols(offers, dict.fromkeys(offers, ""), kind, digest=one.text("digest", "d"))
            if offers
            else None,
            region=RegionMembership(one.text("region"), kind_of_region) if "region" in one.options else None,
        )

    def _seat(self, name: str, one: Line) -> SeatView:
        seat = Seat(self._registration(name, self._members[name]), 10_000, one.options.get("removed"))
        return SeatView(name, 1, seat, one.seconds("away"), one.number("czxid"))

    # ---- asks

    def _ask(self, number: int, one: Line) -> RequestView:
        if not one.words:
            return RequestView(ask_name(number), None)
        members = dict(self._asked(each, one) for each in one.names("members"))
        ask = Ask(
            one.words[0],
            one.words[1],
            one.text("life", f"{one.words[1]}-1"),
            members,
            one.text("type") or self._one("group").text("type", "consumer"),
            one.number("attempt", 1),
            one.text("reason"),
            one.number("since"),
            outdated=one.number("outdated"),
        )
        entries = self._entries(one)
        is_answered = bool(entries) or "error" in one.options
        children = (*(("answer",) if is_answered else ()), *(f"member-{each}" for each in entries))
        return RequestView(
            ask_name(number),
            ask,
            self._answer(one, entries) if is_answered else None,
            one.text("problem"),
            {} if "unread" in one.words else entries,
            children,
            one.seconds("age"),
        )

    def _asked(self, text: str, one: Line) -> tuple[str, AskMember]:
        name, _, identity = text.partition(":")
        return name, AskMember(identity or f"{name}-1", one.text("digest", "d"), 5000)

    def _entries(self, one: Line) -> dict[str, MemberAnswer]:
        found = {name: MemberAnswer(member_state="eA==") for name in one.names("states")}
        for key, text in one.options.items():
            if "-" in key:
                name, thread = key.split("/") if "/" in key else (key.rpartition("-")[0], key)
                assigned = {thread: partitions(text)} if partitions(text) else {}
                found[name] = replace(found.get(name, MemberAnswer()), threads=assigned)
        return found

    def _answer(self, one: Line, entries: Mapping[str, MemberAnswer]) -> Answer:
        if "error" in one.options:
            return Answer(error=one.text("error"))
        names = one.names("names") or tuple(sorted(entries))
        is_of_partitions = any("-" in key for key in one.options)
        return Answer(names, {"t": "id-t"}, {"t": frozenset({0, 1})}) if is_of_partitions else Answer(names)

    def _ids(self, some: Iterable[TopicPartition]) -> dict[str, str]:
        return {name: self._topics[name].id for name in by_topic(some) if name in self._topics}


def _numbers(text: str) -> tuple[int, ...]:
    first, is_range, last = text.partition("-")
    return tuple(range(int(first), int(last) + 1)) if is_range else tuple(map(int, text.split(",")))


# ---- after a turn


def carried_out(lines: Lines, decided: Plan, names: Collection[str]) -> Lines:
    """What a turn reads when the one before is written and these members (or `all`) have carried out their commands."""
    found = dict(lines)
    for name in {name for name, _ in (*decided.withdrawn, *decided.commands)}:
        gone = {sent.name for other, sent in decided.withdrawn if other == name}
        kept = [one for number, one in enumerate(lines.get(f"{name} gets", ()), 1) if command_name(number) not in gone]
        found[f"{name} gets"] = kept + [_line_of(command) for other, command in decided.commands if other == name]
    for subject in [subject for subject in found if subject.endswith(" gets")]:
        name = subject.removesuffix(" gets")
        if name in names or "all" in names:
            (member,) = found[f"member {name}"]
            for command in found.pop(subject):
                member = _obeying(member, command)
            found[f"member {name}"] = [member]
    for end in decided.terminations:
        name = end.view.consumer
        found.pop(f"{name} gets", None)
        for one in found.get(f"member {name}", ()):
            found[f"member {name}"] = [Line((*one.words, "left"), {**one.options, "runs": "-"})]
    seats = [*decided.given_up, *(end.seat for end in decided.terminations if end.seat is not None)]
    return {about: some for about, some in found.items() if about not in {f"seat {one.instance}" for one in seats}}


def _line_of(command: Command) -> Line:
    """A stop or a start."""
    some = sorted(command.started or command.partitions)
    at = f"{command.epoch}/{command.generation}"
    return Line((WORDS[command.option], at, ",".join(map(str, some)) or "-"))


def _obeying(member: Line, command: Line) -> Line:
    what, at, some = command.words
    named, running = partitions(some), partitions(member.text("runs"))
    runs = named if what == "start" else running - (named or running)
    return Line(member.words, {**member.options, "runs": ",".join(map(str, sorted(runs))), "at": at})


# ---- cases


@dataclass(frozen=True)
class Case:
    """A case of a file, as it stands there: a title, and turns with what they read and what is expected of them.

    :ivar common: lines that every case of the file reads.
    """

    title: str
    text: str
    common: str

    def played(self, assignors: Mapping[str, Assignor]) -> str:
        """The same text with what the plans write."""
        lines, found, memory = lines_of(self.common), "", Memory()
        before, record, shown = Plan(GroupState()), None, list[str]()
        for given in self._given():
            changes = lines_of(given)
            is_after, obeyed = changes.pop("after", []), changes.pop("obeyed", [])
            for line in obeyed:
                lines = carried_out(lines, before, line.words)
                changes |= {"ages": [Line(options=line.options)]} if line.options else {}
            lines = changed(lines, changes)
            reader = Reader(lines, before.state if is_after or obeyed else None, record if obeyed else None)
            snapshot, memory = reader.observed(memory)
            try:
                before = plan(snapshot, {**assignors, **reader.given()}, "", reader.rules())
            except RebalanceFailed as failure:
                found += f"{given}  {failure}\n"
                continue
            if broken := next(broken_invariants(snapshot, before), ""):
                found += f"{given}  not written: {broken}\n"
                continue
            record = before.rebalance or snapshot.history.last
            memory = writing(memory, before)
            before_that, shown = shown, written(snapshot, before, reader.is_timed)
            some = shown
            if len(shown) > 1 and shown == before_that:
                some = ["all as before"]
            elif len(shown) > 2 and shown[1:] == before_that[1:]:
                some = [shown[0], "all else as before"]
            found += given + "".join(f"  {line}\n" for line in some)
        return found

    def _given(self) -> list[str]:
        """What each turn reads: the lines between those that are indented."""
        turns = [""]
        is_expected = False
        for line in self.text.splitlines(keepends=True):
            if line.startswith(" "):
                is_expected = True
                continue
            if is_expected:
                turns.append("")
            is_expected = False
            turns[-1] += line
        return turns


def cases(text: str) -> tuple[str, list[Case]]:
    """A file's head, whose lines below the first empty one are of every case, and its cases."""
    head, *rest = text.split("\n\n== ")
    common = head.partition("\n\n")[2]
    titled = [one.partition("\n") for one in rest]
    return head, [Case(title, body.rstrip("\n") + "\n", common) for title, _, body in titled]


def file_of(head: str, some: Iterable[tuple[str, str]]) -> str:
    """The text of a file of cases: title and text of each."""
    return "".join([head, *(f"\n\n== {title}\n{text.rstrip()}" for title, text in some)]) + "\n"


def snapshot_of(text: str) -> Snapshot:
    """What a turn reads, for a test of what has no place in a file."""
    return Reader(lines_of(text)).snapshot()
