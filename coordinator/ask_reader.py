"""Reading what stands below `sync`: asks, answers, and a leader's request to be asked again.

An ask never changes, and what is below it not once the answer is there; both come from a leader, and are untrusted: the
entries are read of one answer only, whose topics are as they are, and reading ends where they are too large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from .planning.answers import outdated_topic
from .problems import Findings
from .snapshot import AskView, SyncRequestView
from .zk.errors import BadData
from .zk.names import is_name
from .zk.paths import MEMBER_PREFIX, GroupPaths, ask_number
from .zk.records import Topic
from .zk.state import ClientSide
from .zk.store import Listing, Node, Store
from .zk.sync import (
    MAX_ANSWER_BYTES,
    MAX_MEMBER_STATE_BYTES,
    Answer,
    Ask,
    MemberAnswer,
    SyncRequest,
    decoded,
    decoded_bytes,
)

T = TypeVar("T")
Parse = Callable[[str, Node, Callable[[str, bytes], T]], T | None]

ENTRIES_AT_ONCE = 25
"""A znode may hold a megabyte whatever its parser takes."""

MOST_ASKS = 20
"""There are two or three. More are a hand's: the newest are read, and the rest when these are gone."""


class AskReader:
    """Reads the asks of one group.

    :param age_s: seconds since what a key stands for was first seen.
    """

    def __init__(self, store: Store, paths: GroupPaths, problems: Findings, age_s: Callable[..., float]) -> None:
        self._store = store
        self._paths = paths
        self._problems = problems
        self._age_s = age_s

    def read(self, listing: Listing | None, parsed: Parse[Ask]) -> tuple[AskView, ...]:
        """The asks in the order of their numbers, without the entries of their answers.

        :param listing: of `sync`.
        :param parsed: what a parser makes of a node, None when it cannot be read.
        """
        names = sorted(self._usable(listing), key=ask_number)[-MOST_ASKS:]
        if not names:
            return ()
        paths = [self._paths.ask(name) for name in names]
        answers = [self._paths.answer(name) for name in names]
        nodes = self._store.get_many([*paths, *answers])
        found = []
        for name, node, answer in zip(names, nodes, nodes[len(names) :], strict=False):
            if node is not None:
                ask = parsed(self._paths.ask(name), node, Ask.parse)
                view = AskView(name, ask, age_s=self._age_s("ask", name))
                found.append(self._with_answer(view, answer) if answer is not None else view)
        return tuple(self._with_children(found))

    def with_entries(
        self, views: Sequence[AskView], client: ClientSide | None, topics: Mapping[str, Topic]
    ) -> tuple[AskView, ...]:
        """`views` with the entries of the answer that may be adopted: of the newest ask, for topics as they are.

        :param topics: every topic there is: an answer for others is not read, for they bound what it may name.
        """
        known = (client.ask, client.failed_ask, client.floor) if client is not None else ("",)
        newest = views[-1] if views else None
        if newest is None or ask_number(newest.name) <= max(map(ask_number, known)):
            return tuple(views)
        if newest.answer is None or newest.answer.error is not None or outdated_topic(newest.answer, topics):
            return tuple(views)
        return (*views[:-1], self._with_entries(newest))

    def request(self) -> SyncRequestView | None:
        """A leader's request; one whose data cannot be read is one all the same."""
        path = self._paths.sync_request
        node = self._store.get(path)
        if node is None:
            return None
        try:
            request = SyncRequest.parse(path, node.data)
        except BadData as error:
            self._problems.report(path, str(error))
            return SyncRequestView(node.stat.version, "asked by the leader")
        by = f"{request.by}: " if request.by else ""
        return SyncRequestView(node.stat.version, f"{by}{request.reason or 'asked by the leader'}")

    def _usable(self, listing: Listing | None) -> list[str]:
        found = []
        for name in listing.names if listing is not None else ():
            if ask_number(name):
                found.append(name)
            else:
                self._problems.report(f"{self._paths.sync}/{name!a}", "no ask has such a name")
        return found

    def _with_answer(self, view: AskView, node: Node) -> AskView:
        try:
            return replace(view, answer=Answer.parse(self._paths.answer(view.name), node.data))
        except BadData as error:
            return replace(view, problem=str(error))

    def _with_children(self, views: Sequence[AskView]) -> list[AskView]:
        listings = self._store.children_many([self._paths.ask(view.name) for view in views])
        return [
            replace(view, children=tuple(sorted(listing.names)) if listing is not None else ())
            for view, listing in zip(views, listings, strict=True)
        ]

    def _with_entries(self, view: AskView) -> AskView:
        """With its entries, or with the reason why they cannot be taken."""
        consumers = [name[len(MEMBER_PREFIX) :] for name in view.children if name.startswith(MEMBER_PREFIX)]
        if view.ask is not None and len(consumers) > len(view.ask.members):
            return replace(view, answer=None, problem=f"it has {len(consumers)} entries, more than the ask has members")
        try:
            return replace(view, entries=self._entries(view, [each for each in consumers if is_name(each)]))
        except BadData as error:
            return replace(view, answer=None, problem=str(error))

    def _entries(self, view: AskView, consumers: Sequence[str]) -> Mapping[str, MemberAnswer]:
        found: dict[str, MemberAnswer] = {}
        exist = sum(map(len, view.answer.partitions.values())) if view.answer is not None else 0
        size, room = 0, 2 * exist  # what is given out twice is for the judgement to say
        for first in range(0, len(consumers), ENTRIES_AT_ONCE):
            some = consumers[first : first + ENTRIES_AT_ONCE]
            paths = [self._paths.member_answer(view.name, consumer) for consumer in some]
            for consumer, path, node in zip(some, paths, self._store.get_many(paths), strict=True):
                if node is None:
                    continue
                size += len(node.data)
                found[consumer] = _checked(path, node.data, room)
                room -= sum(map(len, found[consumer].threads.values()))
            if size > MAX_ANSWER_BYTES:
                raise BadData(f"the answer has more than {size} bytes, over the {MAX_ANSWER_BYTES} that it may have")
        return found


def _checked(path: str, data: bytes, room: int) -> MemberAnswer:
    """The entry, if it gives out no more partitions than the answer has left."""
    entry = MemberAnswer.parse(path, data, room)
    decoded(path, entry.member_state)
    if (size := decoded_bytes(entry.member_state)) > MAX_MEMBER_STATE_BYTES:
        raise BadData(f"{path} has a member state of {size} bytes, over the {MAX_MEMBER_STATE_BYTES} that it may have")
    return entry
