"""The listeners of groups and group members (sources D17, D18): the registrations of each group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ..planning.rebalance_history import changes_between
from ..term.directory import Directory
from ..term.reading import Findings
from ..term.request_queue import GroupTurn, Pace
from ..term.term import Term
from ..zk.errors import BadData
from ..zk.store import Node
from ..zk.values import in_chunks
from ..zk.znodes.paths import GROUPS, GroupPaths
from ..zk.znodes.records import Registration
from .topics import RequestTurn

log = logging.getLogger(__name__)

REGISTRATIONS_AT_ONCE = 500
BYTES_AT_ONCE = 4_000_000
"""Of one group's registrations; then the listeners continue with other groups."""
READ_AT_ONCE = 50
MEMBERS_READ = "members read"
READS, READ_GAP_S, LONGEST_READ_PAUSE_S = 50, 1.0, 1.0
"""Reads of a group for events less than `READ_GAP_S` apart that come without a pause: a member may change its
registration in a loop."""


class _Known(NamedTuple):
    """A registration, as last read.

    :ivar life: its czxid, and its mzxid.  :ivar problem: why it cannot be read, empty when it can.
    """

    life: tuple[int, int]
    registration: Registration | None
    problem: str = ""


@dataclass(slots=True)
class _Group:
    """The registrations of a group.

    :ivar known: by name, while the watch that was set with the read has not fired.
    :ivar members: czxid and mzxid of each; None before the first read.
    :ivar pace: of the reads for events.
    :ivar steps: a read in progress.  :ivar is_behind: whether data has changed that it may have read
        already; `is_all_behind` whether all is to be read again.
    """

    findings: Findings
    known: dict[str, _Known] = field(default_factory=dict)
    members: Mapping[str, tuple[int, int]] | None = None
    steps: Iterator[None] | None = None
    is_behind: bool = False
    is_all_behind: bool = False
    pace: Pace = field(default_factory=lambda: Pace(READS, READ_GAP_S, LONGEST_READ_PAUSE_S))


