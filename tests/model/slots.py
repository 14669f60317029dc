"""Explicit-state model of a consistent region of slots: what is sealed below a checkpoint is what its members gave.

Every multi that succeeds has a number that rises, as a czxid does. Two names, a partition each; a name that has no
slot any more leaves its partition to the other one in the next generation. A slot contributes where it has sealed to,
and the cut is consistent when the segments below `completed` end exactly there. Claims and hand-overs are those of
every group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .search import Bounds, Result, put, search, table

NAMES = range(2)


@dataclass(frozen=True)
class Config(Bounds):
    """The modelled features, and how many faults of each kind may happen.

    :ivar deep: records of each partition.  :ivar cuts: checkpoints at most.
    :ivar expire: slots that end.  :ivar take: names that another process takes, or that rejoin.
    """

    TABLE = table(
        "slots"
    )  # an ended slot seals nothing, so that its contribution is its position: `nochannel` is spare
    deep: int = 2
    cuts: int = 2
    expire: int = 1
    take: int = 1
    lost: int = 1
    progress: int = 5
    secs: float = 120


class Slot(NamedTuple):
    """A process. `opened` of each partition that it holds what is fetched and not sealed; it is over when fenced."""

    incarnation: int
    holds: frozenset[int] = frozenset()
    opened: tuple[int, ...] = (0, 0)
    waits: int = 0  # the checkpoint whose end it waits for
    sent: tuple[int, tuple[tuple[int, int], ...]] = (0, ())  # a contribution that is on its way: checkpoint, offsets


class World(NamedTuple):
    """ZooKeeper, and what runs.

    :ivar offsets: of each partition, as sealed.  :ivar fence: the incarnation of each name's channel.
    :ivar target: the owner of each partition in this generation.  :ivar started: names with a start command for it.
    :ivar open: the checkpoint that is open, with `given` its contributions: name -> offsets; 0 without one.
    :ivar seen: what a coordinator has read before it writes: of the region `open`, and what it decided; () for none.
    """

    slots: tuple[Slot | None, ...]
    fence: tuple[int, ...]
    offsets: tuple[int, ...] = (0, 0)
    target: tuple[int, ...] = (0, 1)
    lives: tuple[int, ...] = (1, 2)  # the incarnations of the target
    open: int = 0
    next: int = 1
    given: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    ended: int = 0  # the last checkpoint that has ended
    version: int = 0  # of the region's znode
    seen: tuple[int, int] = (0, 0)  # version + 1, open: of a group's turn that is under way
    stable: bool = True  # the group's state
    born: int = 2
    faults: tuple[int, int, int] = (0, 0, 0)


def start_of(config: Config) -> World:
    slots = tuple(Slot(n + 1, frozenset([n])) for n in NAMES)
    return World(slots, (1, 2), faults=(config.expire, config.take, config.lost))


def steps(config: Config, w: World) -> Iterator[tuple[str, World, str]]:
    """Every step from a state, with what it violates."""
    for name in NAMES:
        yield from _slot(config, w, name)
    yield from _faults(config, w)
    yield from _group(config, w)
    yield from _region(config, w)


def _put(w: World, name: int, slot: Slot | None) -> World:
    return w._replace(slots=put(w.slots, name, slot))


def _slot(config: Config, w: World, name: int) -> Iterator[tuple[str, World, str]]:
    slot = w.slots[name]
    if slot is None:
        return
    is_fenced = w.fence[name] != slot.incarnation
    for part in sorted(slot.holds):
        fetched = w.offsets[part] + slot.opened[part]
        if not slot.waits and fetched < config.deep:
            more = tuple(count + (p == part) for p, count in enumerate(slot.opened))
            yield f"{name} fetches {part}", _put(w, name, slot._replace(opened=more)), ""
        may_seal = not slot.waits or config.mut == "unsealed"
        if may_seal and slot.opened[part] and not is_fenced:  # one multi under its fence
            yield f"{name} seals {part}", _sealed(w, name, slot, part), ""
    is_told = not is_fenced and w.lives[name] == slot.incarnation
    has_given = any(who == name for who, _ in w.given)
    is_sealed = not any(slot.opened) or config.mut == "unsealed"
    runs_target = slot.holds == frozenset(p for p in NAMES if w.target[p] == name)
    if w.open and is_told and not slot.waits and not has_given and is_sealed and runs_target and not slot.sent[0]:
        offsets = tuple((part, w.offsets[part] + slot.opened[part]) for part in sorted(slot.holds))
        yield f"{name} drains for {w.open}", _put(w, name, slot._replace(waits=w.open, sent=(w.open, offsets))), ""
    if slot.sent[0]:
        yield from _contribute(config, w, name, slot, is_fenced)
    if slot.waits and not slot.sent[0] and (slot.waits <= w.ended or config.mut == "clock"):
        yield f"{name} resumes", _put(w, name, slot._replace(waits=0)), ""
    if is_fenced:
        yield f"{name} finds that it is over", _put(w, name, None), ""


def _sealed(w: World, name: int, slot: Slot, part: int) -> World:
    offsets = tuple(offset + (slot.opened[p] if p == part else 0) for p, offset in enumerate(w.offsets))
    opened = tuple(0 if p == part else count for p, count in enumerate(slot.opened))
    return _put(w._replace(offsets=offsets), name, slot._replace(opened=opened))


def _contribute(config: Config, w: World, name: int, slot: Slot, is_fenced: bool) -> Iterator[tuple[str, World, str]]:
    """One multi: the checkpoint is open, the channel is this incarnation's, the contribution is made."""
    checkpoint, offsets = slot.sent
    done = _put(w, name, slot._replace(sent=(0, ())))
    is_open = w.open == checkpoint or config.mut == "nocut"
    is_own = not is_fenced or config.mut == "nochannel"
    is_new = not any(who == name for who, _ in w.given)
    if w.open and is_open and is_own and is_new:
        given = tuple(sorted([*w.given, (name, offsets)]))
        yield f"{name} contributes {dict(offsets)}", done._replace(given=given), ""
    else:
        yield f"{name} is refused", done, ""


