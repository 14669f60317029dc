"""Explicit-state model of a consistent region of plain consumers: drain, contribution, completion, reset.

What a member takes in of a partition moves its position, and a count that it keeps for itself as a whole: an
application's state that knows nothing of partitions. However often the region goes back, the counts of all members
must add up to the positions. Defaults are the rules as they should stand; `mut=` takes one out. A multi is a tuple of
operations, applied all or none. Claims and hand-overs of partitions are those of every group, and are not modelled
again: a stop ends a hold in one multi.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from . import search as searching
from .search import FIRST, NAMES, Result, Step, is_mine, name_of, put, spend, swap, union, versioned

COPY = 10
"""Added to the name of a contribution of which partitions are copied, and not the state of its member."""
RUNNING, RESETTING = "Running", "Resetting"
OPEN, COMPLETED, ABORTED, ABANDONED = "open", "completed", "aborted", "abandoned"


@dataclass(frozen=True)
class Config(searching.Bounds):
    """The modelled features.

    :ivar groups: the group of each name; each has one partition for each of its names.
    """

    TABLE = searching.table("region")
    FAULTS = ("resets", "expire", "take", "join", "leave", "lost", "late", "timeout")
    groups: str = "aa"
    members: int = 2
    static: str = ""  # names that may leave and keep their seat
    order: str = "rsci"  # reads of a group's turn: region, state, channels, ids
    deep: int = 1  # records that there are of each partition
    epochs: int = 1
    parallel: int = 0  # 1: a coordinator takes the turns of groups and region at once
    cuts: int = 2
    start: str = "fresh"  # or "running": every member has its state of the initial cut; "cut": and has drained for 1
    progress: int = 7

    @property
    def names(self) -> range:
        return range(len(self.groups))

    def of(self, group: str) -> list[int]:
        """The names of a group; its partitions have the same numbers."""
        return [n for n in self.names if self.groups[n] == group]

    def reads(self, key: str) -> int:
        """How many a turn of this group takes, or (empty) of the region."""
        return len(self.order) if key else 3

    @property
    def keys(self) -> list[str]:
        return sorted(set(self.groups))


Numbers = tuple[int, ...]


class Command(NamedTuple):
    """stop, start or drain. Of a start: what of which cut; `heir` of the names whose counts it is given, too."""

    seq: int
    option: str
    epoch: int
    incarnation: int
    reset: int
    share: int = 0
    cut: int = 0
    heir: Numbers = ()


class Channel(NamedTuple):
    """`started`: the reset of the last start applied, `ready` that of which the state is back; `offsets` of `run`."""

    version: int
    incarnation: int
    ended: int
    run: int
    started: int
    ready: int
    drained: int
    commands: tuple[Command, ...]


class Contribution(NamedTuple):
    name: int
    incarnation: int
    reset: int
    offsets: Numbers  # of each partition, -1 of those that it does not have
    counts: Numbers


class Cut(NamedTuple):
    """`checkpoints/checkpoint-[number]`."""

    number: int
    reset: int
    participants: tuple[tuple[int, int], ...]
    status: str
    contributions: tuple[Contribution, ...]
    away: Numbers = ()  # members of targets that are away when it begins


class Region(NamedTuple):
    version: int
    state: str
    cut: int
    open: int
    reset: int


class Group(NamedTuple):
    """`state` of a group; `ready` is the reset of which every member of the target that is there has its state back.

    :ivar away: static members of the target that have left, and keep their seats.
    """

    version: int
    target: tuple[tuple[int, int, int], ...]
    ready: int
    is_new: int
    away: Numbers = ()


class Process(NamedTuple):
    """One life of a name; `paused` is the checkpoint whose end it waits for."""

    name: int
    incarnation: int
    session: int
    unknown: int
    version: int
    share: int
    started: int
    loaded: int
    ready: int
    paused: int
    start: Command | tuple[()]
    positions: Numbers
    counts: Numbers


class Turn(NamedTuple):
    """A turn of a group, or (`key` empty) of the region."""

    key: str
    at: int = 0
    snapshot: tuple[Any, ...] = ()
    queue: tuple[Any, ...] = ()


class World(NamedTuple):
    epoch: int
    region: Region
    groups: tuple[Group, ...]
    ids: Numbers
    channels: tuple[Channel, ...]
    offsets: Numbers
    cuts: tuple[Cut, ...]
    processes: tuple[Process, ...]
    turns: tuple[tuple[Turn, ...], ...]  # of each epoch
    flight: tuple[tuple[int, Any], ...]
    left: tuple[tuple[str, int], ...]
    newest: int


def fresh_turns(cfg: Config) -> tuple[Turn, ...]:
    return tuple(Turn(key) for key in ("", *cfg.keys))


def first_world(cfg: Config) -> World:
    n = len(cfg.groups)
    nothing = (0,) * n
    groups = tuple(Group(1, (), 0, 0) for _ in cfg.keys)
    region = Region(1, RESETTING, 0, 0, 1)
    w = World(1, region, groups, nothing, (Channel(1, 0, 0, 0, 0, 0, 0, ()),) * n, nothing, (), (), (fresh_turns(cfg),),
              (), cfg.left, FIRST)  # fmt: skip
    for name in range(cfg.members):
        w = register(w, name)
    if cfg.start != "fresh":
        w = begun(replace(cfg, mut="", cuts=0), w._replace(left=()))._replace(turns=w.turns, left=cfg.left)
    return canonical(cfg, w)


def begun(cfg: Config, w: World) -> World:
    """Every member has its state of the initial cut back; or it has taken in one record, and has drained for cut 1."""
    *_, w = calm(cfg, w)
    if cfg.start == "cut":
        ones = {p.name: tuple(p.share >> part & 1 for part in cfg.names) for p in w.processes}
        more = tuple(p._replace(positions=ones[p.name], counts=ones[p.name]) for p in w.processes)
        *_, w = calm(replace(cfg, cuts=1), w._replace(processes=more))
    return w


def register(w: World, name: int) -> World:
    """A new process takes the name: one multi moves the fence, removes old commands, and makes `ids`."""
    inc, c, nothing = w.newest, w.channels[name], (0,) * len(w.ids)
    p = Process(name, inc, 1, 0, c.version + 1, 0, 0, 0, 0, 0, (), nothing, nothing)
    return w._replace(
        newest=inc + 1, ids=put(w.ids, name, inc), processes=(*w.processes, p),
        channels=put(w.channels, name, Channel(c.version + 1, inc, 0, 0, 0, 0, 0, ())),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- multis


def apply(cfg: Config, w: World, multi: tuple[Any, ...]) -> tuple[World, str] | None:
    """The world after the multi and what it violates, or None when ZooKeeper refuses it."""
    region, bad = w.region, ""
    groups, ids, channels, offsets = list(w.groups), list(w.ids), list(w.channels), list(w.offsets)
    cuts = {c.number: c for c in w.cuts}
    seq = 1 + max((x.seq for c in channels for x in c.commands), default=0)
    for op, *args in multi:
        if op == "epoch":
            if args[0] != w.epoch:
                if "noepoch" not in cfg.muts:
                    return None
                bad = bad or "S4: an older epoch writes"
        elif op in ("region", "region is"):
            if args[1] != region.version and not (op == "region is" and "noregion" in cfg.muts):
                return None
            if op == "region":
                region = args[2]._replace(version=region.version + 1)
        elif op in ("group", "group is"):
            if args[1] != groups[args[0]].version and not (op == "group is" and "nogroups" in cfg.muts):
                return None
            if op == "group":
                groups[args[0]] = args[2]._replace(version=groups[args[0]].version + 1)
        elif op == "channel":
            name, version, changes = args
            if version != channels[name].version:
                return None
            channels[name] = channels[name]._replace(version=channels[name].version + 1, **dict(changes))
        elif op == "offsets":
            for part, offset in args[0]:
                offsets[part] = offset
        elif op == "remove":
            c = channels[args[0]]
            if not any(x.seq == args[1] for x in c.commands):
                return None
            channels[args[0]] = c._replace(commands=tuple(x for x in c.commands if x.seq != args[1]))
        elif op == "send":
            c = channels[args[0]]
            channels[args[0]] = c._replace(commands=(*c.commands, args[1]._replace(seq=seq)))
            seq += 1
        elif op == "begin":
            cuts[args[0].number] = args[0]
        elif op == "contribute":
            cut, given = cuts[args[0]], args[1]
            if cut.status != OPEN and "nocut" not in cfg.muts:
                return None
            if cut.status != OPEN:
                bad = bad or f"S11: {NAMES[given.name]} contributes to a checkpoint that is {cut.status}"
            if any(x.name == given.name for x in cut.contributions):
                bad = bad or f"S11: {NAMES[given.name]} contributes twice"
            if channels[given.name].incarnation != given.incarnation or channels[given.name].ended:
                bad = bad or f"S11: {NAMES[given.name]} contributes after its end"
            cuts[cut.number] = cut._replace(contributions=tuple(sorted((*cut.contributions, given))))
        elif op == "end":
            if cuts[args[0]].status not in (OPEN, COMPLETED):
                return None
            cuts[args[0]] = cuts[args[0]]._replace(status=args[1])
        elif op == "copy":
            cuts[args[0]] = cuts[args[0]]._replace(
                contributions=tuple(sorted((*cuts[args[0]].contributions, *args[1])))
            )
        elif op == "(completed)":
            bad = bad or incomplete(cfg, w, cuts[args[0]])
    w = w._replace(region=region, groups=tuple(groups), ids=tuple(ids), channels=tuple(channels))
    return w._replace(offsets=tuple(offsets), cuts=tuple(cuts[number] for number in sorted(cuts))), bad


def incomplete(cfg: Config, w: World, cut: Cut) -> str:
    """The violation of a checkpoint that was just completed."""
    given = {(x.name, x.incarnation) for x in cut.contributions if x.reset == cut.reset}
    if not set(cut.participants) <= given:
        return f"S11: checkpoint {cut.number} is complete without the contribution of every participant"
    before = merged(cfg, w.cuts, w.region.cut)
    for part in cfg.names:
        held = [x.offsets[part] for x in cut.contributions if x.offsets[part] >= 0]
        if sum(held) < before[part]:
            return f"S11: partition {part} goes back with checkpoint {cut.number}"
        if len(held) > 1:
            return f"S11: two contributions to checkpoint {cut.number} have partition {part}"
        if sum(x.counts[part] for x in cut.contributions) != sum(held):
            return f"S11: the counts of checkpoint {cut.number} are not those of its offsets"
    for p in w.processes:
        mine = next((x for x in cut.contributions if (x.name, x.incarnation) == (p.name, p.incarnation)), None)
        if mine is not None and is_mine(w, p) and any(
            mine.offsets[part] not in (-1, p.positions[part]) for part in cfg.names
        ):  # fmt: skip
            return f"S11: {NAMES[p.name]} has resumed before checkpoint {cut.number} is complete"
    return ""


# ------------------------------------------------------------------------------------------------- turns


def merged(cfg: Config, cuts: tuple[Cut, ...], number: int) -> Numbers:
    """The offset of each partition in a cut; that where it began (0) for one that the cut does not have."""
    found = [0] * len(cfg.groups)
    for cut in cuts:
        for x in cut.contributions if cut.number == number else ():
            for part, offset in enumerate(x.offsets):
                found[part] = max(found[part], offset)
    return tuple(found)


def contributions(cuts: tuple[Cut, ...], number: int) -> tuple[Contribution, ...]:
    return next((cut.contributions for cut in cuts if cut.number == number), ())


def after_reset(cfg: Config, region: Region, cuts: tuple[Cut, ...], to: int) -> tuple[Region, list[Any]]:
    """The region once a reset to a cut has begun; an open checkpoint is aborted, later ones are abandoned."""
    later = [c.number for c in cuts if c.number > to and c.status == COMPLETED]
    ops: list[Any] = [("end", number, ABANDONED) for number in later]
    if region.open:
        ops.append(("end", region.open, ABORTED))
    return region._replace(state=RESETTING, cut=to, open=0, reset=region.reset + 1), ops


def group_turn(
    cfg: Config, epoch: int, key: str, s: tuple[Any, ...], w: World, *, waits: bool, keeps: bool
) -> tuple[Any, ...]:
    """The multi of one turn of a group.

    :param waits: a generation without a death waits for a checkpoint.
    :param keeps: static members that have left keep their seats.
    """
    region, st, channels, ids = s
    index, names = cfg.keys.index(key), cfg.of(key)
    lives = {n: bool(ids[n]) and ids[n] == channels[n].incarnation and not channels[n].ended for n in names}
    ops: list[Any] = []
    for n in names:
        c = channels[n]
        if c.incarnation and not c.ended and not lives[n]:
            changes = (("ended", 1), ("run", 0), ("started", 0), ("ready", 0))
            ops += [("channel", n, c.version, changes), *(("remove", n, x.seq) for x in c.commands)]
    before = {n: inc for n, inc, _ in st.target}
    away = {n: inc for n, inc in before.items() if keeps and NAMES[n] in cfg.static and not lives[n]}
    present = {n: channels[n].incarnation for n in names if lives[n]} | away
    is_new = set(present) != set(before) if "bounce" in cfg.muts else present != before
    seats = {n for n in st.away if not lives[n]} - away.keys()  # given up: after a checkpoint, as they are no deaths
    no_deaths = all(present.get(n) == inc for n, inc in before.items() if n not in seats)
    held = is_new and waits and region.state == RUNNING and before and (no_deaths or "departed" in cfg.muts)
    if is_new and not held:
        shares = dict.fromkeys(present, 0)
        for turn, part in enumerate(names if present else ()):
            shares[sorted(present)[(turn + region.reset) % len(present)]] |= 1 << part  # each time to another
        target = {n: (present[n], shares[n]) for n in sorted(present)}
        after = region
        if "partial" not in cfg.muts or not before:
            after, more = after_reset(cfg, region, w.cuts, region.cut)
            ops += more
        ops.append(("region", 0, region.version, after))
    else:
        target = {n: (present.get(n, inc) if "bounce" in cfg.muts else inc, share) for n, inc, share in st.target}
        if "departed" in cfg.muts:
            target = {n: each for n, each in target.items() if present.get(n) == each[0]}
        after = region
        ops.append(("region is", 0, region.version))
    moves, is_settled = moved(cfg, epoch, after, lives, target, channels, w.cuts)
    away |= {n: before[n] for n in seats & before.keys()} if held else {}
    ready = after.reset if is_settled and (held or not is_new or not present) else 0
    new = Group(0, tuple((n, *target[n]) for n in sorted(target)), ready, int(bool(held)), tuple(sorted(away)))
    if not moves and ops == [("region is", 0, region.version)] and new == st._replace(version=0):
        return ()
    return ((("epoch", epoch), ("group", index, st.version, new), *ops, *moves),)


def moved(
    cfg: Config, epoch: int, region: Region, lives: dict[int, bool], target: dict[int, tuple[int, int]],
    channels: tuple[Channel, ...], cuts: tuple[Cut, ...],
) -> tuple[list[Any], bool]:  # fmt: skip
    """Commands that are due, those withdrawn, and whether every member of the target has its state back."""
    names = list(lives)
    out: list[Any] = []
    starts: list[Any] = []
    is_settled = True
    here = [channels[n] for n in names if lives[n]]
    taken = union([c.run for c in here] + [x.share for c in here for x in c.commands if x.option == "start"])
    gone = {x.name for x in contributions(cuts, region.cut) if x.name < COPY} - target.keys()
    if target and not lives[min(target)] and gone & set(names) and "heirless" not in cfg.muts:
        is_settled = False
    for n in names:
        c = channels[n]
        if not lives[n]:
            continue
        want: Command | None = None
        if n not in target or target[n][0] != c.incarnation:
            is_settled = is_settled and n not in target
        elif c.started != region.reset or c.run != target[n][1]:
            is_settled = False
            partial = "partial" in cfg.muts and c.started and c.run == target[n][1]
            if partial:
                is_settled = c.ready == c.started
            elif c.run:
                want = Command(0, "stop", epoch, c.incarnation, region.reset)
            else:
                heirs = tuple(sorted(m for m in gone if m in names)) if "gone" not in cfg.muts else ()
                first = n == min(target) or "everybody" in cfg.muts
                heir = (n, *heirs) if first else (n,)
                want = Command(0, "start", epoch, c.incarnation, region.reset, target[n][1], region.cut, heir)
        else:
            is_settled = is_settled and c.ready == region.reset
            if region.open and c.drained != region.open:
                want = Command(0, "drain", epoch, c.incarnation, region.reset, 0, region.open)
        kept = [x for x in c.commands if want is not None and x._replace(seq=0) == want]
        out += [("remove", n, x.seq) for x in c.commands if x not in kept]
        if want is not None and not kept:
            if want.option == "start" and want.share & taken:
                continue
            starts.append(("send", n, want))
    return out + starts, is_settled


def region_turn(cfg: Config, epoch: int, s: tuple[Any, ...], w: World) -> Iterator[tuple[str, World, tuple[Any, ...]]]:
    """The decisions of a region's turn, with their cost in faults."""
    region, cuts, groups = s
    fence = ("epoch", epoch)
    stable = [("group is", i, g.version) for i, g in enumerate(groups)]
    is_ready = all(g.ready == region.reset for g in groups) or "unready" in cfg.muts
    anybody = tuple((n, inc) for g in groups for n, inc, _ in g.target if n not in g.away)
    cut = next((c for c in cuts if c.number == region.open), None)
    if cut is not None:
        given = {(x.name, x.incarnation) for x in cut.contributions if x.reset == cut.reset}
        if set(cut.participants) <= given or ("incomplete" in cfg.muts and given):
            after = region._replace(cut=cut.number, open=0)
            away = {n for g in groups for n in g.away} if "later" in cfg.muts else set(cut.away)
            copies = ("copy", cut.number, copied(cfg, region, cuts, cut, away))
            ops: Sequence[Any] = (fence, ("region", 0, region.version, after), copies, ("end", cut.number, COMPLETED))
            yield f"completes {cut.number}", w, ((*ops, ("(completed)", cut.number)),)
        if paid := spend(w, "timeout"):
            after = region._replace(open=0)
            yield f"aborts {cut.number}", paid, ((fence, ("region", 0, region.version, after),
                                                 ("end", cut.number, ABORTED)),)  # fmt: skip
        return
    if region.state == RESETTING and is_ready and anybody:
        yield "is Running", w, ((fence, ("region", 0, region.version, region._replace(state=RUNNING)), *stable),)
    number = 1 + max((c.number for c in cuts), default=0)
    if region.state == RUNNING and is_ready and anybody and number <= cfg.cuts:
        made = Cut(number, region.reset, anybody, OPEN, (), tuple(n for g in groups for n in g.away))
        after = region._replace(open=number)
        yield f"begins {number}", w, ((fence, ("region", 0, region.version, after), *stable, ("begin", made)),)
    for to in (0, *(c.number for c in cuts if c.status == COMPLETED)):
        if paid := spend(w, "resets"):
            after, ops = after_reset(cfg, region, cuts, to)
            yield f"resets to {to}", paid, ((fence, ("region", 0, region.version, after), *ops),)


