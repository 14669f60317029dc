"""Holes of the draft, opened again with more than an edit of the source (`holes.txt` has the others)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consumer.membership.member import CommandDrain
from coordinator.listeners.listeners import Listeners
from coordinator.listeners.topics import Interests, TopicListener
from tests.simulation.mutation import Patch, replaced
from tests.support.terms import with_store

# ---- 2: watches are set after the read


class _WatchesLate:
    """Answers with what was read before the watch was set."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def children(self, path: str, watch: Any = None) -> Any:
        found = self._store.children(path)
        if watch is not None:
            self._store.children(path, watch)
        return found

    def get_many(self, paths: Any, watch: Any = None) -> Any:
        found = self._store.get_many(paths)
        if watch is not None:
            self._store.get_many(paths, watch)
        return found


def _watching_late(original: Any) -> Any:
    def init(self: Listeners, term: Any, *rest: Any) -> None:
        original(self, with_store(term, _WatchesLate(term.store)), *rest)

    return init


WATCH_AFTER_READ: tuple[Patch, ...] = (replaced(Listeners, "__init__", _watching_late),)


# ---- 8: joiners' topics


def _forgets_joiners(original: Any) -> Any:
    def update(self: Interests, group: str, registrations: Any) -> None:
        known = self.__dict__.setdefault("_known", set())
        found = list(registrations)
        if group not in known:
            original(self, group, found)
        if found:
            known.add(group)

    return update


JOINERS_FORGOTTEN: tuple[Patch, ...] = (replaced(Interests, "update", _forgets_joiners),)


# ---- 9: partitions, and topics made anew


def _first_id(original: Any) -> Any:
    def parsed_topic(self: TopicListener, name: str, path: str, node: Any) -> Any:
        topic = original(self, name, path, node)
        if topic is None:
            return None
        first = self.__dict__.setdefault("_first_ids", {}).setdefault(name, topic.id)
        return replace(topic, id=first)

    return parsed_topic


ONE_TOPIC_FOR_EVER: tuple[Patch, ...] = (replaced(TopicListener, "_parsed_topic", _first_id),)


# ---- 11: removal cannot tell applied from discarded


def _acknowledges_first(original: Any) -> Any:
    """The command is removed, and only then obeyed."""

    def stop(self: CommandDrain, store: Any, fenced: Any, name: str, command: Any, give_up: Any) -> None:
        given: list[Any] = []
        original(self, store, fenced, name, command, given.append)
        for partitions in given:
            give_up(partitions)

    return stop


REMOVED_FIRST: tuple[Patch, ...] = (replaced(CommandDrain, "_stop", _acknowledges_first),)
