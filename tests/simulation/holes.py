"""The twelve holes of the draft, opened again one by one, each as small as it can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import coordinator.listeners.members
import coordinator.planning.membership
import coordinator.planning.reconciliation
import coordinator.rebalance.handlers
from consumer.membership.claims import after_command
from consumer.membership.member import CommandDrain
from coordinator.listeners.listeners import Listeners
from coordinator.listeners.topics import Interests, TopicListener
from coordinator.retention.leftovers import Collector
from coordinator.term.request_queue import RequestQueue
from coordinator.term.term import LeaseLapsed, Term
from coordinator.zk.store import Delete
from coordinator.zk.znodes.partitions import NONE
from coordinator.zk.znodes.records import START_FETCHER
from tests.simulation.mutation import Patch, constant, nothing, replaced
from tests.support.terms import with_store

# ---- 1: a change that comes during a turn is lost


def _lost_while_busy(original: Any) -> Any:
    def request(self: RequestQueue, group: str, reason: str, delay_s: float = 0.0) -> None:
        if group not in self._taken or reason in ("again", "acknowledged"):
            original(self, group, reason, delay_s)

    return request


CHANGE_LOST: tuple[Patch, ...] = (replaced(RequestQueue, "request", _lost_while_busy),)


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


# ---- 3: a handler that waits


def _waits_for_acknowledgements(original: Any) -> Any:
    def take_turn(self: Any, request: Any) -> None:
        original(self, request)
        for _ in range(200):
            with self._lock:
                kept = self._groups.get(request.group)
                if kept is None or not kept.outstanding:
                    return
            self._runtime.sleep(0.1)

    return take_turn


HANDLER_WAITS: tuple[Patch, ...] = (
    replaced(coordinator.rebalance.handlers.Handlers, "_take_turn", _waits_for_acknowledgements),
)


# ---- 4: a zombie keeps writing


def _commit_without_epoch(original: Any) -> Any:
    def commit(self: Term, operations: Any) -> None:
        if not self.lease.is_held:
            raise LeaseLapsed
        self.store.commit(operations)

    return commit


NO_EPOCH: tuple[Patch, ...] = (replaced(Term, "commit", _commit_without_epoch),)


# ---- 5: commands of an older generation, or for an earlier life, are applied


def _never_stale(original: Any) -> Any:
    return lambda self, channel, command: False


STALE_APPLIED: tuple[Patch, ...] = (replaced(CommandDrain, "_is_stale", _never_stale),)


# ---- 6: stop and start are sent back to back


def _free_while_it_runs(original: Any) -> Any:
    """Only what is promised to somebody, or waits for a lease, is not free."""

    def taken(moves: Any) -> Any:
        found = {partition for mark in moves.membership.marks for partition in mark.partitions}
        for name, view in moves.snapshot.channels.items():
            for sent in view.commands:
                if sent.command is not None and sent.command.option == START_FETCHER:
                    found |= sent.command.started - (view.running if name in moves.membership.live else NONE)
        return frozenset(found)

    return taken


BACK_TO_BACK: tuple[Patch, ...] = (
    replaced(coordinator.planning.reconciliation, "taken_partitions", _free_while_it_runs),
)


# ---- 7: evicted, and still at work


def _no_marks(original: Any) -> Any:
    def evict(snapshot: Any, found: Any) -> None:
        kept = list(found.marks)
        original(snapshot, found)
        found.marks[:] = kept

    return evict


NO_MARKS: tuple[Patch, ...] = (replaced(coordinator.planning.membership, "_evict", _no_marks),)


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


def _children_only(original: Any) -> Any:
    """New partitions are looked for among a topic's children, where there are none."""

    def topic_partition_change(self: TopicListener, names: Any) -> None:
        original(self, [name for name in names if name not in self.topics])

    return topic_partition_change


def _first_id(original: Any) -> Any:
    def parsed_topic(self: TopicListener, name: str, path: str, node: Any) -> Any:
        topic = original(self, name, path, node)
        if topic is None:
            return None
        first = self.__dict__.setdefault("_first_ids", {}).setdefault(name, topic.id)
        return replace(topic, id=first)

    return parsed_topic


CHILDREN_ONLY: tuple[Patch, ...] = (replaced(TopicListener, "topic_partition_change", _children_only),)
ONE_TOPIC_FOR_EVER: tuple[Patch, ...] = (replaced(TopicListener, "_parsed_topic", _first_id),)


# ---- 10: a name that dies and comes back between two reads


def _by_name(original: Any) -> Any:
    """Only new names, and names that are gone, ask for a turn."""
    return lambda path, node: original(path, node)._replace(life=(0, 0))


BY_NAME: tuple[Patch, ...] = (replaced(coordinator.listeners.members, "_known", _by_name),)


# ---- 11: removal cannot tell applied from discarded


def _acknowledges_first(original: Any) -> Any:
    """The command is removed, and only then obeyed."""

    def stop(self: CommandDrain, store: Any, fenced: Any, name: str, command: Any, give_up: Any) -> None:
        given: list[Any] = []
        original(self, store, fenced, name, command, given.append)
        for partitions in given:
            give_up(partitions)

    return stop


def _discards_as_if_applied(original: Any) -> Any:
    """What is removed unapplied looks the same as what was applied."""

    def remove_unapplied(self: CommandDrain, fenced: Any, received: Any) -> None:
        command = received.command
        if command is None:
            original(self, fenced, received)
        else:
            removed = Delete(self._paths.command(self._consumer, received.name))
            fenced.commit(after_command(fenced.channel, received.name, command), [removed])

    return remove_unapplied


REMOVED_FIRST: tuple[Patch, ...] = (replaced(CommandDrain, "_stop", _acknowledges_first),)
DISCARDED_AS_APPLIED: tuple[Patch, ...] = (replaced(CommandDrain, "_remove_unapplied", _discards_as_if_applied),)


# ---- 12: what the dead leave

NEVER_COLLECTED: tuple[Patch, ...] = (constant(Collector, "collect", nothing),)