def copied(cfg: Config, region: Region, cuts: tuple[Cut, ...], cut: Cut, away: set[int]) -> tuple[Contribution, ...]:
    """Contributions of absent members: of groups without members, and of static members that are away.

    Another member may have contributed their partitions to the cut before: of that the partition only is copied.
    """
    present = {cfg.groups[n] for n, _ in cut.participants}
    before = contributions(cuts, region.cut)
    run = {part for x in cut.contributions for part in cfg.names if x.offsets[part] >= 0}
    found = []
    for x in before if "uncopied" not in cfg.muts else ():
        if cfg.groups[x.name % COPY] not in present:
            found.append(x)
            continue
        offsets = tuple(-1 if part in run else x.offsets[part] for part in cfg.names)
        if x.name in away:
            counts = x.counts if "stateless" not in cfg.muts else (0,) * len(x.counts)
            found.append(x._replace(offsets=offsets, counts=counts))
        elif any(offset >= 0 for offset in offsets):
            found.append(Contribution(COPY + x.name % COPY, x.incarnation, x.reset, offsets, (0,) * len(x.counts)))
    return tuple(found)


def read(cfg: Config, w: World, t: Turn) -> Turn:
    """After one more read."""
    if t.key:
        group = w.groups[cfg.keys.index(t.key)]
        found: Any = {"r": w.region, "s": group, "c": w.channels, "i": w.ids}[cfg.order[t.at]]
    else:
        found = (w.region, w.cuts, w.groups)[t.at]
    return t._replace(at=t.at + 1, snapshot=(*t.snapshot, found))


