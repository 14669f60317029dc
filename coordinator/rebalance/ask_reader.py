"""Reading `sync`: asks, answers, and a leader's request for another ask.

An ask never changes, and its answer is immutable too; both come from a leader, and are untrusted: entries are read of
one answer only, whose topics are current, and reading stops at a size limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..planning.answers import outdated_topic
from ..planning.snapshot import RequestView, SyncRequestView
from ..term.reading import GroupMemory
from ..zk.errors import BadData
from ..zk.store import Listing, Node, existing_nodes
from ..zk.values import in_chunks
from ..zk.znodes.group_state import (
    MAX_ANSWER_BYTES,
    MAX_MEMBER_STATE_BYTES,
    Answer,
    Ask,
    ClientSide,
    MemberAnswer,
    SyncRequest,
    decoded,
    decoded_bytes,
)
from ..zk.znodes.paths import MAX_NAME, MEMBER_PREFIX, GroupPaths, ask_number, is_name, shown
from ..zk.znodes.records import Topic

ENTRIES_AT_ONCE = 25
"""A znode may hold a megabyte, independent of its parser's limit."""

MOST_ASKS = 20
"""There are two or three. More come from an operator: the newest are read, and the rest after their removal."""


class AskReader:
    """Reads the asks of one group."""

    def __init__(self, memory: GroupMemory, paths: GroupPaths) -> None:
        self._memory = memory
        self._store = memory.store
        self._paths = paths

    def read(self, listing: Listing | None) -> tuple[RequestView, ...]:
        """The asks by number, without the entries of their answers.

        :param listing: of `sync`.
        """
        names = sorted(self._usable(listing), key=ask_number)[-MOST_ASKS:]
        if not names:
            return ()
        paths = [self._paths.ask(name) for name in names]
        answers = [self._paths.answer(name) for name in names]
        nodes = self._store.get_many([*paths, *answers])
        asks = [
            (name, self._memory.parsed(self._paths.ask(name), node, Ask.parse), answer)
            for name, node, answer in zip(names, nodes, nodes[len(names) :], strict=False)
            if node is not None
        ]
        listings = self._store.children_many([self._paths.ask(name) for name, _, _ in asks])
        return tuple(self._view(*each, listing) for each, listing in zip(asks, listings, strict=True))

    def with_entries(
        self, views: Sequence[RequestView], client: ClientSide | None, topics: Mapping[str, Topic]
    ) -> tuple[RequestView, ...]:
        """`views` with the entries of the answer that may be adopted: the newest ask's, if its topics are current.

        :param topics: all topics: they bound the partitions of an answer, and an answer for others is not read.
        """
        handled = (client.ask, client.failed_ask, client.floor) if client is not None else ("",)
        newest = views[-1] if views else None
        if newest is None or ask_number(newest.name) <= max(map(ask_number, handled)):
            return tuple(views)
        if newest.answer is None or newest.answer.error is not None or outdated_topic(newest.answer, topics):
            return tuple(views)
        return (*views[:-1], self._with_entries(newest))

    def request(self) -> SyncRequestView | None:
        """A leader's request, also when its data is unreadable."""
        path = self._paths.sync_request
        node = self._store.get(path)
        if node is None:
            return None
        request = self._memory.parsed(path, node, SyncRequest.parse) or SyncRequest()
        by = f"{request.by}: " if request.by else ""
        return SyncRequestView(node.stat.version, f"{by}{request.reason or 'asked by the leader'}")

    def _usable(self, listing: Listing | None) -> list[str]:
        found = []
        for name in listing.names if listing is not None else ():
            if ask_number(name):
                found.append(name)
            else:
                self._memory.problems.report(f"{self._paths.sync}/{shown(name, MAX_NAME)}", "invalid name of an ask")
        return found

    def _view(self, name: str, ask: Ask | None, answer: Node | None, listing: Listing | None) -> RequestView:
        children = tuple(sorted(listing.names)) if listing is not None else ()
        view = RequestView(name, ask, children=children, age_s=self._memory.age_s("ask", name))
        try:
            return replace(view, answer=Answer.parse(self._paths.answer(name), answer.data)) if answer else view
        except BadData as error:
            return replace(view, problem=str(error))

    def _with_entries(self, view: RequestView) -> RequestView:
        """With its entries, or with the reason why they cannot be read."""
        consumers = [name[len(MEMBER_PREFIX) :] for name in view.children if name.startswith(MEMBER_PREFIX)]
        if view.ask is not None and len(consumers) > len(view.ask.members):
            return replace(view, answer=None, problem=f"it has {len(consumers)} entries, more than the ask has members")
        try:
            return replace(view, entries=self._entries(view, [each for each in consumers if is_name(each)]))
        except BadData as error:
            return replace(view, answer=None, problem=str(error))

    def _entries(self, view: RequestView, consumers: Sequence[str]) -> Mapping[str, MemberAnswer]:
        found: dict[str, MemberAnswer] = {}
        exist = sum(map(len, view.answer.partitions.values())) if view.answer is not None else 0
        size, room = 0, 2 * exist  # the verdict finds duplicates
        for batch in in_chunks(consumers, ENTRIES_AT_ONCE):
            nodes = existing_nodes(self._store, batch, partial(self._paths.member_answer, view.name))
            for consumer, path, node in nodes:
                size += len(node.data)
                found[consumer] = _checked(path, node.data, room)
                room -= sum(map(len, found[consumer].threads.values()))
            if size > MAX_ANSWER_BYTES:
                raise BadData(f"the answer has more than {size} bytes, over the {MAX_ANSWER_BYTES} that it may have")
        return found


def _checked(path: str, data: bytes, room: int) -> MemberAnswer:
    """The entry, if its partitions fit into the rest of the answer's."""
    entry = MemberAnswer.parse(path, data, room)
    decoded(path, entry.member_state)
    if (size := decoded_bytes(entry.member_state)) > MAX_MEMBER_STATE_BYTES:
        raise BadData(f"{path} has a member state of {size} bytes, over the {MAX_MEMBER_STATE_BYTES} that it may have")
    return entry
