"""Explicit-state model of a member that lies about what it runs: A and B are honest, L writes what it likes.

One partition. An honest owner takes records in one by one; whoever owns it next must begin exactly there. L never gets
the partition by a command (from then on it could say what it likes of it). What counts of a channel is decided by
`granted` in the state: the incarnations that a command has named. Defaults are the rules as they should stand; `mut=`
takes one out. A multi is applied all or none. Examples:

    python -m tests.model.lying bfs epochs=2 expire=1
    python -m tests.model.lying bfs moves=1 mut=believed
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .search import Result, configured, search

HONEST, LIAR, NAMES = (0, 1), 2, "ABL"
NOTHING, UNREAD, LIE = -1, -2, 9
"""Of `run`: it does not run the partition; it has claimed it; what the liar says."""
START, STOP = "start", "stop"

MUTATIONS = {
    "believed": "every entry in `running` counts",
    "target": "an entry counts when the target names its member, although no command has",
    "owned": "an entry counts only while its owner znode is there",
    "shrunk": "a command counts no more once the target names another member",
    "late": "what a start names is written into the state by the turn after it",
    "early": "a process that takes a name over reads the state before the channel",
    "takeover": "a process that takes a name over believes the channel",
    "owners": "an end removes the owner znode whoever owns it",
    "blocking": "an entry that does not count blocks its partition",
}


@dataclass(frozen=True)
class Config:
    """How many faults of each kind may happen."""

    epochs: int = 1
    moves: int = 1  # new targets after the first
    deep: int = 1  # records that there are
    expire: int = 0  # sessions of honest members that end
    take: int = 0  # names taken over by another process
    lies: int = 2
    evict: int = 1  # evictions of the liar
    mut: str = ""
    progress: int = 5  # every n-th state is checked for L3; 0: none
    max: int = 3_000_000
    secs: float = 240
    muts: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "muts", frozenset(self.mut.split(",")) - {""})
        if self.muts - MUTATIONS.keys():
            raise ValueError(f"unknown mutation, known are {', '.join(MUTATIONS)}")


FAULTS = ("moves", "expire", "take", "lies", "evict")
QUIET = (0,) * len(FAULTS)
ENOUGH = 40
"""Steps within which a target without faults runs the partition."""


class Channel(NamedTuple):
    """`command` is pending: (option, incarnation)."""

    version: int
    incarnation: int
    run: int = NOTHING
    ended: bool = False
    command: tuple[str, int] | None = None


class State(NamedTuple):
    """`granted`: of each name the incarnation that a command has named with the partition, 0 for none."""

    version: int
    target: tuple[int, int]
    granted: tuple[int, int, int]


class Seen(NamedTuple):
    """What a turn has read so far, in the order of the fields."""

    state: State
    channels: tuple[Channel, ...] = ()


class TakeOver(NamedTuple):
    """What a process that takes a name over has read."""

    name: int
    granted: int
    channel: Channel | None = None


class World(NamedTuple):
    """`ids`: the incarnation registered under each name.  `owner`: (name, incarnation) of the owner znode.

    `done`: the next record that nobody has taken in.
    """

    epoch: int
    state: State
    channels: tuple[Channel, ...]
    ids: tuple[int, ...]
    owner: tuple[int, int] | None
    offset: int
    done: int
    turn: Seen | None
    taking: TakeOver | None
    left: tuple[int, ...]
    lives: int


Step = tuple[str, World, str]


def start(config: Config) -> World:
    """A has been sent nothing yet, the target is A's."""
    channels = tuple(Channel(0, n + 1) for n in range(3))
    left = tuple(getattr(config, fault) for fault in FAULTS)
    return World(1, State(0, (0, 1), (0, 0, 0)), channels, (1, 2, 3), None, 0, 0, None, None, left, 3)


def run(config: Config) -> Result:
    """Search every interleaving."""
    stuck, quiet = lambda w: _stuck(config, w), lambda w: w._replace(left=QUIET, turn=None, taking=None, epoch=1)
    return search(start(config), lambda w: _steps(config, w), stuck, config.progress, config.max, config.secs, quiet)


def _stuck(config: Config, w: World) -> str:
    """L3: once nothing is wrong any more an honest target comes to run the partition, whatever L's channel says."""
    w = w._replace(left=QUIET, turn=None, taking=None)
    name, incarnation = w.state.target
    for _ in range(ENOUGH):
        is_target = name in HONEST and w.channels[name].incarnation == incarnation and _lives(w, name)
        if not is_target or w.channels[name].run >= 0:
            return ""
        steps = [*_honest(config, w, 0), *_honest(config, w, 1)]
        obeyed = next((after for label, after, _ in steps if "takes in" not in label), None)
        turn = [after for _, after, _ in _turn(config, w)] if obeyed is None else [obeyed]
        if not turn:
            turn = [w._replace(turn=None)]
        w = turn[0]
    return f"L3 {NAMES[name]} never runs the partition"