def ordered(cfg: Config, t: Turn) -> tuple[Any, ...]:
    """A turn's reads, in the order of `rsci`, for any order of reading."""
    return tuple(t.snapshot[cfg.order.index(what)] for what in "rsci") if t.key else t.snapshot


def decisions(cfg: Config, epoch: int, t: Turn, w: World) -> Iterator[tuple[str, World, tuple[Any, ...]]]:
    if not t.key:
        yield from region_turn(cfg, epoch, t.snapshot, w)
        return
    seen: list[tuple[Any, ...]] = []
    for waits, keeps in product((False, True), (True, False) if cfg.static else (False,)):
        queue = group_turn(cfg, epoch, t.key, ordered(cfg, t), w, waits=waits, keeps=keeps)
        if queue and queue not in seen:
            seen.append(queue)
            yield f"turn of {t.key}: {searching.described(queue[0], SAYS)}", w, queue


SAYS: dict[str, Callable[..., str]] = {
    "send": lambda n, x: f"{x.option} to {name_of(n, x.incarnation)} reset {x.reset} cut {x.cut} share {x.share}",
    "region": lambda _, version, r: f"region {r.state} cut {r.cut} open {r.open} reset {r.reset}",
    "channel": lambda n, version, changes: f"ends {NAMES[n]}",
    "end": lambda number, status: f"checkpoint {number} {status}",
}


