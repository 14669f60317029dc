"""Explicit-state model of client-side assignment: ask, answer, adopt, and the jobs that no owner znode guards.

Defaults are the rules as they should stand (`README.md` beside this file); `mut=` takes one out. A multi is a tuple of
operations, applied all or none. Versions and command names are kept in canonical form: 1 is the current version, 0 is
what can never match again. Visited states are kept as 64-bit hashes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

from . import search as searching
from .search import FIRST, NAMES, Result, Step, is_mine, name_of, put, spend, swap, union

WHOLE = 255  # the share of a mark that covers the whole member
UNKNOWN = (9, 0, WHOLE)  # a mark for each member that may have been marked in a lost state
MANNERS = ("good", "error", "double", "foreign", "stale")


@dataclass(frozen=True)
class Config(searching.Bounds):
    """The modelled features.

    Of the faults `quit` is a member that is not polled: it ends its incarnation, and continues until its lease is over;
    `amnesia` is a coordinator of an earlier release, which writes `state` without what it does not know.
    """

    TABLE = searching.table("client_assignment")
    FAULTS = (
        *("expire", "evict", "take", "join", "leave", "quit", "lost"),
        *("late", "timeout", "lie", "change", "request", "amnesia"),
    )
    names: int = 2  # members that exist; `members` of them are registered at the start
    members: int = 2
    parts: int = 2
    kind: str = "consumer"  # or "jobs": a protocol type without owners
    static: str = ""  # names that are static members, as "AB"
    start: str = "fresh"  # or "running": ask 1 was adopted, and all members run it
    order: str = "scwei"  # reads of a turn: state, channels (0, 1, 2: one of them), answers, entries, ids
    split: int = 0  # 1: stops and starts go in a multi of their own
    chunk: int = 0  # 1: a start is acknowledged in two multis
    latesync: int = 0  # 1: a multi in flight may arrive after the sync that followed it
    epochs: int = 1
    asks: int = 2
    progress: int = 1
    bad: str = "good,hang,error,double,stale,drops,dies,mute"  # how all but the last behave in checks of progress


class Command(NamedTuple):
    """`channel/[consumer]/command-[seq]`."""

    seq: int
    option: str  # stop, start, assign
    epoch: int
    generation: int
    incarnation: int
    ask: int
    share: int


class Channel(NamedTuple):
    """`channel/[consumer]`: `ask` is what the last start named (jobs: 0 once stopped)."""

    version: int
    incarnation: int
    ended: int
    run: int
    ask: int
    commands: tuple[Command, ...]


class Answer(NamedTuple):
    """`answer`: its listed members, and its computation (`tag`, for the checks only)."""

    manner: str
    members: tuple[int, ...]
    tag: int


class Ask(NamedTuple):
    """`sync/ask-[number]` and what is below it; members are (name, identity, digest), entries (name, share, tag)."""

    number: int
    leader: int
    incarnation: int
    members: tuple[tuple[int, int, int], ...]
    entries: tuple[tuple[int, int, int], ...]
    answer: Answer | tuple[()]


class State(NamedTuple):
    """`state`: target is (name, incarnation, share, jobs: was a start ever sent), marks (name, incarnation, share)."""

    version: int
    epoch: int
    generation: int
    target: tuple[tuple[int, int, int, int], ...]
    ask: int
    failed: tuple[int, ...]
    excused: tuple[int, ...]
    marks: tuple[tuple[int, int, int], ...]


class Work(NamedTuple):
    """A leader's computed and unwritten answer."""

    seq: int
    ask: int
    todo: tuple[tuple[int, int], ...]
    answer: Answer


class Process(NamedTuple):
    """One life of a name. It ends when its lease does; `ask` and `share` are what it really runs."""

    name: int
    incarnation: int
    session: int
    unknown: int
    version: int
    ask: int
    share: int
    work: Work | tuple[()]


class Snapshot(NamedTuple):
    """A turn's reads so far."""

    state: State | tuple[()] = ()
    lapsed: tuple[tuple[int, int, int], ...] = ()
    channels: tuple[Any, ...] = ()
    asks: tuple[Ask, ...] = ()
    entries: tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...] = ()
    request: int = 0
    ids: tuple[tuple[int, int], ...] = ()


class Turn(NamedTuple):
    """A coordinator: how far its reads are, and the multis that it still has to commit."""

    at: int = 0
    snapshot: Snapshot = Snapshot()
    queue: tuple[Any, ...] = ()


class World(NamedTuple):
    """ZooKeeper, the processes, the coordinators, and what is on its way."""

    epoch: int
    state: State
    ids: tuple[tuple[int, int], ...]  # (incarnation or 0, digest)
    channels: tuple[Channel, ...]
    asks: tuple[Ask, ...]
    request: int
    processes: tuple[Process, ...]
    turns: tuple[Turn, ...]
    flight: tuple[tuple[int, Any], ...]
    left: tuple[tuple[str, int], ...]  # faults that may still happen
    newest: int  # incarnation
    tag: int
    best: int  # the newest ask that was ever adopted, for the checks only


