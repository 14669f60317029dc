"""The words of `written_histories.py`: what the lines of a case do to a made story."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.made_histories import Enough, Made, MadeLife, Story, edited, offer, parted
from zk_group.coordinator.zk.store import Check, Create, Delete, Operation, SetData
from zk_group.coordinator.zk.znodes.group_state import GroupState, Mark
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import (
    CONSUMERS,
    COORDINATOR,
    COORDINATOR_EPOCH,
    PAUSED,
    Brokers,
    GroupPaths,
    RegionPaths,
)
from zk_group.coordinator.zk.znodes.records import (
    ASSIGNMENT_FAILED,
    BegunRecord,
    Channel,
    Command,
    EpochRecord,
    OffsetRecord,
    OwnerRecord,
    Pause,
    PausedRecord,
    Registration,
    Seat,
)
from zk_group.coordinator.zk.znodes.regions import GroupRegion, Order, Progress
from zk_group.coordinator.zk.znodes.segments import Query, SealedRange, SegmentsRecord
from zk_group.drills.checker.replay.sketches import of_range

G, R = GroupPaths("g"), RegionPaths("r")

# ---- words


def words_of(history: Any, text: str) -> tuple[list[Any], dict[str, Any]]:
    """The plain words and the options, as values."""
    words, options = [], {}
    for word in text.split():
        match = re.fullmatch(r"([a-z]\w*(?:\.[\w-]+)?)=(.*)", word)
        if match:
            name, text_of = match.groups()
            options[name] = text_of if _is_share(history, name) else value_of(history, text_of)
            if name == "mark":
                options[name] = (history.mark(history.lives[text_of]),) if text_of else ()
        else:
            words.append(value_of(history, word))
    return words, options


def value_of(history: Any, word: str) -> Any:
    if word.startswith("@"):
        return values(history)[word]()
    try:
        return json.loads(word)
    except ValueError:
        return word


def values(history: Any) -> dict[str, Callable[[], Any]]:
    """What a word stands for."""
    return {
        "@zxid": lambda: history.zxid,
        "@finished": lambda: history.finished_by("q"),
        "@newest": lambda: max(czxid for path, (_, _, _, czxid) in history.tree.items() if "/segment-" in path),
        "@since": lambda: json.loads(history.tree[G.query("late")][0])["finished"],
        "@upto0": lambda: _batch(history.events, "0")["upto"],
        "@upto1": lambda: _batch(history.events, "1")["upto"],
        "@epoch": lambda: history.epoch,
        "@next": lambda: history.states["g"].generation + 1,
        "@nexth": lambda: history.states.get("h", GroupState()).generation + 1,
        "@coordinator": lambda: history.coordinator,
        "@ask": lambda: history.name,
        "@empty": lambda: b"",
        "@left": lambda: Channel(incarnation="s8-a", ended="left").to_bytes(),
        "@new": lambda: GroupState(epoch=history.epoch).to_bytes(),
        "@epoch40": lambda: EpochRecord(40).to_bytes(),
        "@segments": lambda: SegmentsRecord(1).to_bytes(),
        "@bound": lambda: GroupRegion("r", history.region.reset),
        "@drained": lambda: Progress(1, 1, history.region.open),
        "@order": lambda: history.order("m0"),
        "@other": lambda: Order(history.region.reset, history.region.sequence + 1),
        "@lacking": lambda: [{"topic": "flights", "partition": 0, **of_range(1, 7).to_json()}],
        "@ofm0": lambda: [
            {"topic": topic, "topic_id": topic_id, "partition": number, **each.to_json()}
            for (topic, topic_id, number), each in history.cuts[history.region.sequence]["m0"][1].items()
        ],
        "@gone": lambda: "query q of group g has lost records: segment-0000000005, the last segment of it, is gone",
        "@collected": lambda: "segments are gone: collected while query n was silent",
    }


def _is_share(history: Any, name: str) -> bool:
    return name.partition(".")[0] in history.lives


def share(text: str) -> Mapping[str, str]:
    """Topic -> ranges."""
    topic, colon, ranges = text.rpartition(":")
    return {topic if colon else "flights": ranges} if ranges else {}


def shares_of(options: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    return {name: share(text) for name, text in options.items()}


def part_of(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def path_of(history: Any, text: str) -> str:
    group, _, rest = text.partition("/")
    below = {"topics": Brokers().topic(rest), "paused": PAUSED, "consumers": f"{CONSUMERS}/{rest}"}
    path = below.get(group) or f"{R.root if group == 'r' else GroupPaths(group).root}/{rest}".rstrip("/")
    return path.replace("@ask", history.name) if "@ask" in path else path


def say(history: Any, line: str) -> None:
    """Let what a line says happen."""
    if line == "go on":
        return
    before, after = [*re.split(r":(?: |$)", line, maxsplit=1), ""][:2]
    verb, _, text = before.partition(" ")
    words, options = words_of(history, text)
    ops = [each for some in after.split(", ") if some for each in operations_of(history, some)]
    if verb in VERBS:
        VERBS[verb](history, *words, **options, **({"ops": ops} if ops else {}))
        return
    shares = {name: options.pop(name) for name in list(options) if _is_share(history, name)}
    if verb == "register":
        words[0] = history.lives[words[0]]
    method = getattr(history, {"pass": "pass_"}.get(verb, verb))
    method(*words, *([shares_of(shares)] if shares else []), *ops, **options)


def tell(history: Any, module: str) -> None:
    """The lines of the text beside a module, of which the first is its title, up to their end or to a happening that
    ends them; a point is behind `==`."""
    with suppress(Enough):
        for line in filter(None, Path(module).with_suffix(".txt").read_text().splitlines()[1:]):
            if line.startswith("== "):
                history.point(line.removeprefix("== "))
            else:
                say(history, line)


# ---- states and channels with changes


def state_of(history: Any, group: str, options: Mapping[str, Any]) -> Any:
    """The group's state, changed: s0=0-1 a share, s0.s0-1=1 that of a thread, s0.life=x an incarnation, mark=s2.

    Of the mark: lease= and unknown= (the incarnation of one without a consumer)."""
    state = history.states[group]
    target = dict(state.target)
    fields = {}
    for name, value in options.items():
        consumer, dot, what = name.partition(".")
        if what == "life":
            target[consumer] = replace(target[consumer], incarnation=value)
        elif dot:
            threads = {**target[consumer].threads, what: parted(share(value))}
            target[consumer] = replace(target[consumer], threads=threads)
        elif name in history.lives:
            target.update(history.target({name: share(value)}))
        elif name == "mark":
            fields["marks"] = value
        elif name == "lease":
            fields["marks"] = tuple(replace(each, lease_ms=value) for each in fields["marks"])
        elif name == "unknown":
            fields["marks"] = tuple(replace(each, consumer=name, incarnation=value) for each in fields["marks"])
        elif name == "without":
            del target[value]
        else:
            fields[name] = getattr(state, name) + int(value[1:]) if str(value).startswith("+") else value
    return replace(state, **{"target": target, **fields})


def channel_of(history: Any, life: MadeLife, words: Sequence[str], options: Mapping[str, Any]) -> Any:
    """A channel, changed: +flights-3, flights-3@20, -flights-3 in what runs; command=pending names the one there."""
    channel = life.channel
    for word in words:
        name, at, offset = word.lstrip("+-").partition("@")
        if word.startswith("-"):
            channel = channel.without([part_of(name)])
        else:
            channel = replace(channel, running={**channel.running, part_of(name): int(offset) if at else None})
    fields = dict(options)
    if fields.get("command") == "pending":
        fields["command"] = history.command_of(life.name).rpartition("/")[2]
    if "refused" in fields:
        fields["refused"] = frozenset({part_of(fields["refused"])})
    return replace(channel, **fields)


# ---- operations

OPERATIONS: dict[str, Callable[..., Operation | list[Operation]]] = {
    "start": lambda history, name, ranges="", **more: history.start(name, share(str(ranges)), **more),
    "stop": lambda history, name, ranges="", **more: history.stop(name, share(str(ranges)), **more),
    "assign": lambda history, **more: history.assign(**more),
    "withdraw": lambda history, name: Delete(history.command_of(name)),
    "command": lambda history, name, data: _sent(history, name, json.dumps(data, separators=(",", ":")).encode()),
    "failed": lambda history, name: _sent(history, name, _notice(history, name)),
    "fence": lambda history: Check(COORDINATOR_EPOCH, history.fence),
    "check": lambda history, path, version: Check(path_of(history, path), version),
    "delete": lambda history, path: Delete(path_of(history, path)),
    # the owner znode of a partition, an offset, the partitions that a group began with, a pause
    "own": lambda history, part, name, life, generation: Create(
        G.owner(*part_of(part)), OwnerRecord(f"{name}-0", name, life, generation).to_bytes(), ephemeral=True
    ),
    "offset": lambda history, part, offset, *more: history.put(
        G.offset(*part_of(part)), OffsetRecord(offset, *(more or ("T1", 2))).to_bytes()
    ),
    "begun": lambda history, *some: history.put(G.offsets_of("flights"), BegunRecord("T1", frozenset(some)).to_bytes()),
    "pause": lambda history, *groups: Create(PAUSED, _paused(*groups).to_bytes()),
    # the state, a channel, a registration or a query, changed
    "state": lambda history, **more: SetData(G.state, state_of(history, "g", more).to_bytes()),
    "says": lambda history, name, *words, **more: SetData(
        history.lives[name].paths.channel(name), channel_of(history, history.lives[name], words, more).to_bytes()
    ),
    "registered": lambda history, name, **more: SetData(
        G.id(name), Registration(f"{name}-a", **{"subscription": {"flights": 1}, **more}).to_bytes()
    ),
    "offers": lambda history, name, topic, pattern: SetData(
        G.id(name), edited(history.tree[G.id(name)][0], client=offer(topic, pattern=pattern).to_json()).encode()
    ),
    "query": lambda history, name, finished, run="r2", **more: history.put(
        G.query(name), Query(run, finished, 0, **more).to_bytes()
    ),
    # the end of an incarnation, with the words of a reason; what it ran; a registration; a seat of 6 s
    "end": lambda history, name, *reason: history.end_of(history.lives[name], " ".join(reason)),
    "release": lambda history, name: history.released(history.lives[name], history.lives[name].channel.running),
    "id": lambda history, name: Create(G.id(name), b"{}", ephemeral=True),
    "seat": lambda history, name, removed=None: Create(
        G.seat(name), Seat(Registration(f"{name}-a", {"flights": 1}, instance_id=name), 6000, removed).to_bytes()
    ),
    # below an ask: new entries, the same written again, the answer; an ask is removed
    "entries": lambda history, **shares: history.entries(shares_of(shares)),
    "entry": lambda history, **shares: [
        SetData(each.path, each.data) for each in history.entries(shares_of(shares)) if isinstance(each, Create)
    ],
    "answer": lambda history, **shares: Create(G.answer(history.name), history.answer_of(shares_of(shares)).to_bytes()),
    # a region: its record, the same in the next reset, a contribution, a copy of that to checkpoint 1
    "root": lambda history, **more: history.root(replace(history.region, **more)),
    "reset": lambda history, **more: history.root(replace(history.after_reset(), **more)),
    "contributes": lambda history, name, file="", *words, **more: Create(
        R.contribution(history.region.open, "g", file or name), _contribution(history, name, *words, **more)
    ),
    "cut": lambda history, name: Create(
        R.contribution(history.region.open, "g", name), history.cuts[1][name][0].to_bytes()
    ),
    "remove": lambda history, *names: history.removed(*names),
}
"""What it is called -> its operations."""
WRITES: dict[str, Callable[[Any, str, bytes], Operation]] = {
    "create": lambda history, path, data: Create(path, data),
    "set": lambda history, path, data: SetData(path, data),
    "put": lambda history, path, data: history.put(path, data),
}


def operations_of(history: Any, text: str) -> list[Operation]:
    """The operations that some words stand for."""
    verb, _, rest = text.partition(" ")
    if verb in WRITES:
        path, _, data = rest.partition(" ")
        written = values(history)[data]() if data.startswith("@") else data.encode()
        return [WRITES[verb](history, path_of(history, path), written)]
    words, options = words_of(history, rest)
    found = OPERATIONS[verb](history, *words, **options)
    return found if isinstance(found, list) else [found]


def _contribution(history: Any, name: str, *words: str, **more: Any) -> bytes:
    offsets = {part_of(part): int(offset) for part, _, offset in (word.partition("@") for word in words)}
    made = replace(history.contribution(name), **({"offsets": offsets} if words else {}), **more)
    return bytes(made.to_bytes())


def _sent(history: Any, name: str, data: bytes) -> Operation:
    return Create(history.lives[name].paths.command_prefix(name), data, sequential=True)


def _notice(history: Any, name: str) -> bytes:
    fields = history.states["g"].generation, history.lives[name].channel.incarnation
    return Command(ASSIGNMENT_FAILED, history.epoch, *fields, ask="ask-0000000007").to_bytes()


def _paused(*groups: str) -> PausedRecord:
    pause = Pause("ann", 0)
    return PausedRecord(groups=dict.fromkeys(groups, pause)) if groups else PausedRecord(everything=pause)


# ---- verbs


def gives(history: Any, group: str = "g", *, ops: Sequence[Operation] = (), marked: str = "", **options: Any) -> None:
    """`gives h c1=cities-1:0-3: ...`: a multi that begins a generation; mark=s2, or marked= a partition."""
    shares = {name: options.pop(name) for name in list(options) if name in history.lives}
    if marked:
        options["marks"] = (Mark("s8", "s8-a", frozenset({part_of(marked)}), 4000, "evicted"),)
    elif "mark" in options:
        options["marks"] = options.pop("mark")
    history.fenced(group, replace(history.rebalance(group, shares_of(shares)), **options), *ops)


def channel(history: Any, name: str, *words: str, ops: Sequence[Operation] = (), **options: Any) -> None:
    """`channel s2 +flights-3 epoch=1: ...`: a consumer writes its channel."""
    life = history.lives[name]
    history.set_channel(life, channel_of(history, life, words, options), *ops)


def stands(history: Any, name: str, *words: str, **options: Any) -> None:
    """The same, but it is not written yet."""
    history.lives[name].channel = channel_of(history, history.lives[name], words, options)


def acks(history: Any, name: str, **options: Any) -> None:
    """A consumer removes the command in its channel and names it, with only the changes of the line."""
    path = history.command_of(name)
    sent = json.loads(history.tree[path][0])
    done = {"epoch": sent["epoch"], "generation": sent["generation"], "command": "pending", **options}
    channel(history, name, ops=[Delete(path)], **done)


def halts(history: Any, name: str, why: str, *parts: str) -> None:
    """`halts s1 lost flights-2`: a consumer stops fetching, everything when nothing is named."""
    life = history.lives[name]
    history.halt(life, frozenset(map(part_of, parts)) or frozenset(life.channel.running), why)


def comes(history: Any, who: str, incarnation: str, group: str = "g", kind: str = "slot", **wants: Any) -> None:
    """`comes s9#1 s9-a`: a consumer registers."""
    history.register(history.consumer(who, group, kind), incarnation, **wants)


def another(history: Any, node: str = "a#1") -> None:
    """The other node is elected, and has taken no turn."""
    history.close(history.coordinator)
    history.session(node)
    history.elect(node)


def depose(history: Any, epoch: int = 0) -> None:
    """The other node is elected though this one lives, with the next epoch or another."""
    history.epoch = epoch - 1 if epoch else history.epoch
    history.session("a#1")
    history.tree.pop(COORDINATOR, None)
    history.elect("a#1")


def reuses(history: Any, who: str) -> None:
    """A process goes on in the session that it had before."""
    commits = [event for event in history.events if event["event"] == "commit" and event["who"] == who]
    now = history.sessions[who]
    history.sessions[who] = [event["session"] for event in commits if event["session"] != now][-1]


def outlives(history: Any, who: str, path: str) -> None:
    """A session ends, and a znode of it stays."""
    del history.tree[path_of(history, path)]
    history.close(who)


def sealed(history: Any, name: str, *parts: str, to: str | None = None, id: str = "T1") -> None:
    """`sealed s1 2:100-120`: a seal of these offsets of `flights`; to= the others that its channel has."""

    def ranges(*some: str) -> list[SealedRange]:
        return [SealedRange("flights", id, *map(int, re.split("[:-]", each))) for each in some]

    history.sealed(name, ranges(*parts), None if to is None else ranges(*to.split()))


def jumps(history: Any, name: str, text: str, before: int, after: int, id: str = "T1") -> None:
    """`jumps s1 flights-2 100 150`: the log does not have a position any more."""
    life, part = history.lives[name], part_of(text)
    own = {"group": life.group, "consumer": name, "incarnation": life.channel.incarnation, **part._asdict()}
    history.event("jump", life.who, **own, topic_id=id, before=before, after=after)


def goes(history: Any, name: str, first: int, **at: int | None) -> None:
    """`goes s1 150`: a slot goes on with flights-2 there, with 10 records; with at= its position is another."""
    position = at.get("at", first)
    channel(history, name, "+flights-2" if position is None else f"flights-2@{position}")
    history.sealed(name, [SealedRange("flights", "T1", 2, first, first + 10)])


def delivers(history: Any, who: str, number: int, **more: Any) -> None:
    """`delivers q#2 2`: a batch of query q with everything after the last one."""
    history.batch(who, "g", "q", "r", number, _batch(history.events, "-1")["upto"], **more)


def calm(history: Any, stuck: str, *broken: str) -> None:
    """`calm s1#1 m0`: who is stuck since the calm, or `none`, and whose assignors are broken."""
    history.events[-1] |= {"stuck": [stuck] if stuck != "none" else []}
    if "assignment_timeout" in history.events[0]["bounds"]:
        history.events[-1] |= {"broken": list(broken)}


def turns(history: Any) -> None:
    """No consumer hangs, and a turn takes a second at most, when nothing hinders a coordinator."""
    history.events[0]["bounds"]["turn"] = 1.0
    history.events[:] = [event for event in history.events if event.get("kind") != "hang"]


def wakes(history: Any) -> None:
    """Who hangs does so for a tenth of a second only."""
    next(event for event in history.events if event.get("kind") == "hang")["until"] = 20.1


def ranges(history: Any, name: str, kind: str, text: str, span: str, checked: Any = None, **more: int) -> None:
    """`ranges s1 fetch flights-3 20-24`: what the first life of a consumer fetches, or `returned`."""
    part, life = part_of(text), history.lives[name]
    first, following = map(int, span.split("-"))
    item = {**part._asdict(), "topic_id": life.channel.topics[part.topic], "first": first, "next": following, **more}
    looked = {} if checked is None else {"checked": checked}
    own = {"group": life.group, "consumer": name, "incarnation": f"{name}-a"}
    history.event(kind, f"{name}#1", **own, ranges=[item], **looked)


def fails(history: Any, who: str, query: str, *why: object) -> None:
    """`fails q#1 q segment-...`: a query fails for some reason."""
    lost = f"query {query} of group g has lost records: {' '.join(map(str, why))}"
    history.event("query-failed", who, group="g", query=query, why=lost)


def adopts(history: Any, thread: str = "0", left_out: Any = None, **shares: str) -> None:
    """The answer is adopted, with another thread of m0 or without what is left out."""
    state = history.adopted(shares_of(shares))
    one = state.target["m0"]
    target = {**state.target, "m0": replace(one, threads={f"m0-{thread}": one.partitions})}
    history.fenced("g", replace(state, target=target, left_out=state.left_out if left_out is None else left_out))


VERBS: dict[str, Callable[..., object]] = {
    "turn": lambda history, group="g", ops=(), **more: history.fenced(group, state_of(history, group, more), *ops),
    "empty": lambda history, group: history.fenced(group, GroupState(epoch=history.epoch)),
    "again": lambda history, run: history.events.append(
        {**deepcopy(_batch(history.events, "-1")), "at": round(history.now, 3), "run": run}
    ),
    "begins": lambda history, name, part, **at: history.begin(history.lives[name], [part_of(part)], **at),
    "restarts": lambda history, who: history.query(who, "g", "q", f"run of {who}", history.finished_by("q")),
    "forgets": lambda history, who: history.roles.pop(who),
    "renumber": lambda history, name: history.sequences.pop(G.command_prefix(name)),
    "bound": lambda history, name, seconds: history.events[0]["bounds"].update({name: seconds}),
    "failed_ask": lambda history: history.__dict__.update(
        client=replace(history.client, failed_ask=history.name, attempts=1)
    ),
    "uncut": lambda history: history.cuts.clear(),
    "held": lambda history, name, number, offset: history.held[name].next.update({number: offset}),
    "speaks_late": lambda history: history.say("restored", "m0", reset=1).update(who="m0#0", incarnation="m0-0"),
    "all_stay": lambda history: history.__dict__.update(removed=lambda *names: []),
    "obeys_without_ask": Story.obey,
    **{
        each.__name__: each
        for each in (
            gives, channel, stands, acks, halts, comes, another, depose, reuses, outlives, sealed, jumps, goes,
            delivers, calm, turns, wakes, ranges, fails, adopts,
        )
    },
}  # fmt: skip
"""Lines that are no method of a story. `forgets s1#1`: it renews no lease any more; `renumber`: the commands of a
channel that was made again have the first numbers; `all_stay`: no ask is removed any more; `held m0 0 6`: where an
application is; `speaks_late`: the process that had the name before reports its state."""


# ---- the whole story


def keep(events: list[Made], path: str) -> None:
    """A znode is not removed."""
    gone = {"op": "delete", "path": path_of(None, path)}
    for event in events:
        if event["event"] == "commit":
            event["ops"] = [op for op in event["ops"] if op != gone]


def runs(events: list[Made], consumer: str) -> None:
    """A consumer that leaves keeps a partition in its channel."""
    left = next(e for e in events if e["event"] == "commit" and '"ended":"left"' in e["ops"][0].get("data", ""))
    left["ops"][0]["data"] = edited(left["ops"][0]["data"], running={"old": {"0": 5}})


def sleeps(events: list[Made]) -> None:
    """No coordinator lives from 80 s on."""
    events[:] = [event for event in events if event["at"] <= 80 or event.get("role") != "coordinator"]


def lacks(events: list[Made], kind: str) -> None:
    """There is no such event."""
    events[:] = [event for event in events if event["event"] != kind]


def ends(events: list[Made], at: str) -> None:
    """The history ends earlier."""
    events[:] = [*(event for event in events if event["at"] <= float(at)), {**events[-1], "at": float(at)}]


def _batch(events: list[Made], number: str) -> Made:
    """One of the batches: 0 and 1 of the first run, 1 again of the second, and 2."""
    return [event for event in events if event["event"] == "batch"][int(number)]


def rows(events: list[Made], number: str, *parts: str) -> None:
    """`rows 0 0:0-100,1:0-80`: what a batch delivers, of each partition of `flights`."""
    some = [SealedRange("flights", "T1", *map(int, re.split("[:-]", each))) for each in ",".join(parts).split(",")]
    _batch(events, number)["rows"] = [each._asdict() for each in some]


def segments(events: list[Made], number: str, some: str) -> None:
    """`segments 0 0,1`: those of a batch."""
    _batch(events, number)["segments"] = [f"segment-{int(each):010d}" for each in some.split(",")]


def bears(events: list[Made], number: str) -> None:
    """A batch is of a run with `failOnDataLoss=false`."""
    _batch(events, number)["fail_on_data_loss"] = False


def _made(events: list[Made], number: int) -> Made:
    ends = f"/segment-{number:010d}"
    return next(op for e in events if e["event"] == "commit" for op in e["ops"] if op["path"].endswith(ends))


def missing(events: list[Made], count: str) -> None:
    """The first segment has so many offsets of flights-0 without a record."""
    made = _made(events, 0)
    made["data"] = json.dumps({**json.loads(made["data"]), "missing": {"flights": {"0": int(count)}}})


def damaged(events: list[Made], number: str, segment: str) -> None:
    """Before a batch the file of a segment is replaced."""
    file, batch = json.loads(_made(events, int(segment))["data"])["file"], _batch(events, number)
    fault = {"at": batch["at"], "who": "server", "event": "fault", "kind": "file-replaced", "file": file}
    events.insert(events.index(batch), fault)


def failed(events: list[Made], *why: str) -> None:
    """The query fails after its last batch."""
    last = _batch(events, "-1")
    fields = {"event": "query-failed", "group": "g", "query": "q", "why": " ".join(why)}
    events.insert(events.index(last) + 1, {"at": last["at"], "who": last["who"], **fields})


LATER: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (keep, runs, sleeps, lacks, ends, rows, segments, bears, missing, damaged, failed)
}
"""What is changed in the events of the whole story."""