def coordinate(cfg: Config, w: World) -> Iterator[Step]:
    if w.epoch < cfg.epochs:
        yield f"elect C{w.epoch + 1}", w._replace(epoch=w.epoch + 1, turns=(*w.turns, fresh_turns(cfg))), ""
    for i, turns in enumerate(w.turns):
        who, epoch = f"C{i + 1}", i + 1
        if epoch < w.epoch and "noepoch" not in cfg.muts:
            continue
        for j, t in enumerate(turns):
            if not cfg.parallel and any(other.at or other.queue for other in turns if other is not t):
                continue

            def become(world: World, turn: Turn, at: tuple[int, int] = (i, j)) -> World:
                return world._replace(turns=put(world.turns, at[0], put(world.turns[at[0]], at[1], turn)))

            if t.queue:
                done = apply(cfg, w, t.queue[0])
                if done is None:
                    yield f"{who} is refused", become(w, Turn(t.key)), ""
                else:
                    yield (
                        f"{who} commits {searching.described(t.queue[0], SAYS)}",
                        become(done[0], Turn(t.key)),
                        done[1],
                    )
                continue
            t = read(cfg, w, t)
            if t.at < cfg.reads(t.key):
                yield f"{who} reads {t.key or 'region'} {t.at}", become(w, t), ""
                continue
            is_idle = True
            for label, paid, queue in decisions(cfg, epoch, t, w):
                yield f"{who} {label}", become(paid, Turn(t.key, 0, (), queue)), ""
                is_idle = False
            if is_idle:
                yield f"{who} has nothing to do for {t.key or 'the region'}", become(w, Turn(t.key)), ""