def identity(cfg: Config, name: int, incarnation: int) -> int:
    """The seat of a static member, its name; the incarnation of another, which is `FIRST` or more."""
    return name if NAMES[name] in cfg.static else incarnation


def first_world(cfg: Config) -> World:
    state, channels = State(1, 1, 0, (), 0, (), (), ()), (Channel(1, 0, 0, 0, 0, ()),) * cfg.names
    w = World(1, state, ((0, 0),) * cfg.names, channels, (), 0, (), (Turn(),), (), cfg.left, FIRST, 0, 0)
    for name in range(cfg.members):
        w = register(w, name, 0)
    if cfg.start == "running":
        rested = settled(replace(cfg, mut="", names=cfg.members), w._replace(left=()), "good", False)
        assert rested
        w = rested._replace(turns=(Turn(),), left=cfg.left)
    return canonical(cfg, w)


def register(w: World, name: int, digest: int) -> World:
    """A new process takes the name: one multi moves the fence, removes old commands, and makes `ids`."""
    inc, c = w.newest, w.channels[name]
    p = Process(name, inc, 1, 0, c.version + 1, 0, 0, ())
    return w._replace(
        newest=inc + 1, ids=put(w.ids, name, (inc, digest)), processes=(*w.processes, p),
        channels=put(w.channels, name, Channel(c.version + 1, inc, 0, 0, 0, ())),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- multis


def apply(cfg: Config, w: World, multi: tuple[Any, ...]) -> tuple[World, str] | None:
    """The world after the multi and what it violates, or None when ZooKeeper refuses it."""
    epoch, state, best, bad = w.epoch, w.state, w.best, ""
    ids, channels, asks, request = list(w.ids), list(w.channels), {a.number: a for a in w.asks}, w.request
    seq = 1 + max((x.seq for c in channels for x in c.commands), default=0)
    for op, *args in multi:
        if op == "epoch":
            if args[0] != epoch:
                if "noepoch" not in cfg.muts:
                    return None
                bad = bad or "S4: an older epoch writes"
        elif op == "state":
            if args[1] != state.version:
                return None
            new = args[2]
            if new.generation != state.generation and new.target:
                bad = bad or (f"S9: ask {new.ask} adopted after ask {best}" if new.ask <= best else "")
                best = new.ask
            state = new._replace(version=state.version + 1)
        elif op in ("check", "touch", "channel"):
            c = channels[args[0]]
            if args[1] != c.version:
                return None
            if op == "touch":
                channels[args[0]] = c._replace(version=c.version + 1)
            elif op == "channel":
                incarnation, ended, run, number = args[2:]
                channels[args[0]] = Channel(c.version + 1, incarnation, ended, run, number, c.commands)
        elif op in ("stands", "remove", "remove if there"):
            c = channels[args[0]]
            if not any(x.seq == args[1] for x in c.commands) and op != "remove if there":
                return None
            if op != "stands":
                channels[args[0]] = c._replace(commands=tuple(x for x in c.commands if x.seq != args[1]))
        elif op == "send":
            c = channels[args[0]]
            channels[args[0]] = c._replace(commands=(*c.commands, args[1]._replace(seq=seq)))
            seq += 1
        elif op == "ask":
            if args[0].number in asks:
                return None
            asks[args[0].number] = args[0]
        elif op == "asked":
            if args[0] not in asks:
                return None
        elif op == "entry":
            number, name, share, tag = args
            a = asks[number]
            stands = [x for x in a.entries if x[0] == name]
            if not (stands and "keepold" in cfg.muts):
                rest = tuple(x for x in a.entries if x[0] != name)
                asks[number] = a._replace(entries=tuple(sorted((*rest, (name, share, tag)))))
        elif op == "answer":
            if asks[args[0]].answer:
                return None
            asks[args[0]] = asks[args[0]]._replace(answer=args[1])
        elif op == "forget":
            asks.pop(args[0], None)
        elif op == "request":
            request = args[0]
        elif op == "gone":
            ids[args[0]] = (0, 0)
        elif op == "(written for)":  # a check of the model: the leader writes only for an existing command
            name, held, number = args
            if not any(x.seq == held for x in channels[name].commands):
                bad = bad or f"S6: {NAMES[name]} writes below ask {number} after its command was withdrawn"
            if number in asks and asks[number].leader != name:
                bad = bad or f"S9: {NAMES[name]} writes below an ask to another leader"
        elif op == "(blamed)":
            bad = bad or f"F: the good answer to ask {args[0]} counts as a failure"
        elif op == "(adopted)":  # a check of the model: the target is the whole of one valid answer, less those gone
            bad = bad or adopted(cfg, asks.get(args[0]), state, args[1])
    w = w._replace(state=state, ids=tuple(ids), channels=tuple(channels), request=request, best=best)
    return w._replace(asks=tuple(sorted(asks.values()))), bad


def adopted(cfg: Config, ask: Ask | None, state: State, present: tuple[tuple[int, int], ...]) -> str:
    """The violation of a target that was just adopted from `ask` by a turn that saw `present` (name, identity)."""
    if ask is None or not ask.answer or ask.answer.manner in ("error", "stale"):
        return "S9: adopted without an answer"
    entries = {n: (share, tag) for n, share, tag in ask.entries if n in ask.answer.members}
    if any(tag != ask.answer.tag for _, tag in entries.values()) or len(entries) != len(ask.answer.members):
        return "S9: the answer mixes two computations"
    wanted = {n: entries.get(n, (0, 0))[0] for n, who, _ in ask.members if (n, who) in present}
    if {n: share for n, _, share, _ in state.target} != wanted:
        return "S9: the target is not the whole answer less those gone"
    if is_twice([share for _, _, share, _ in state.target]):
        return "S2: a partition twice in the target"
    return ""


# ------------------------------------------------------------------------------------------------- a turn


def plan(cfg: Config, epoch: int, s: Snapshot, *, timeout: bool = False, evict: int = -1) -> tuple[Any, ...]:
    """The multis of one turn: pure, like the product's."""
    st = s.state
    assert st
    everybody, jobs = range(cfg.names), cfg.kind == "jobs"
    whole = jobs and "nomark" not in cfg.muts
    channels: tuple[Channel, ...] = s.channels
    lives = [bool(s.ids[n][0]) and s.ids[n][0] == c.incarnation and not c.ended for n, c in enumerate(channels)]
    marks = {m for m in st.marks if m not in s.lapsed}
    ops: list[Any] = []
    ended: set[int] = set()

    # Ends: incarnations whose `ids` is not there any more, and the one that is evicted.
    for n, c in enumerate(channels):
        if n == evict or (c.incarnation and not lives[n] and (not c.ended or (whole and c.ask))):
            ops += [("channel", n, c.version, c.incarnation, 1, 0, 0), *(("remove", n, x.seq) for x in c.commands)]
            ops += [("gone", n)] if n == evict else []
            lives[n] = False
            ended.add(n)
            if not jobs and n == evict and c.run:
                marks.add((n, c.incarnation, c.run))
    # The target without departed members. A removed member is marked by the same multi, unless it left.
    target: dict[int, tuple[int, int, int]] = {}
    before = {(n, inc): sent for n, inc, _, sent in st.target}
    for n, inc, share, sent in st.target:
        same = channels[n].incarnation == inc
        if lives[n] and (same or NAMES[n] in cfg.static):
            target[n] = (channels[n].incarnation, share, sent if same else 0)
        lost = n in ended if same else "endonly" not in cfg.muts
        if whole and lost and (sent or "markall" in cfg.muts):
            marks.add((n, inc, WHOLE))
    for n, c in enumerate(channels):  # the state that knew of it is lost
        if jobs and lives[n] and c.ask and n not in target and "trusting" not in cfg.muts:
            target[n] = (c.incarnation, 0, 1)
    if whole and "markall" in cfg.muts:
        marks |= {(n, channels[n].incarnation, WHOLE) for n in ended}

    present = tuple((n, identity(cfg, n, s.ids[n][0]), s.ids[n][1]) for n in everybody if lives[n])
    known = max([st.ask, *(a.number for a in s.asks)])
    newer = [a for a in s.asks if a.number > st.ask or ("older" in cfg.muts and a.number == st.ask)]
    current = max(newer, default=None)
    base = [a for a in s.asks if a.number == st.ask]
    generation, ask, excused = st.generation, st.ask, st.excused
    failed = () if "volatile" in cfg.muts and st.epoch != epoch else st.failed
    entries = dict(s.entries).get(current.number, ()) if current else ()
    keep, asks_next, adopts = -1, False, False

    if st.generation and not st.ask and "trusting" not in cfg.muts:  # the state of another release: nothing is known
        ask = known
        newer, current, base = [], None, []
        if whole:
            marks.add(UNKNOWN)
    if not present:
        if st.target:
            generation += 1
        target, ask, failed, excused = {}, known, (), ()
    elif current is None:
        missing = any(n not in target for n, *_ in present) and "askonly" not in cfg.muts
        asks_next = not base or base[0].members != present or bool(s.request) or missing
    else:
        who = dict((n, i) for n, i, _ in current.members)[current.leader]
        commands = [x for x in channels[current.leader].commands if x.option == "assign" and x.ask == current.number]
        shares = judge(cfg, current, entries)
        if shares is not None:
            adopts, generation, ask, failed, excused = True, generation + 1, current.number, (), ()
            target = {}
            for n, i, _ in current.members:
                if ("ghosts" in cfg.muts) or (lives[n] and identity(cfg, n, channels[n].incarnation) == i):
                    inc = channels[n].incarnation
                    target[n] = (inc, shares.get(n, 0), before.get((n, inc), 0))
        elif current.answer and current.answer.manner == "stale" and ("excuse" in cfg.muts or who not in excused):
            excused, asks_next = tuple(sorted({*excused, who})), True
        elif current.answer or timeout:
            if current.answer and current.answer.manner == "good":
                ops.append(("(blamed)", current.number))
            failed, asks_next = tuple(sorted({*failed, who})), True
        elif not lives[current.leader] or channels[current.leader].incarnation != current.incarnation:
            failed = failed if "forgive" in cfg.muts else tuple(sorted({*failed, who}))
            asks_next = True
        elif "restless" in cfg.muts and current.members != present:
            asks_next = True
        elif commands and commands[0].epoch == epoch:
            keep = commands[0].seq
        elif not commands and st.epoch == epoch and "resend" not in cfg.muts:
            failed, asks_next = tuple(sorted({*failed, who})), True
        else:
            ops.append(("send", current.leader, Command(0, "assign", epoch, generation, current.incarnation, known, 0)))
    ops += [("remove", n, x.seq) for n, c in enumerate(channels) if n not in ended for x in c.commands
            if x.option == "assign" and x.seq != keep]  # fmt: skip
    if asks_next:
        tried = {m[:2] for m in current.members} if current and "newcomer" not in cfg.muts else {m[:2] for m in present}
        able = sorted((i, n) for n, i, _ in present if i not in failed and (n, i) in tried)
        if not able:
            failed, able = (), sorted((i, n) for n, i, _ in present)
        leader = able[0][1]
        number = known + 1
        if "reuse" in cfg.muts:
            number = st.ask + 1
            ops += [("forget", a.number) for a in s.asks if a.number > st.ask]
        inc = channels[leader].incarnation
        ops.append(("ask", Ask(number, leader, inc, present, (), ())))
        ops.append(("send", leader, Command(0, "assign", epoch, generation, inc, number, 0)))
        ops += [("request", 0)] if s.request else []
    elif not adopts and all(channels[n].ask == ask for n in target):
        ops += [("forget", a.number) for a in s.asks if a.number < ask]

    moves = machinery(cfg, (epoch, generation, ask), channels, lives, ended, target, marks)
    left = tuple((n, *target[n]) for n in sorted(target))
    new = State(0, epoch, generation, left, ask, failed, excused, tuple(sorted(marks)))
    if not ops and not moves and new == st._replace(version=0, epoch=epoch):
        return ()
    check = [("(adopted)", ask, tuple((n, i) for n, i, _ in present))] if adopts else []
    if cfg.split and moves:
        return (
            (("epoch", epoch), ("state", 0, st.version, new), *ops, *check),
            (("epoch", epoch), ("state", 0, st.version + 1, new), *moves),
        )
    return ((("epoch", epoch), ("state", 0, st.version, new), *ops, *moves, *check),)


def is_twice(shares: Collection[int]) -> bool:
    """Is a partition in two of them?"""
    return sum(shares) != union(shares)


def judge(cfg: Config, ask: Ask, entries: tuple[tuple[int, int, int], ...]) -> dict[int, int] | None:
    """The shares of a valid answer. Missing entries of an ask without `answer` make none (but for the mutation)."""
    if not ask.answer:
        return {n: share for n, share, _ in entries} if "half" in cfg.muts and entries else None
    if ask.answer.manner in ("error", "stale"):
        return None
    shares = {n: share for n, share, _ in entries if n in ask.answer.members or "unlisted" in cfg.muts}
    if not {*ask.answer.members} <= {n for n, *_ in ask.members}:
        return None
    return None if is_twice(shares.values()) and "twice" not in cfg.muts else shares


def machinery(
    cfg: Config, order: tuple[int, int, int], channels: tuple[Channel, ...], lives: list[bool], ended: set[int],
    target: dict[int, tuple[int, int, int]], marks: set[tuple[int, int, int]],
) -> list[Any]:  # fmt: skip
    """Stops, and the starts whose partitions are free (jobs: whose whole group is)."""
    jobs, wanted, withdraws, ask = cfg.kind == "jobs", [], [], order[2]
    for n, c in enumerate(channels):
        share = target[n][1] if n in target else 0
        if not lives[n]:
            continue
        gives_up = WHOLE if jobs and c.ask not in (0, ask) else 0 if jobs else c.run & ~share
        option = "stop" if gives_up else "start" if n in target and (c.ask != ask or c.run != share) else ""
        want = Command(0, option, *order[:2], c.incarnation, ask, gives_up or share)
        moving = [x for x in c.commands if x.option != "assign"]
        kept = [x for x in moving if x._replace(seq=0) == want or (cfg.chunk and x._replace(seq=0, option="") == want)]
        if cfg.chunk and not option:
            kept = [x for x in moving if x.option == "start" and x._replace(seq=0, option="", share=share) == want]
        withdraws += [(n, x) for x in moving if x not in kept]
        if option and not kept:
            wanted.append((n, want))
    starts = [(n, x) for n, c in enumerate(channels) for x in c.commands if x.option == "start"]
    if "withdrawn" in cfg.muts:
        starts = [x for x in starts if x not in withdraws]
    clear = not marks and all(x.ask == ask for _, x in starts)
    clear = clear and all(c.ended or n in ended or c.ask in (0, ask) for n, c in enumerate(channels))
    busy = union([c.run for n, c in enumerate(channels) if n not in ended] + [share for _, _, share in marks])
    out: list[Any] = [("remove", n, x.seq) for n, x in withdraws]
    for n, want in wanted:
        others = union(x.share for m, x in starts if m != n)
        free = clear if jobs else not want.share & ~channels[n].run & (busy | others)
        if want.option == "stop" or free:
            out.append(("send", n, want))
            if jobs and want.option == "start":
                target[n] = (*target[n][:2], 1)
    return out


def read(cfg: Config, w: World, s: Snapshot, what: str) -> Snapshot:
    """One read of a turn."""
    if what == "s":
        alive = {(p.name, p.incarnation) for p in w.processes}
        orphans = any(not is_mine(w, p) or not p.session for p in w.processes)
        lapsed = (m for m in w.state.marks if not (m[:2] in alive or (m == UNKNOWN and orphans)))
        return s._replace(state=w.state, lapsed=tuple(lapsed))
    if what == "c":
        return s._replace(channels=w.channels)
    if what.isdigit():
        return s._replace(channels=put(s.channels or ((),) * cfg.names, int(what), w.channels[int(what)]))
    if what == "w":
        return s._replace(asks=tuple(a._replace(entries=()) for a in w.asks))
    if what == "e":
        return s._replace(entries=tuple((a.number, a.entries) for a in w.asks if a.number > w.state.ask))
    return s._replace(ids=w.ids, request=w.request)


def reads(cfg: Config, w: World) -> Snapshot:
    """Those of a turn by itself."""
    return reduce(lambda s, what: read(cfg, w, s, what), cfg.order, Snapshot())


def coordinate(cfg: Config, w: World) -> Iterator[Step]:
    if w.epoch < cfg.epochs:
        yield f"elect C{w.epoch + 1}", w._replace(epoch=w.epoch + 1, turns=(*w.turns, Turn())), ""
    if forgot := spend(w, "amnesia"):
        st = w.state._replace(ask=0, failed=(), excused=(), target=(), generation=w.state.generation + 1)
        st = st._replace(version=st.version + 1, epoch=w.epoch + 1, marks=() if cfg.kind == "jobs" else st.marks)
        after = forgot._replace(epoch=w.epoch + 2, turns=(*w.turns, Turn(), Turn()), state=st)
        yield "an earlier release is elected, writes state, and fails", after, ""
    for i, t in enumerate(w.turns):
        who, epoch = f"C{i + 1}", i + 1
        if epoch < w.epoch and "noepoch" not in cfg.muts:
            continue
        if t.queue:
            done = apply(cfg, w, t.queue[0])
            if done is None:
                yield f"{who} is refused", w._replace(turns=put(w.turns, i, Turn())), ""
                continue
            rest = Turn(0, Snapshot(), t.queue[1:])
            label = f"{who}: {searching.described(t.queue[0], SAYS)}"
            yield label, done[0]._replace(turns=put(w.turns, i, rest)), done[1]
            lost = spend(done[0], "lost")
            if lost and t.queue[1:]:
                yield label + " (reply lost)", lost._replace(turns=put(w.turns, i, Turn())), done[1]
            continue
        snapshot = read(cfg, w, t.snapshot, cfg.order[t.at])
        label = f"{who} reads {cfg.order[t.at]}"
        if t.at + 1 < len(cfg.order):
            yield label, w._replace(turns=put(w.turns, i, Turn(t.at + 1, snapshot, ()))), ""
            continue
        choices: list[tuple[str, World | None, dict[str, Any]]] = [("", w, {})]
        choices.append((", the ask has timed out", spend(w, "timeout"), {"timeout": True}))
        for n, c in enumerate(snapshot.channels):
            if c.commands and c.incarnation == snapshot.ids[n][0] and not c.ended:
                choices.append((f", evicts {NAMES[n]}", spend(w, "evict"), {"evict": n}))
        for why, paid, how in choices:
            if paid is None:
                continue
            queue = plan(cfg, epoch, snapshot, **how)
            if how.get("timeout") and queue == plan(cfg, epoch, snapshot):
                continue
            if any(op[0] == "ask" and op[1].number > cfg.asks for multi in queue for op in multi):
                continue
            yield label + why, paid._replace(turns=put(w.turns, i, Turn(0, Snapshot(), queue))), ""


SAYS: dict[str, Callable[..., str]] = {
    "send": lambda n, x: f"{x.option} to {name_of(n, x.incarnation)} ask {x.ask} share {x.share}",
    "remove": lambda n, seq: f"withdraw from {NAMES[n]}",
    "channel": lambda n, version, incarnation, *changes: f"end {name_of(n, incarnation)}",
    "(adopted)": lambda number, present: f"ADOPT ask {number}",
    "ask": lambda ask: f"make ask {ask.number}",
    "forget": lambda number: f"remove ask {number}",
}


# ------------------------------------------------------------------------------------------------- a member


def compute(cfg: Config, w: World, command: Command, ask: Ask, manner: str) -> Work:
    """A leader's answer: members that have changed since the ask are left out."""
    present = [n for n, who, digest in ask.members
               if w.ids[n][0] and identity(cfg, n, w.ids[n][0]) == who and w.ids[n][1] == digest]  # fmt: skip
    shares = dict.fromkeys(present, 0)
    for part in range(cfg.parts if present else 0):
        shares[present[(part + w.tag) % len(present)]] |= 1 << part
    if manner == "double":
        shares = dict.fromkeys(present, (1 << cfg.parts) - 1)
    if manner == "foreign":
        shares[len(NAMES)] = 0
    if manner == "error":
        shares = {}
    return Work(command.seq, ask.number, tuple(shares.items()), Answer(manner, tuple(shares), w.tag))


def leader_multi(cfg: Config, p: Process) -> tuple[str, tuple[Any, ...], Process]:
    """The next multi of an answer: one entry, and with the last one `answer`."""
    work = p.work
    assert work
    last, n = len(work.todo) < 2, p.name
    ops: list[Any] = [("(written for)", n, work.seq, work.ask), ("asked", work.ask)]
    moved = 0
    if "nochannel" not in cfg.muts:
        moved = int(last or "checkonly" not in cfg.muts)
        ops.append(("touch" if moved else "check", n, p.version))
    if "nocommand" not in cfg.muts:
        ops.append(("remove" if last else "stands", n, work.seq))
    elif last:
        ops.append(("remove if there", n, work.seq))
    ops += [("entry", work.ask, *x, work.answer.tag) for x in work.todo[:1]]
    ops += [("answer", work.ask, work.answer)] if last else []
    after = p._replace(version=p.version + moved, work=() if last else work._replace(todo=work.todo[1:]))
    what = f"answers ask {work.ask} ({work.answer.manner})" if last else f"writes an entry of ask {work.ask}"
    return what, tuple(ops), after


def obey(cfg: Config, w: World, p: Process) -> tuple[str, tuple[Any, ...], Process, Process] | None:
    """The multi for the next stop or start: what it is, its operations, the process after it, and before it is sent."""
    c = w.channels[p.name]
    x = next((x for x in c.commands if x.option != "assign"), None)
    if x is None:
        return None
    if x.incarnation != p.incarnation:
        drops = (("remove", p.name, x.seq), ("touch", p.name, p.version))
        return "drops a command of another life", drops, p._replace(version=p.version + 1), p
    if x.option == "stop":
        run = 0 if cfg.kind == "jobs" else c.run & ~x.share
        ask = 0 if cfg.kind == "jobs" else c.ask
    else:
        run, ask = x.share, x.ask
    first = bool(cfg.chunk) and x.option == "start" and (run, ask) != (c.run, c.ask)
    ops = (("stands" if first else "remove", p.name, x.seq),
           ("channel", p.name, p.version, p.incarnation, 0, run, ask))  # fmt: skip
    before = p._replace(ask=ask, share=run) if x.option == "stop" else p
    return f"{x.option} ask {ask} share {run}", ops, p._replace(version=p.version + 1, ask=ask, share=run), before


def send(cfg: Config, w: World, p: Process, what: str, ops: Any, after: Process, before: Process) -> Iterator[Step]:
    yield from searching.sends(apply, cfg, w, p, what, ops, after, before._replace(work=()))


def begin(cfg: Config, w: World, p: Process, command: Command, manners: tuple[str, ...] = MANNERS) -> Iterator[Step]:
    """A leader reads ask and ids, and computes."""
    ask = next((a for a in w.asks if a.number == command.ask), None)
    who = name_of(p.name, p.incarnation)
    if ask is None or ask.answer or command.incarnation != p.incarnation:
        yield from send(cfg, w, p, "drops assign", (("remove", p.name, command.seq), ("touch", p.name, p.version)),
                        p._replace(version=p.version + 1), p)  # fmt: skip
        return
    for manner in manners:
        paid = w if manner == "good" or manners is not MANNERS else spend(w, "lie")
        if paid:
            work = compute(cfg, w, command, ask, manner)
            after = swap(paid, p, p._replace(work=work))._replace(tag=1 - w.tag)
            yield f"{who} computes ask {ask.number} ({manner})", after, ""


def behave(
    cfg: Config, w: World, answer: Callable[..., Iterator[Step]] = begin, mute: Collection[int] = ()
) -> Iterator[Step]:
    """Every step of a process; how leaders answer a command, and those that do nothing."""
    for p in w.processes:
        who, c, mine = name_of(p.name, p.incarnation), w.channels[p.name], is_mine(w, p)
        if not mine or not p.session:
            yield f"{who} ends (its lease is over)", swap(w, p, None), ""
            continue
        if p.name in mute:
            continue
        if expired := spend(w, "expire"):
            yield f"{who}: session expires", swap(expire(w, p), p, lapse(cfg, p))._replace(left=expired.left), ""
        if left := spend(w, "leave"):
            gone = left._replace(ids=put(w.ids, p.name, (0, 0)))
            ended = Channel(c.version + 1, p.incarnation, 1, 0, 0, c.commands)
            yield f"{who} leaves", swap(gone._replace(channels=put(w.channels, p.name, ended)), p, None), ""
        if quits := spend(w, "quit"):
            kept = c.ask if cfg.kind == "jobs" and "quitclear" not in cfg.muts else 0
            ended = Channel(c.version + 1, p.incarnation, 1, 0, kept, c.commands)
            gone = quits._replace(ids=put(w.ids, p.name, (0, 0)))
            gone = gone._replace(channels=put(w.channels, p.name, ended))
            yield f"{who} is not polled, and leaves by itself", swap(gone, p, lapse(cfg, p)), ""
        if p.unknown or p.version != c.version:
            fresh = p._replace(unknown=0, version=c.version, ask=c.ask, share=c.run, work=())
            rest = tuple(f for f in w.flight if cfg.latesync or f[0] != p.incarnation)
            yield f"{who} syncs", swap(w, p, fresh)._replace(flight=rest), ""
            continue
        if (changed := spend(w, "change")) and not p.work:
            ids = put(w.ids, p.name, (p.incarnation, w.ids[p.name][1] + 1))
            yield f"{who} changes its metadata", changed._replace(ids=ids), ""
        if (asked := spend(w, "request")) and not w.request:
            yield f"{who} requests", asked._replace(request=1), ""
        if todo := obey(cfg, w, p):
            yield from send(cfg, w, p, *todo)
        if p.work:
            what, ops, after = leader_multi(cfg, p)
            yield from send(cfg, w, p, what, ops, after, p)
            continue
        if assign := [x for x in c.commands if x.option == "assign"]:
            yield from answer(cfg, w, p, assign[0])
    for name in range(cfg.names):
        fault = "take" if w.ids[name][0] else "join"
        if paid := spend(w, fault):
            yield f"{name_of(name, w.newest)} registers", register(paid, name, 0), ""
    yield from searching.arrives(apply, cfg, w)


def expire(w: World, p: Process) -> World:
    return w._replace(ids=put(w.ids, p.name, (0, 0))) if w.ids[p.name][0] == p.incarnation else w


def lapse(cfg: Config, p: Process) -> Process:
    """A process after its session: a consumer's lease is over by then, one that runs jobs is not relied on for that."""
    return p._replace(session=0, work=(), **({} if cfg.kind == "jobs" else {"ask": 0, "share": 0}))


# ------------------------------------------------------------------------------------------------- states


RANKED = {"stands": True, "remove": True, "remove if there": False, "(written for)": False}


def canonical(cfg: Config, w: World) -> World:
    """Versions become 1 or 0, command names their ranks; turns and multis that can only be refused are dropped."""
    ahead, moved = [c.version - 1 for c in w.channels], w.state.version - 1
    canon = searching.Canon(w, {"state": [moved], "check": ahead, "touch": ahead, "channel": ahead}, RANKED)
    turns = []
    for i, t in enumerate(w.turns):
        s, queue = t.snapshot, tuple(canon.multi(multi) for multi in t.queue)
        over = (i + 1 < w.epoch and "noepoch" not in cfg.muts) or bool(s.state and s.state.version != w.state.version)
        if over or (queue and canon.is_hopeless(queue[0])):
            turns.append(Turn())
            continue
        s = s._replace(state=s.state and s.state._replace(version=1), channels=canon.channels(s.channels))
        turns.append(Turn(t.at, s, queue))
    return w._replace(
        state=w.state._replace(version=1), channels=canon.channels(w.channels),
        processes=tuple(sorted(
            p._replace(version=int(p.version == w.channels[p.name].version),
                       work=p.work and p.work._replace(seq=canon.rank(p.work.seq))) for p in w.processes)),
        turns=tuple(turns), flight=canon.flight(w.flight),
    )  # fmt: skip


def steps(cfg: Config, w: World) -> Iterator[Step]:
    for label, after, bad in (*coordinate(cfg, w), *behave(cfg, w)):
        after = canonical(cfg, after)
        yield label, after, bad or unsafe(cfg, after)


def unsafe(cfg: Config, w: World) -> str:
    """Two processes that run what only one may."""
    running = [p for p in w.processes if p.share or (cfg.kind == "jobs" and p.ask)]
    for i, p in enumerate(running):
        for q in running[:i]:
            pair = f"{name_of(q.name, q.incarnation)} and {name_of(p.name, p.incarnation)}"
            if cfg.kind == "jobs" and (p.ask != q.ask or p.name == q.name):
                return f"J: {pair} run jobs of ask {q.ask} and ask {p.ask}"
            taken = any(w.channels[r.name].incarnation != r.incarnation for r in (p, q))  # its fence has moved
            if p.name != q.name and p.share & q.share and not taken:
                return f"S1: {pair} run the same"
    return ""


# ------------------------------------------------------------------------------------------------- progress


def is_settled(cfg: Config, w: World) -> bool:
    """Stable: asked, answered, adopted, started; no command is outstanding."""
    st, shares = w.state, {n: (inc, share) for n, inc, share, _ in w.state.target}
    base = [a for a in w.asks if a.number == st.ask]
    lives = [n for n, c in enumerate(w.channels) if w.ids[n][0] == c.incarnation and c.incarnation and not c.ended]
    if sorted(shares) != lives or w.request or st.marks or any(w.channels[n].commands for n in lives):
        return False
    if not lives:
        return True
    asked = tuple((n, identity(cfg, n, w.ids[n][0]), w.ids[n][1]) for n in lives)
    if not base or base[0].members != asked or any(a.number > st.ask for a in w.asks):
        return False
    if sum(share for _, share in shares.values()) != (1 << cfg.parts) - 1:
        return False
    return all(w.channels[n][1:5] == (inc, 0, share, st.ask) for n, (inc, share) in shares.items())


def serve(cfg: Config, w: World, manner: str, limit: int = 30) -> World:
    """Every process does what it can; the assignors of all but the last name follow `manner`."""
    bad = range(cfg.names - 1)

    def answer(cfg: Config, w: World, p: Process, x: Command) -> Iterator[Step]:
        if p.name not in bad or manner not in ("hang", "dies", "drops"):
            yield from begin(cfg, w, p, x, (manner if p.name in bad and manner in MANNERS else "good",))
        elif manner == "dies":
            yield "", register(swap(w, p, None), p.name, w.ids[p.name][1]), ""
        elif manner == "drops":
            yield "", drop(w, p, x), ""

    mute = bad if manner == "mute" else range(0)
    for _ in range(limit):
        _, after, _ = next(behave(cfg, w, answer, mute), ("", None, ""))
        if after is None:
            break
        w = canonical(cfg, after)
    for name in range(cfg.names):
        if not any(p.name == name for p in w.processes) and name not in mute:
            w = register(w, name, 0)
    return canonical(cfg, w)


def drop(w: World, p: Process, command: Command) -> World:
    """A leader acknowledges a command and does nothing else."""
    c = w.channels[p.name]
    c = c._replace(version=c.version + 1, commands=tuple(x for x in c.commands if x != command))
    return swap(w, p, p._replace(version=c.version))._replace(channels=put(w.channels, p.name, c))


def settled(cfg: Config, w: World, manner: str, failover: bool, rounds: int = 24) -> World | None:
    """Where a fair schedule without faults is Stable. With `failover` each failed ask kills the coordinator."""
    for _ in range(rounds):
        w = serve(cfg, w, manner)
        if is_settled(cfg, w):
            return w
        s = reads(cfg, w)
        queue = plan(cfg, w.epoch, s)
        if not queue and (stuck := [n for n, c in enumerate(w.channels) if c.commands]):
            assign = w.channels[stuck[0]].commands[0].option == "assign"
            queue = plan(cfg, w.epoch, s, timeout=True) if assign else plan(cfg, w.epoch, s, evict=stuck[0])
        failed, excused = w.state.failed, w.state.excused
        for multi in queue:
            done = apply(cfg, w, multi)
            if done is None:
                break
            w = done[0]
        w = canonical(cfg, w)
        if failover and (w.state.failed, w.state.excused) != (failed, excused):
            w = w._replace(epoch=w.epoch + 1)
    return None


def storm(cfg: Config, rounds: int = 40) -> list[int]:
    """A member joins between any two multis of a leader. In which rounds was an answer adopted?"""
    w, out = first_world(replace(cfg, names=3, members=2)), []
    cfg = replace(cfg, names=3)
    for i in range(rounds):
        generation = w.state.generation
        w = one_turn(cfg, register(without(w, 2), 2, 0))
        out += [i] if w.state.generation != generation else []
        for _ in range(2):
            w = serve(cfg, w, "good", 1)
    return out


def crash_loop(cfg: Config, rounds: int = 40, lease: int = 2) -> list[int]:
    """Jobs: C dies and rejoins in every round; a lease lasts longer. In which rounds does a member start?"""
    cfg = replace(cfg, names=3, kind="jobs")
    w, out, dead = first_world(replace(cfg, members=2)), [], deque[Process](maxlen=lease)
    for i in range(rounds):
        dead.extend(p for p in w.processes if p.name == 2)
        w = one_turn(cfg, without(w, 2)._replace(ids=put(w.ids, 2, (0, 0))), tuple(dead))
        w = one_turn(cfg, register(w, 2, 0), tuple(dead))
        out += [i] if any(x.option == "start" for c in w.channels for x in c.commands) else []
        w = serve(cfg, w, "good")
    return out


def one_turn(cfg: Config, w: World, dead: tuple[Process, ...] = ()) -> World:
    """A turn by itself, while processes that are gone (`dead`) still have their leases."""
    for multi in plan(cfg, w.epoch, reads(cfg, w._replace(processes=(*w.processes, *dead)))):
        done = apply(cfg, w, multi)
        assert done
        w = done[0]
    return canonical(cfg, w)


def without(w: World, name: int) -> World:
    return w._replace(processes=tuple(p for p in w.processes if p.name != name))


# ------------------------------------------------------------------------------------------------- search


def run(cfg: Config) -> Result:
    """Breadth first, up to the first violation."""
    manners = cfg.bad.split(",")

    def stuck(w: World) -> str:
        w = w._replace(epoch=w.epoch + 1, turns=(), flight=(), left=())
        for manner in manners:
            for failover in (False, True):
                if not settled(cfg, w, manner, failover):
                    return f"L5: not Stable from here (bad: {manner}{', failovers' if failover else ''})"
        return ""

    def quiet(w: World) -> World:
        return w._replace(turns=(), flight=(), left=())

    return searching.search(first_world(cfg), lambda w: steps(cfg, w), stuck, cfg.progress, cfg.max, cfg.secs, quiet)