def _faults(config: Config, w: World) -> Iterator[tuple[str, World, str]]:
    expire, take, lost = w.faults
    for name in NAMES:
        slot = w.slots[name]
        if slot is not None and expire:
            gone = w._replace(faults=(expire - 1, take, lost), fence=put(w.fence, name, 0))
            yield f"{name} ends", _put(gone, name, None), ""
        if slot is not None and lost and w.fence[name] == slot.incarnation:  # its session ends; it does not know yet
            yield f"{name} is evicted", w._replace(faults=(expire, take, lost - 1), fence=put(w.fence, name, 0)), ""
        if take and (slot is None or w.fence[name] != slot.incarnation):
            came = w._replace(faults=(expire, take - 1, lost), fence=put(w.fence, name, w.born + 1), born=w.born + 1)
            yield f"{name} rejoins", _put(came, name, Slot(w.born + 1)), ""


def _group(config: Config, w: World) -> Iterator[tuple[str, World, str]]:
    """A turn of the group reads the region first, and writes a generation, or that a name has another incarnation."""
    there = [name for name in NAMES if w.fence[name]]
    wanted = tuple(part if part in there else there[0] if there else -1 for part in NAMES)
    lives = tuple(w.fence[name] for name in NAMES)
    is_news = lives != w.lives
    if is_news and w.seen != (w.version + 1, w.open):
        yield "group reads", w._replace(seen=(w.version + 1, w.open)), ""
    if is_news and w.seen[0]:
        is_current = w.seen[0] == w.version + 1 or config.mut == "noregion"
        is_generation = wanted != w.target
        leaves = config.mut == ("unaborted" if is_generation else "bounce")
        after = w._replace(target=wanted, lives=lives, seen=(0, 0), stable=False)
        if not leaves and w.seen[1] and w.seen[1] == w.open:
            after = after._replace(open=0, given=(), ended=w.open, version=w.version + 1)
        yield "group writes", after if is_current else w._replace(seen=(0, 0)), ""
    if not w.stable and not is_news and _runs_target(w):
        yield "group is Stable", w._replace(stable=True), ""
    for name in there:
        slot = w.slots[name]
        if slot is None or slot.incarnation != w.fence[name] or w.lives[name] != slot.incarnation:
            continue
        mine = frozenset(part for part in NAMES if w.target[part] == name)
        if gone := slot.holds - mine:
            opened = tuple(0 if part in gone else count for part, count in enumerate(slot.opened))
            yield f"{name} stops", _put(w, name, slot._replace(holds=slot.holds & mine, opened=opened, waits=0)), ""
        elif free := mine - slot.holds - _held(w):
            yield f"{name} starts", _put(w, name, slot._replace(holds=slot.holds | free, waits=0)), ""


def _held(w: World) -> frozenset[int]:
    """Partitions of channels that live: those of one that is fenced were given up with it."""
    return frozenset().union(
        *(slot.holds for n, slot in enumerate(w.slots) if slot is not None and w.fence[n] == slot.incarnation)
    )


def _runs_target(w: World) -> bool:
    return all(
        slot is not None and slot.holds == frozenset(part for part in NAMES if w.target[part] == name)
        for name, slot in enumerate(w.slots)
        if w.fence[name]
    )


def _region(config: Config, w: World) -> Iterator[tuple[str, World, str]]:
    if not w.open and w.next <= config.cuts and w.stable and any(w.lives):
        yield f"checkpoint {w.next} begins", w._replace(open=w.next, next=w.next + 1, version=w.version + 1), ""
    ended = w._replace(open=0, given=(), ended=w.open, version=w.version + 1)
    members = [name for name in NAMES if w.lives[name]]
    is_complete = w.open and all(any(who == name for who, _ in w.given) for name in members)
    if w.open and (is_complete or (config.mut == "incomplete" and w.given)):
        cut = dict.fromkeys(NAMES, 0) | {part: offset for _, offsets in w.given for part, offset in offsets}
        sealed = dict(enumerate(w.offsets))
        bad = "" if cut == sealed else f"S11: cut {cut}, and sealed below it is {sealed}"
        yield f"checkpoint {w.open} completes", ended, bad
    if w.open:
        yield f"checkpoint {w.open} is aborted", ended, ""


def _stuck(config: Config, w: World) -> str:
    """Without faults, all records get sealed, also those that were open."""
    calm = w._replace(faults=(0, 0, 0))
    if not any(w.fence):
        return ""
    seen, waiting = {calm}, [calm]
    while waiting:
        here = waiting.pop()
        if all(offset == config.deep for offset in here.offsets):
            return ""
        for _, after, _ in steps(config, here):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return "L6: nothing is sealed any more"


def run(config: Config) -> Result:
    """Search all interleavings."""

    def stuck(w: World) -> str:
        return _stuck(config, w)

    most = config.progress, config.max, config.secs
    return search(start_of(config), lambda w: steps(config, w), stuck, *most, lambda w: w._replace(faults=(0, 0, 0)))