# ------------------------------------------------------------------------------------------------- a member


def forgotten(cfg: Config, p: Process) -> Process:
    nothing = (0,) * len(cfg.groups)
    return p._replace(loaded=0, ready=0, paused=0, start=(), positions=nothing, counts=nothing)


def obey(cfg: Config, w: World, p: Process) -> tuple[str, tuple[Any, ...], Process, Process] | None:
    """The multi for the next command: what it is, its operations, the process after it, and before it is sent."""
    c = w.channels[p.name]
    if not c.commands:
        return None
    x = c.commands[0]
    after = p._replace(version=p.version + 1)
    done = ("remove", p.name, x.seq)

    def channel(**changes: Any) -> tuple[Any, ...]:
        return ("channel", p.name, p.version, tuple(sorted(changes.items())))

    if x.incarnation != p.incarnation:
        return "drops a command of another life", (done, channel()), after, p
    if x.option == "stop":
        parts = tuple((part, p.positions[part]) for part in cfg.names if p.share >> part & 1 and p.loaded)
        given = (("offsets", parts),) if "commit" in cfg.muts else ()
        before = forgotten(cfg, p)._replace(start=p.start)
        stopped = before._replace(version=p.version + 1, share=0, started=0, start=())
        return "stops", (done, channel(run=0, started=0, ready=0), *given), stopped, before
    if x.option == "start":
        start = x._replace(seq=0)
        started = forgotten(cfg, after)._replace(share=x.share, started=x.reset, start=start)
        return "starts", (done, channel(run=x.share, started=x.reset, ready=0)), started, p._replace(start=start)
    is_due = p.loaded and p.started == x.reset
    if not is_due and "overtaken" not in cfg.muts:
        return "drops a drain of another reset", (done, channel()), after, p
    if not p.loaded:
        return None
    offsets = tuple(p.positions[part] if p.share >> part & 1 else -1 for part in cfg.names)
    given_ = Contribution(p.name, p.incarnation, x.reset, offsets, p.counts)
    ops: tuple[Any, ...] = (done, channel(drained=x.cut), ("contribute", x.cut, given_))
    if "nochannel" in cfg.muts:
        ops = (("contribute", x.cut, given_),)
        after = p
    paused = x.cut if "clock" not in cfg.muts else 0
    return f"drains for {x.cut}", ops, after._replace(paused=paused), p._replace(paused=paused)