def _steps(config: Config, w: World) -> Iterator[Step]:
    for name in HONEST:
        yield from _honest(config, w, name)
    yield from _liar(w)
    yield from _take_over(config, w)
    yield from _turn(config, w)
    if w.epoch < config.epochs:
        yield f"epoch {w.epoch + 1}", w._replace(epoch=w.epoch + 1, turn=None), ""


def _spent(w: World, fault: str) -> World | None:
    at = FAULTS.index(fault)
    return w._replace(left=_with(w.left, at, w.left[at] - 1)) if w.left[at] else None


def _with(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])


def _written(w: World, name: int, **fields: object) -> World:
    channel = w.channels[name]
    changed = channel._replace(version=channel.version + 1, **fields)  # type: ignore[arg-type]
    return w._replace(channels=_with(w.channels, name, changed))


# ---- members


def _lives(w: World, name: int) -> bool:
    channel = w.channels[name]
    return w.ids[name] == channel.incarnation and not channel.ended


def _honest(config: Config, w: World, name: int) -> Iterator[Step]:
    if not _lives(w, name):
        return
    channel, label = w.channels[name], NAMES[name]
    if 0 <= channel.run < config.deep:
        others = [n for n in HONEST if n != name and _lives(w, n) and w.channels[n].run >= 0]
        bad = f"S1 {label} and {NAMES[others[0]]} run the partition" if others else ""
        taken_in = _written(w, name, run=channel.run + 1)
        yield f"{label} takes in {channel.run}", taken_in._replace(done=max(w.done, channel.run + 1)), bad
    if channel.run == UNREAD:
        bad = "" if w.offset == w.done else f"S12 {label} begins at {w.offset}, {w.done} is the next record"
        yield f"{label} reads its offset", _written(w, name, run=w.offset), bad
    if channel.command is not None and channel.command[1] == channel.incarnation:
        if channel.command[0] == STOP:
            after = _written(w, name, run=NOTHING, command=None)
            is_own = w.owner == (name, channel.incarnation)
            after = after._replace(owner=None if is_own else w.owner)
            yield f"{label} stops", after._replace(offset=channel.run if channel.run >= 0 else w.offset), ""
        elif w.owner is not None:
            yield f"{label} refuses", _written(w, name, command=None), ""
        else:
            after = _written(w, name, run=UNREAD, command=None)
            yield f"{label} starts", after._replace(owner=(name, channel.incarnation)), ""
    if (spent := _spent(w, "expire")) is not None:
        yield f"{label}'s session ends", _gone(spent, name), ""


def _gone(w: World, name: int) -> World:
    owner = None if w.owner is not None and w.owner[0] == name else w.owner
    return w._replace(ids=_with(w.ids, name, 0), owner=owner)


def _liar(w: World) -> Iterator[Step]:
    channel = w.channels[LIAR]
    if _lives(w, LIAR) and (spent := _spent(w, "lies")) is not None:
        if channel.run != LIE:
            yield "L says that it runs it", _written(spent, LIAR, run=LIE), ""
        if channel.command is not None:
            yield "L removes its command", _written(spent, LIAR, command=None), ""
        yield "L's session ends", _gone(spent, LIAR), ""
    if (spent := _spent(w, "lies")) is not None:
        # A registration of its own making, which writes nothing out.
        new = spent.lives + 1
        lying = _gone(_written(spent, LIAR, incarnation=new, run=LIE, ended=False, command=None), LIAR)
        yield "L registers and says that it runs it", lying._replace(ids=_with(lying.ids, LIAR, new), lives=new), ""


def _take_over(config: Config, w: World) -> Iterator[Step]:
    """Another process registers under a name: channel, then state, then one multi under the channel's version."""
    taking = w.taking
    if taking is None:
        if (spent := _spent(w, "take")) is not None:
            for name in range(3):
                early = w.state.granted[name] if "early" in config.muts else -1
                first = TakeOver(name, early) if early >= 0 else TakeOver(name, -1, w.channels[name])
                yield f"a process reads for {NAMES[name]}", spent._replace(taking=first), ""
        return
    name, label = taking.name, NAMES[taking.name]
    if taking.channel is None:
        yield f"it reads the channel of {label}", w._replace(taking=taking._replace(channel=w.channels[name])), ""
        return
    if taking.granted < 0:
        read = taking._replace(granted=w.state.granted[name])
        yield "it reads the state", w._replace(taking=read), ""
        return
    before = w.channels[name]
    if before.version != taking.channel.version:
        yield f"it is refused {label}", w._replace(taking=None), ""
        return
    counts = taking.granted == before.incarnation or "takeover" in config.muts
    after, bad = _ended(config, w, name, counts)
    after = _written(after, name, incarnation=w.lives + 1, run=NOTHING, ended=False, command=None)
    after = _gone(after, name)
    after = after._replace(ids=_with(after.ids, name, w.lives + 1), lives=w.lives + 1, taking=None)
    yield f"it has the name {label}", after, bad


