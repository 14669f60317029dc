"""The observer of a drill: a session with a recursive watch, which gets each change of a znode; and the transactions of
ZooKeeper, reconstructed from its events and the records of ZooKeeper's clients.

A replacement for `checker.replay.txn_log` where transaction logs are not readable. The observer gets the path and kind
of each change, and the zxid of its transaction. The transaction's content is in the recorded commit whose reply had
that zxid. A commit without a recorded reply may have been applied, too: then its changes match a transaction without
another author. Ephemerals removed together, without a commit, went with their session. Any other transaction
is unknown, and ends the history: a shorter history proves less, but nothing false.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from zk_group.coordinator.zk.errors import BadData, StoreError
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import SessionState, TreeEvent

from ..checker.replay.commits import HAND
from ..environments.base import OPERATOR, DrillAccess, connect_string
from ..faults.proxy import ZxidClock
from .files import Event

Change = tuple[str, str]
"""The kind of a watch event, and the path below the chroot."""

Who = Mapping[int, str]
"""Session -> process."""

_KIND_OF = {"create": "created", "set": "changed", "delete": "deleted"}
_SEQUENCE = 10
"""ZooKeeper's suffix of a sequential znode's path."""


@dataclass(slots=True)
class Written:
    """A recorded commit.

    :ivar at: when it was sent.
    :ivar after: the zxid of its session's last reply then.  :ivar before: of a later commit of its session.
    :ivar ops: as in a history; with the created paths where it has a reply.
    :ivar zxid: of its reply; 0 without one.
    """

    at: float
    session: int
    after: int
    ops: list[Event]
    zxid: int = 0
    before: float = float("inf")


@dataclass(slots=True)
class Writes:
    """The records of all sessions.

    :ivar sessions: the events `session`, without `who`.
    :ivar closing: session -> when its process began to close it.
    """

    sessions: dict[int, Event] = field(default_factory=dict)
    closing: dict[int, float] = field(default_factory=dict)
    commits: list[Written] = field(default_factory=list)


def writes_in(folder: Path, chroot: str) -> Writes:
    """The records in a folder; an incomplete last line is a killed process's.

    :param chroot: only znodes below it, with relative paths.
    :raises BadData: when one is malformed.
    :raises OSError: when one cannot be read.
    """
    found = Writes()
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        try:
            _add(found, int(path.stem, 16), [json.loads(line) for line in lines if line.endswith(b"\n")])
        except (ValueError, KeyError, TypeError) as error:
            raise BadData(f"unreadable record {path.name}: {error!r}") from error
    for each in found.commits:
        below = [op for op in each.ops if op["path"].startswith(f"{chroot}/")]
        each.ops = [op | {"path": op["path"].removeprefix(chroot)} for op in below]
    return found


def _add(found: Writes, session: int, events: Sequence[Event]) -> None:
    pending: dict[int, Written] = {}
    for event in events:
        kind, number = event["event"], event.get("number", 0)
        if kind == "session":
            found.sessions[session] = {**event, "session": session}
        elif kind == "closing":
            found.closing[session] = event["at"]
        elif kind == "asked":
            pending[number] = Written(event["at"], session, event["after"], event["ops"])
        elif kind == "refused":
            del pending[number]
        elif kind == "done":
            done, paths = pending.pop(number), event["paths"]
            done.zxid = event["zxid"]
            done.ops = [_created(op, path) if path else op for op, path in zip(done.ops, paths, strict=True)]
            found.commits.append(done)
            for earlier in [each for each in pending.values() if each.at < done.at]:
                earlier.before = min(earlier.before, done.zxid)  # a session's requests are done in order
    found.commits += pending.values()


def _created(op: Event, path: str) -> Event:
    return {name: value for name, value in op.items() if name != "sequential"} | {"path": path}


class Unexplained(Exception):
    """A transaction cannot be reconstructed."""


@dataclass(slots=True)
class Observed:
    """The reconstruction.

    :ivar events: in the format of `events_of`; the last is `end` after an unexplained transaction.
    :ivar problem: the unexplained transaction; "" without one.
    """

    events: list[Event] = field(default_factory=list)
    problem: str = ""

    def end(self, at: float, problem: str) -> None:
        """Later events are unknown."""
        self.problem = problem
        self.events.append({"at": at, "who": "server", "event": "end"})


def observed(
    writes: Writes, seen: Sequence[TreeEvent], clock: ZxidClock, who: Who, chroot: str, since: int, until: int
) -> Observed:
    """The events `session`, `commit` and `closed` of a drill.

    :param seen: the observer's events: every change of znodes below `chroot` after `since` and up to `until`.
    :param who: unknown sessions are `hand`.
    """
    result = Observed([{**each, "who": who.get(session, HAND)} for session, each in writes.sessions.items()])
    if any(event.zxid <= 0 for event in seen):
        result.end(0.0, "watch events have no zxid: ZooKeeper 3.9 or newer is needed")
        return result
    zxids = {event.zxid for event in seen} | {each.zxid for each in writes.commits}
    changed: dict[int, list[Change]] = {zxid: [] for zxid in sorted(zxids) if since < zxid <= until}
    for event in seen:
        if event.zxid in changed and event.path.startswith(f"{chroot}/"):
            changed[event.zxid].append((event.kind, event.path.removeprefix(chroot)))
    join = _Join(writes, clock, who)
    for zxid, changes in changed.items():
        try:
            result.events += join.event(zxid, changes)
        except Unexplained as why:
            result.end(clock.at(zxid), f"the transaction at zxid 0x{zxid:x} cannot be reconstructed: {why}")
            break
    return result


class _Join:
    """Processes the transactions in order, and tracks the ephemerals."""

    def __init__(self, writes: Writes, clock: ZxidClock, who: Who) -> None:
        self._writes = writes
        self._clock = clock
        self._who = who
        self._answered = {each.zxid: each for each in writes.commits if each.zxid}
        self._unanswered = [each for each in writes.commits if not each.zxid]
        self._last = {self._answered[zxid].session: zxid for zxid in sorted(self._answered)}
        self._owners: dict[str, int] = {}

    def event(self, zxid: int, changes: list[Change]) -> list[Event]:
        """The events of a transaction; empty for irrelevant ones.

        :raises Unexplained: when it cannot be reconstructed.
        """
        written = self._answered.get(zxid)
        if written is not None and [(_KIND_OF[op["op"]], op["path"]) for op in _changing(written)] != changes:
            raise Unexplained("the watch events do not match the recorded commit")
        if written is None and changes:
            written = self._lost(zxid, changes)
        if written is not None:
            return self._commit(zxid, written)
        return [self._closed(zxid, changes)] if changes else []

    def _commit(self, zxid: int, written: Written) -> list[Event]:
        for op in written.ops:
            if op["op"] == "delete":
                self._owners.pop(op["path"], None)
            elif op.get("ephemeral"):
                self._owners[op["path"]] = written.session
        return [{**self._frame(zxid, written.session, "commit"), "ops": written.ops}] if written.ops else []

    def _frame(self, zxid: int, session: int, event: str) -> Event:
        who = self._who.get(session, HAND)
        return {"at": self._clock.at(zxid), "who": who, "event": event, "session": session, "zxid": zxid}

    def _closed(self, zxid: int, changes: list[Change]) -> Event:
        """The end of the session that owned exactly these ephemerals, and has no later transaction.

        :raises Unexplained: when there is none: a foreign client has written.
        """
        paths = [path for _, path in changes]
        session = self._owners.get(paths[0])
        its = {path for path, owner in self._owners.items() if owner == session}
        is_end = all(kind == "deleted" for kind, _ in changes) and its == set(paths)
        if session is None or not is_end or self._last.get(session, 0) > zxid:
            more = f" and {len(paths) - 1} more" if paths[1:] else ""
            raise Unexplained(f"a stranger wrote {paths[0]}{more}")
        for path in paths:
            del self._owners[path]
        # A session whose close was lost expires later than this after the request.
        soon_s = self._writes.sessions[session]["timeout"] / 2
        is_closed = 0 <= self._clock.at(zxid) - self._writes.closing.get(session, float("-inf")) < soon_s
        why = "closed" if is_closed else "expired"
        return {**self._frame(zxid, session, "closed"), "why": why, "paths": paths}

    # ---- a commit without a reply

    def _lost(self, zxid: int, changes: list[Change]) -> Written | None:
        """The matching commit without a reply.

        :raises Unexplained: when several of them match, and differ.
        """
        fitting = [one for each in self._unanswered if (one := self._fitting(each, zxid, changes)) is not None]
        if any((other.session, other.ops) != (fitting[0].session, fitting[0].ops) for other in fitting[1:]):
            raise Unexplained(f"{len(fitting)} commits without a reply match these changes")
        if not fitting:
            return None
        found = fitting[0]
        # A session's requests are done in order.
        self._unanswered = [each for each in self._unanswered if each.session != found.session or each.at > found.at]
        self._last[found.session] = max(self._last.get(found.session, 0), zxid)
        return found

    def _fitting(self, written: Written, zxid: int, changes: list[Change]) -> Written | None:
        """The commit with its created paths; None when it does not match the transaction."""
        if not written.after < zxid < written.before or written.at > self._clock.at(zxid):
            return None
        asked = _changing(written)
        if len(asked) != len(changes) or not all(map(_is_of, asked, changes)):
            return None
        paths = iter(path for _, path in changes)
        ops = [_created(op, next(paths)) if op["op"] in _KIND_OF else op for op in written.ops]
        return Written(written.at, written.session, written.after, ops)


def _changing(written: Written) -> list[Event]:
    return [op for op in written.ops if op["op"] in _KIND_OF]


def _is_of(op: Event, change: Change) -> bool:
    """Whether a change is that of the operation."""
    kind, path = change
    if op.get("sequential"):
        name, digits = path[:-_SEQUENCE], path[-_SEQUENCE:]
        return kind == "created" and name == op["path"] and digits.lstrip("-").isdigit()
    return (kind, path) == (_KIND_OF[op["op"]], op["path"])


SESSION_MS = 30_000
LOST = "the observer has lost its connection to ZooKeeper: later changes are unknown"


@dataclass(eq=False)
class WatchObserver:
    """Watches the subtrees of some znodes, from `__enter__` until its events are read.

    :ivar addresses: of the servers.
    :ivar clock: sees the packets of the drill's processes, and this session's events.
    :ivar roots: the full paths of the watched subtrees.
    :ivar chroot: the prefix that events omit from their paths.
    :ivar writes: the folder in which every session of the drill records its commits.
    :ivar access: its credentials and TLS.
    :ivar seen: the events so far.  :ivar is_lost: whether it gets no more.
    :ivar missing: why changes are unknown; "" otherwise.
    """

    addresses: Sequence[str]
    clock: ZxidClock
    roots: Sequence[str]
    chroot: str
    writes: str
    access: DrillAccess = field(default_factory=DrillAccess)
    seen: list[TreeEvent] = field(default_factory=list)
    is_lost: bool = False
    missing: str = ""
    _is_over: bool = False
    _since: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        """
        :raises ZooKeeperUnreachable: when no server answers.
        :raises StoreError: when the server has no such watches.
        """
        hosts, access = connect_string(self.addresses, ""), self.access.to_servers(OPERATOR)
        with ExitStack() as stack:
            self._store = open_kazoo(hosts, SESSION_MS, make_chroot=False, access=access)
            stack.callback(self._close)
            self._store.add_listener(self._on_state)
            for root in self.roots:
                self._store.watch_tree(root, self._on_event)
            self._since = self._store.last_zxid
            self._stack = stack.pop_all()
        return self

    def events(self, who: Who) -> list[Event]:
        """The transactions of ZooKeeper until now; ends the watch."""
        until = 0
        try:
            self._store.sync()
            self._store.get(self.roots[0])
            until = self._store.last_zxid  # events up to it came before the reply
        except StoreError:
            self.is_lost = True
        self._close()
        if self.is_lost:
            until = self.seen[-1].zxid - 1 if self.seen else self._since
        try:
            writes, problem = writes_in(Path(self.writes), self.chroot), LOST if self.is_lost else ""
        except (BadData, OSError) as error:
            writes, problem, until = Writes(), str(error), 0
        found = observed(writes, self.seen, self.clock, who, self.chroot, self._since, until)
        if problem and not found.problem:
            found.end(self.clock.at(until + 1), problem)
        self.missing = found.problem
        return found.events

    def _on_state(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED and not self._is_over:
            self.is_lost = True

    def _on_event(self, event: TreeEvent) -> None:
        self.clock.saw(event.zxid)
        self.seen.append(event)

    def _close(self) -> None:
        """End the session; its events so far have arrived when this returns."""
        self._is_over = True
        self._store.close()

    def __exit__(self, *error: object) -> None:
        self._stack.close()