def load(cfg: Config, w: World, p: Process) -> Process:
    """The cut's offsets of its partitions, and the counts of its assigned names."""
    assert p.start
    found = contributions(w.cuts, p.start.cut)
    offsets = w.offsets if "commit" in cfg.muts else merged(cfg, w.cuts, p.start.cut)
    positions = tuple(offsets[part] if p.share >> part & 1 else 0 for part in cfg.names)
    counts = tuple(sum(x.counts[part] for x in found if x.name in p.start.heir) for part in cfg.names)
    return p._replace(loaded=1, positions=positions, counts=counts)


def synced(cfg: Config, w: World, p: Process) -> World:
    """Read the channel. The data of a start is its own write: it is loaded again."""
    c = w.channels[p.name]
    fresh = p._replace(unknown=0, version=c.version)
    if (c.run, c.started) != (p.share, p.started):
        fresh = forgotten(cfg, fresh)._replace(share=c.run, started=c.started)
        fresh = fresh._replace(start=p.start)
    fresh = fresh._replace(ready=c.ready if fresh.loaded else 0)
    rest = tuple(f for f in w.flight if f[0] != p.incarnation)
    return swap(w, p, fresh)._replace(flight=rest)


def behave(cfg: Config, w: World) -> Iterator[Step]:
    for p in w.processes:
        who = name_of(p.name, p.incarnation)
        if not is_mine(w, p) or not p.session:
            yield f"{who} ends (its lease is over)", swap(w, p, None), ""
            continue
        if expired := spend(w, "expire"):
            ids = put(w.ids, p.name, 0) if w.ids[p.name] == p.incarnation else w.ids
            yield f"{who}: session expires", swap(w, p, p._replace(session=0))._replace(ids=ids, left=expired.left), ""
        c = w.channels[p.name]
        if left := spend(w, "leave"):
            ended = Channel(c.version + 1, p.incarnation, 1, 0, 0, 0, 0, c.commands)
            gone = left._replace(ids=put(w.ids, p.name, 0), channels=put(w.channels, p.name, ended))
            yield f"{who} leaves", swap(gone, p, None), ""
        if p.unknown or p.version != c.version:
            yield f"{who} syncs", synced(cfg, w, p), ""
            continue
        yield from alone(cfg, w, p)
        if todo := obey(cfg, w, p):
            yield from searching.sends(apply, cfg, w, p, *todo)
    for name in cfg.names:
        if paid := spend(w, "take" if w.ids[name] else "join"):
            yield f"{name_of(name, w.newest)} registers", register(paid, name), ""
    yield from searching.arrives(apply, cfg, w)