def _ended(config: Config, w: World, name: int, counts: bool) -> tuple[World, str]:
    """What the end of an incarnation writes besides its channel."""
    if not counts and "owners" not in config.muts:
        return w, ""
    run, bad = w.channels[name].run, ""
    if w.owner is not None and run != NOTHING and w.owner[0] != name:
        bad = f"S12 the end of {NAMES[name]} removes the owner znode of {NAMES[w.owner[0]]}"
    owner = None if run != NOTHING else w.owner
    return w._replace(owner=owner, offset=run if run >= 0 and counts else w.offset), bad


# ---- the coordinator


def _turn(config: Config, w: World) -> Iterator[Step]:
    turn = w.turn
    if turn is None:
        yield "a turn reads the state", w._replace(turn=Seen(w.state)), ""
    elif not turn.channels:
        yield "it reads the channels", w._replace(turn=turn._replace(channels=w.channels)), ""
    else:
        yield from _decided(config, w._replace(turn=None), turn)


def _decided(config: Config, w: World, seen: Seen) -> Iterator[Step]:
    """The rest of a turn in one step: it reads ids and the owner, and commits."""
    state, channels = seen.state, seen.channels
    over = [n for n in range(3) if channels[n].incarnation != w.ids[n] and not channels[n].ended]
    if state.version != w.state.version or any(channels[n].version != w.channels[n].version for n in over):
        yield "the turn is refused", w, ""
        return
    counted = [n for n in range(3) if _counts(config, w, state, channels, n)]
    running = [n for n in counted if channels[n].run != NOTHING and not channels[n].ended]
    after, bad = w, ""
    for name in over:
        after, wrong = _ended(config, after, name, name in counted)
        after = _written(after, name, run=NOTHING, ended=True)
        bad = bad or wrong
    yield from _with_target(config, after, seen, over, running, state.target, bad)
    live = [n for n in range(3) if n not in over and not channels[n].ended and channels[n].incarnation == w.ids[n]]
    for name in live:
        target = name, channels[name].incarnation
        if target != state.target and (spent := _spent(after, "moves")) is not None:
            yield from _with_target(config, spent, seen, over, running, target, bad)
    spent = _spent(after, "evict")
    if LIAR in live and spent is not None and spent.channels[LIAR].version == channels[LIAR].version:
        evicted, wrong = _ended(config, spent, LIAR, LIAR in counted)
        evicted = _gone(_written(evicted, LIAR, run=NOTHING, ended=True, command=None), LIAR)
        yield "L is evicted", evicted._replace(state=state._replace(version=state.version + 1)), bad or wrong


def _counts(config: Config, w: World, state: State, channels: tuple[Channel, ...], name: int) -> bool:
    """Whether what a channel says of the partition counts: a command has named it to this incarnation."""
    channel = channels[name]
    if "believed" in config.muts:
        return True
    if "owned" in config.muts:
        return w.owner == (name, channel.incarnation)
    if "target" in config.muts and state.target == (name, channel.incarnation):
        return True
    return state.granted[name] == channel.incarnation


def _with_target(
    config: Config, w: World, seen: Seen, over: list[int], running: list[int], target: tuple[int, int], bad: str
) -> Iterator[Step]:
    """Ends, withdrawals, the state, a stop and a start, in one multi."""
    channels, name = seen.channels, target[0]
    granted = list(seen.state.granted)
    for n in range(3):
        pending = channels[n].command
        is_running = channels[n].run != NOTHING and n not in over
        if not is_running and (pending is None or pending[0] != START):
            granted[n] = 0
        if "shrunk" in config.muts and n != name:
            granted[n] = 0
    commands: dict[int, tuple[str, int] | None] = {}
    for n, channel in enumerate(channels):
        if channel.command is not None and (n in over or (channel.command[0] == START and n != name)):
            commands[n] = None
        elif channel.run != NOTHING and n not in over and n != name and channel.command is None:
            commands[n] = STOP, channel.incarnation
    blocked = any(n not in over for n in running) or any(c.command and c.command[0] == START for c in channels)
    if "blocking" in config.muts:
        blocked = blocked or any(c.run != NOTHING and n not in over for n, c in enumerate(channels))
    is_live = name not in over and channels[name].incarnation == target[1] == w.ids[name]
    label = "the turn"
    if not blocked and w.owner is None and is_live and channels[name].command is None and name != LIAR:
        commands[name] = START, target[1]
        granted[name] = seen.state.granted[name] if "late" in config.muts else target[1]
        label = f"the turn starts {NAMES[name]}"
    elif "late" in config.muts and name != LIAR and channels[name].run != NOTHING and name not in over:
        granted[name] = channels[name].incarnation
    for n, command in commands.items():
        if command is None and w.channels[n].command is None:
            yield "the turn is refused", w, ""  # acknowledged meanwhile
            return
        w = w._replace(channels=_with(w.channels, n, w.channels[n]._replace(command=command)))
    state = State(seen.state.version + 1, target, (granted[0], granted[1], granted[2]))
    if state._replace(version=0) == seen.state._replace(version=0) and not commands and not over:
        return
    yield f"{label}, target {NAMES[name]}", w._replace(state=state), bad


if __name__ == "__main__":
    chosen = configured(Config, sys.argv[2:])
    print(run(chosen).report(" ".join(sys.argv[1:])))