class MemberListener:
    """Reads the registrations of groups and sets their watches, and requests turns of the groups that changed.

    :param on_members: the watch on `ids`, and on each registration.
    :param later: called with a group whose read is to be continued.
    """

    def __init__(
        self,
        term: Term,
        directory: Directory,
        request_turn: RequestTurn,
        on_members: Callable[[str], None],
        later: Callable[[str], None],
    ) -> None:
        self._term = term
        self._store = term.store
        self._directory = directory
        self._request_turn = request_turn
        self._on_members = on_members
        self._later = later
        self._lock = term.runtime.lock()
        self._groups: dict[str, _Group] = {}  # changed by the listeners' thread only

    def fired(self, path: str) -> str:
        """The watch on `.../groups/[group]/ids`, or on `.../ids/[consumer]`, has fired.

        :returns: the group.
        """
        group, _, name = path[len(GROUPS) + 1 :].partition("/")
        with self._lock:
            if (known := self._groups.get(group)) is not None:
                known.known.pop(name.removeprefix("ids/"), None)
        return group

    def listed(self, names: Iterable[str]) -> tuple[list[str], list[str]]:
        """These groups exist; returns the new ones, and those that are gone."""
        new, gone = self._directory.listed(names)
        for group in gone:
            self._groups.pop(group).findings.forget()
        for group in new:
            self._groups[group] = _Group(Findings(self._term.problems))
        for group in gone:
            self._directory.forget(group)
        return new, gone

    def read_changed(self, name: str) -> float:
        """Read a group whose watch has fired; returns 0, or the time before which it is not to be read.

        No watch is set until then: so an event costs a request only when it is its turn.
        """
        now, group = self._term.runtime.monotonic(), self._groups.get(name)
        if group is not None and group.pace.until > now:
            return group.pace.until
        self.read([name])
        if group is not None and group.pace.taken(now):
            log.warning("registrations paced: group=%s reads=%d", name, group.pace.count)
        return 0.0

    def read(self, groups: Sequence[str], is_all: bool = False) -> None:
        """Read `groups`; of one with many registrations the first ones.

        :param is_all: read unchanged registrations again, because a watch may be lost.
        """
        there = [name for name in groups if name in self._groups]
        listings = self._store.children_many([GroupPaths(name).ids for name in there], watch=self._on_members)
        room = REGISTRATIONS_AT_ONCE
        for name, listing in zip(there, listings, strict=True):
            group = self._groups[name]
            if group.steps is not None:
                group.is_behind, group.is_all_behind = True, group.is_all_behind or is_all
                continue
            consumers = group.findings.listed(GroupPaths(name).ids, listing)
            if consumers is None:  # the members stay as they were, and turns fail
                group.findings.done()
                group.members = group.members or {}
                continue
            group.steps = self._steps(name, group, consumers, is_all)
            if room > 0:
                self._step(name)
            else:
                self._later(name)
            room -= len(consumers)

    def go_on(self, name: str) -> None:
        """Continue the read of a group; begin one where none is in progress."""
        group = self._groups.get(name)
        if group is not None and group.steps is None:
            is_all, group.is_all_behind = group.is_all_behind, False
            self.read([name], is_all)
        else:
            self._step(name)

    def _step(self, name: str) -> None:
        group = self._groups.get(name)
        steps = group.steps if group is not None else None
        if group is None or steps is None:
            return
        group.steps = None  # an error ends it: the event is handled again
        for _ in steps:
            group.steps = steps
            self._later(name)
            return
        if group.is_behind:
            group.is_behind = False
            self._later(name)

    def _steps(self, name: str, group: _Group, consumers: Sequence[str], is_all: bool) -> Iterator[None]:
        """`GroupMemberChangeListener` (sources D18); a member is (name, czxid), and its data may change in place."""
        paths = GroupPaths(name)
        if is_all:
            yield from _in_steps(consumers, lambda some: self._forget_changed(paths, group, some))
        with self._lock:
            members = {consumer: group.known[consumer] for consumer in consumers if consumer in group.known}
        unknown = [consumer for consumer in consumers if consumer not in members]
        yield from _in_steps(unknown, lambda some: self._read_some(paths, group, some, members))
        for consumer, known in sorted(members.items()):
            if known.problem:
                group.findings.report(paths.id(consumer), known.problem)
        self._directory.update(name, [known.registration for known in members.values()])
        group.findings.done()
        before, after = group.members, {consumer: known.life for consumer, known in members.items()}
        with self._lock:
            group.known = {consumer: known for consumer, known in group.known.items() if consumer in members}
            group.members = after
        if after != before:
            self._request_turn(GroupTurn(name), changes_between(before or {}, after) or MEMBERS_READ)

    def _forget_changed(self, paths: GroupPaths, group: _Group, consumers: Sequence[str]) -> int:
        """Forget registrations whose watch was lost, to read them again: one request without watches shows the changes.

        :returns: the bytes that were read.
        """
        nodes = self._store.get_many([paths.id(consumer) for consumer in consumers])
        with self._lock:
            for consumer, node in zip(consumers, nodes, strict=True):
                known = group.known.get(consumer)
                if known is not None and (node is None or known.life != (node.stat.czxid, node.stat.mzxid)):
                    del group.known[consumer]
        return sum(len(node.data) for node in nodes if node is not None)

    def _read_some(self, paths: GroupPaths, group: _Group, consumers: Sequence[str], members: dict[str, _Known]) -> int:
        """Read registrations with watches, into `members`. One whose watch fires meanwhile stays unknown.

        :returns: the bytes that were read.
        """
        unread = _Known((0, 0), None)
        with self._lock:
            group.known |= dict.fromkeys(consumers, unread)
        try:
            nodes = self._store.get_many([paths.id(consumer) for consumer in consumers], watch=self._on_members)
        except BaseException:
            with self._lock:
                for consumer in consumers:
                    group.known.pop(consumer, None)
            raise
        found = {
            consumer: _known(paths.id(consumer), node)
            for consumer, node in zip(consumers, nodes, strict=True)
            if node is not None
        }
        members |= found
        with self._lock:
            for consumer in consumers:
                if group.known.get(consumer) is unread:
                    del group.known[consumer]
                    with suppress(KeyError):
                        group.known[consumer] = found[consumer]
        return sum(len(node.data) for node in nodes if node is not None)


def _in_steps(names: Sequence[str], read: Callable[[Sequence[str]], int]) -> Iterator[None]:
    """Read some of `names` at once; yields where other groups have their turn.

    :param read: returns the bytes that it has read.
    """
    room, left = REGISTRATIONS_AT_ONCE, BYTES_AT_ONCE
    for some in in_chunks(names, READ_AT_ONCE):
        if room <= 0 or left <= 0:
            yield
            room, left = REGISTRATIONS_AT_ONCE, BYTES_AT_ONCE
        left -= read(some)
        room -= len(some)


def _known(path: str, node: Node) -> _Known:
    life = (node.stat.czxid, node.stat.mzxid)
    try:
        return _Known(life, Registration.parse(path, node.data))
    except BadData as error:
        return _Known(life, None, str(error))