def alone(cfg: Config, w: World, p: Process) -> Iterator[Step]:
    """A member's steps without a command: loads, reports its restored state, takes in, reads how a drain ended."""
    who = name_of(p.name, p.incarnation)
    if p.started and not p.loaded:
        yield f"{who} loads cut {p.start.cut if p.start else 0}", swap(w, p, load(cfg, w, p)), ""
        return
    if p.loaded and p.ready != p.started:
        ops = (("channel", p.name, p.version, (("ready", p.started),)),)
        after = p._replace(version=p.version + 1, ready=p.started)
        yield from searching.sends(apply, cfg, w, p, "has its state back", ops, after, p)
    if p.paused:
        cut = next(c for c in w.cuts if c.number == p.paused)
        if cut.status != OPEN:
            yield f"{who} reads that {cut.number} is {cut.status}", swap(w, p, p._replace(paused=0)), ""
        return
    for part in cfg.names:
        if p.loaded and p.share >> part & 1 and p.positions[part] < cfg.deep:
            positions = put(p.positions, part, p.positions[part] + 1)
            counts = put(p.counts, part, p.counts[part] + 1)
            yield f"{who} takes in {part}", swap(w, p, p._replace(positions=positions, counts=counts)), ""


# ------------------------------------------------------------------------------------------------- states


def canonical(cfg: Config, w: World) -> World:
    """Versions become 1 or 0, command names their ranks; turns and multis that can only be refused are dropped."""
    ahead = [c.version - 1 for c in w.channels]
    moved_region, moved_groups = [w.region.version - 1], [g.version - 1 for g in w.groups]
    versions = {"channel": ahead, "region": moved_region, "group": moved_groups}
    versions |= {"region is": moved_region, "group is": moved_groups}
    lenient = [op for op, rule in (("region is", "noregion"), ("group is", "nogroups")) if rule in cfg.muts]
    canon = searching.Canon(w, versions, {"remove": True}, lenient)

    def value(x: Any, by: int) -> Any:
        if isinstance(x, Region):
            return versioned(x, max(x.version - moved_region[0], 0))
        if isinstance(x, Group):
            return versioned(x, max(x.version - by, 0))
        if isinstance(x, tuple) and x and isinstance(x[0], Channel):
            return canon.channels(x)
        if isinstance(x, tuple) and x and isinstance(x[0], Group):
            return tuple(value(g, by) for g, by in zip(x, moved_groups, strict=True))
        return x

    def turn(t: Turn, is_over: bool) -> Turn:
        if not any(t[1:]):  # it is not under way
            return t
        queue = tuple(canon.multi(multi) for multi in t.queue)
        if is_over or (queue and canon.is_hopeless(queue[0])):
            return Turn(t.key)
        by = moved_groups[cfg.keys.index(t.key)] if t.key else 0
        return Turn(t.key, t.at, tuple(value(x, by) for x in t.snapshot), queue)

    over = [i + 1 < w.epoch and "noepoch" not in cfg.muts for i in range(len(w.turns))]
    turns = tuple(tuple(turn(t, over[i]) for t in each) for i, each in enumerate(w.turns))
    processes = [versioned(p, int(p.version == w.channels[p.name].version)) for p in w.processes]
    return w._replace(
        region=versioned(w.region, 1), groups=tuple([versioned(g, 1) for g in w.groups]),
        channels=canon.channels(w.channels), processes=tuple(sorted(processes, key=lambda p: p.incarnation)),
        turns=turns, flight=canon.flight(w.flight),
    )  # fmt: skip


def steps(cfg: Config, w: World) -> Iterator[Step]:
    for label, after, bad in (*coordinate(cfg, w), *behave(cfg, w)):
        after = canonical(cfg, after)
        yield label, after, bad or unsafe(cfg, after)


def unsafe(cfg: Config, w: World) -> str:
    """In a region that is Running the counts of all members are those of their positions, as if nothing had failed."""
    if w.region.state != RUNNING:
        return ""
    target = [(n, inc) for g in w.groups for n, inc, _ in g.target]
    lives = {(p.name, p.incarnation): p for p in w.processes if is_mine(w, p) and p.session and p.loaded}
    if not all(who in lives for who in target):
        return ""
    for part in cfg.names:
        if not any(cfg.groups[n] == cfg.groups[part] for n, _ in target):
            continue  # its group has no members
        positions = [p.positions[part] for p in lives.values() if p.share >> part & 1]
        if sum(positions) != sum(p.counts[part] for p in lives.values()):
            return f"S10: what was counted of partition {part} is not what was taken in"
    return ""


# ------------------------------------------------------------------------------------------------- progress


def serve(cfg: Config, w: World) -> World:
    """Every process does what it can, but for taking in."""
    for _ in range(40):
        after = next((after for label, after, _ in behave(cfg, w) if "takes in" not in label), None)
        if after is None:
            break
        w = canonical(cfg, after)
    return w


def calm(cfg: Config, w: World) -> Iterator[World]:
    """One coordinator acts, and between its turns every process, until nothing is left to do."""
    for _ in range(40):
        w = serve(cfg, w)
        yield w
        acted = False
        for key in ("", *cfg.keys):
            t = Turn(key)
            while t.at < cfg.reads(key):
                t = read(cfg, w, t)
            for _, _, queue in decisions(cfg, w.epoch, t, w):
                done = apply(cfg, w, queue[0])
                if done is not None:
                    w, acted = canonical(cfg, done[0]), True
                break
        if not acted:
            return


def settles(cfg: Config, w: World) -> str:
    """Faults have stopped, one coordinator acts: is the region Running, and is there a new cut?"""
    w = w._replace(epoch=w.epoch + 1, turns=(), flight=(), left=())
    for name in cfg.names:
        w = w if any(p.name == name for p in w.processes) or not w.ids[name] else register(w, name)
    before = max((c.number for c in w.cuts), default=0)
    for after in calm(replace(cfg, cuts=before + 3), canonical(cfg, w)):
        w = after
        if any(c.number > before and c.status == COMPLETED for c in w.cuts):
            return ""
    return "L6: no new cut from here" if w.processes else ""  # or no member is present


def run(cfg: Config) -> Result:
    """Breadth first, up to the first violation."""
    most = cfg.progress, cfg.max, cfg.secs
    return searching.search(first_world(cfg), lambda w: steps(cfg, w), lambda w: settles(cfg, w), *most)
