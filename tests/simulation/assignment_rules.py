"""The rules of client-side assignment, broken one by one (seed 001, `S9` and `L5`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import consumer.membership.client_assignment
import coordinator.planning.answers
import coordinator.planning.asking
import coordinator.rebalance.ask_reader
import coordinator.rebalance.group_reader
import coordinator.rebalance.rebalancer
from consumer.assignment.consumers import ConsumerRole
from consumer.membership.client_assignment import ClientAssignment
from coordinator.listeners.listeners import Listeners
from coordinator.planning.asking import Group
from coordinator.rebalance.ask_reader import AskReader
from coordinator.zk.store import Check, Delete
from coordinator.zk.znodes.group_state import Answer, MemberAnswer
from coordinator.zk.znodes.paths import MEMBER_PREFIX, Brokers
from coordinator.zk.znodes.records import ASSIGN, Topic
from tests.simulation.mutation import Mutation, Patch, constant, nothing, of, replaced

asking = coordinator.planning.asking


# ---- the leader


class _Unasked:
    """A fenced channel that commits without a look at the command that stands in it."""

    def __init__(self, fenced: Any, store: Any, command: str) -> None:
        self._fenced = fenced
        self._store = store
        self._command = command

    def commit(self, after: Any, operations: Any = ()) -> None:
        is_there = self._store.get(self._command) is not None
        some = [op for op in operations if is_there or not isinstance(op, Check | Delete) or op.path != self._command]
        self._fenced.commit(after, some)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fenced, name)


def _writes_unasked(original: Any) -> Any:
    def write(self: Any, store: Any, fenced: Any, name: str, *rest: Any) -> None:
        original(self, store, _Unasked(fenced, store, self._paths.command(self._consumer, name)), name, *rest)

    return write


def _moves_the_generation(original: Any) -> Any:
    def heard(channel: Any, name: str, command: Any) -> Any:
        return replace(original(channel, name, command), generation=command.generation)

    return heard


def _looks_once(original: Any) -> Any:
    """Topics are read again only when a watch tells of a change."""

    def wants_rebalance(self: Any, store: Any) -> Any:
        if self._led is not None:
            self._led.checked_at = self._runtime.monotonic()
        return original(self, store)

    return wants_rebalance


WRITES_UNASKED: tuple[Patch, ...] = (replaced(ClientAssignment, "_write", _writes_unasked),)
MOVES_THE_GENERATION: tuple[Patch, ...] = (
    replaced(consumer.membership.client_assignment, "_heard", _moves_the_generation),
)
LOOKS_ONCE: tuple[Patch, ...] = (replaced(ConsumerRole, "wants_rebalance", _looks_once),)
NOT_TAKEN_UP: tuple[Patch, ...] = (constant(ConsumerRole, "_previous_assignment", nothing),)


# ---- what is adopted


def _adopts_by_name(original: Any) -> Any:
    """Whoever has the name of a member that was asked about gets its share."""

    def adopted(group: Any, view: Any, ask: Any, left_out: Any) -> Any:
        members = {name: group.members.get(name, one) for name, one in ask.members.items()}
        return original(group, view, replace(ask, members=members), left_out)

    return adopted


def _takes_half(original: Any) -> Any:
    """Entries without an answer are one."""

    def with_entries(self: Any, *args: Any) -> Any:
        return tuple(_answered(self, view) for view in original(self, *args))

    return with_entries


def _answered(reader: Any, view: Any) -> Any:
    consumers = [name[len(MEMBER_PREFIX) :] for name in view.children if name.startswith(MEMBER_PREFIX)]
    if view.is_answered or not consumers:
        return view
    paths = [reader._paths.member_answer(view.name, consumer) for consumer in consumers]
    nodes = zip(consumers, paths, reader._store.get_many(paths), strict=True)
    entries = {consumer: MemberAnswer.parse(path, node.data) for consumer, path, node in nodes if node is not None}
    brokers, topics = Brokers(), {}
    for name in sorted({part.topic for one in entries.values() for parts in one.threads.values() for part in parts}):
        node = reader._store.get(brokers.topic(name))
        if node is not None:
            topics[name] = Topic.parse("", name, node.data, node.stat.czxid)
    answer = Answer(
        tuple(entries),
        {name: topic.id for name, topic in topics.items()},
        {name: frozenset(topic.partitions) for name, topic in topics.items()},
    )
    return replace(view, answer=answer, entries=entries)


def _reads_all_entries(original: Any) -> Any:
    def with_entries(self: Any, views: Any, *args: Any) -> Any:
        return tuple(
            self._with_entries(view) if view.answer is not None and view.answer.error is None else view
            for view in views
        )

    return with_entries


def _older_first(self: Any) -> Any:
    """Any answer but the last one that was adopted."""
    some = [
        view
        for view in self.snapshot.asks
        if view.answer is not None and view.answer.error is None and view.name != self.before.ask
    ]
    return some[0] if some else _OUT(self)


def _may_be_twice(original: Any) -> Any:
    def wrong_partitions(*args: Any) -> Any:
        failure = original(*args)
        return "" if failure.endswith("and to another thread") else failure

    return wrong_partitions


_OUT: Any = Group.__dict__["out"].fget

BY_NAME: tuple[Patch, ...] = (replaced(asking, "_adopted", _adopts_by_name),)
HALF_TAKEN: tuple[Patch, ...] = (replaced(AskReader, "with_entries", _takes_half),)
OLDER_ADOPTED: tuple[Patch, ...] = (
    replaced(AskReader, "with_entries", _reads_all_entries),
    constant(Group, "out", property(_older_first)),
)
NOT_VALIDATED: tuple[Patch, ...] = (replaced(coordinator.planning.answers, "_wrong_partitions", _may_be_twice),)
TOPICS_NOT_COMPARED: tuple[Patch, ...] = tuple(
    constant(module, "outdated_topic", lambda *_, **__: "")
    for module in (
        coordinator.planning.answers,
        asking,
        coordinator.rebalance.group_reader,
        coordinator.rebalance.rebalancer,
        coordinator.rebalance.ask_reader,
    )
)


# ---- who is asked, and when


def _forgets_failures(original: Any) -> Any:
    def failed(group: Any, *rest: Any) -> Any:
        found = original(group, *rest)
        return replace(found, client=replace(found.client, failed=group.before.failed))

    return failed


def _asks_anew(original: Any) -> Any:
    """A change of members ends the ask that is out."""

    def about_the_one_that_is_out(group: Any) -> Any:
        view = group.out
        is_waited_for = view is not None and view.ask is not None and not view.is_answered
        if is_waited_for and asking._changed(view.ask.members, group.members):
            return None
        return original(group)

    return about_the_one_that_is_out


def _waits_in_vain(original: Any) -> Any:
    """Nobody looks whether the command is still there."""

    def waited_for(group: Any, view: Any, ask: Any) -> Any:
        sent = asking._assign_command(group, ask.leader, view.name)
        commands = group.snapshot.channels[ask.leader].commands
        stands = {(ask.leader, each.name) for each in commands if each.command == sent}
        found = asking.unchanged(group, group.before, stands)
        return replace(found, waits="an answer", timers=(group.timeout_s - view.age_s,))

    return waited_for


def _keeps_old_commands(original: Any) -> Any:
    """An `assign` of another epoch is as good."""

    def waited_for(group: Any, view: Any, ask: Any) -> Any:
        found = original(group, view, ask)
        commands = group.snapshot.channels[ask.leader].commands
        old = {
            (ask.leader, each.name)
            for each in commands
            if each.command is not None and each.command.option == ASSIGN and each.command.ask == view.name
        }
        return (
            replace(found, assignment=asking.unchanged(group, group.before, old).assignment, assign=None)
            if old
            else found
        )

    return waited_for


def _without_digest(original: Any) -> Any:
    def as_asked(*args: Any) -> Any:
        return replace(original(*args), digest="")

    return as_asked


def _by_incarnation(original: Any) -> Any:
    return lambda *args: replace(original(*args), identity=args[-1].incarnation)


FAILURES_FORGOTTEN: tuple[Patch, ...] = (replaced(asking, "_failed", _forgets_failures),)
ASKED_ANEW: tuple[Patch, ...] = (replaced(asking, "_pending_ask", _asks_anew),)
WAITS_IN_VAIN: tuple[Patch, ...] = (replaced(asking, "_wait_for_answer", _waits_in_vain),)
OLD_COMMANDS_KEPT: tuple[Patch, ...] = (replaced(asking, "_wait_for_answer", _keeps_old_commands),)
WITHOUT_DIGEST: tuple[Patch, ...] = (replaced(asking, "_ask_member", _without_digest),)
BY_INCARNATION: tuple[Patch, ...] = (replaced(asking, "_ask_member", _by_incarnation),)
REQUESTS_UNREAD: tuple[Patch, ...] = (
    constant(Listeners, "sync_request_change", nothing),
    constant(AskReader, "request", nothing),
)


_LED = ("led", "watchful", "aimed")

RULES = (
    Mutation(
        "a leader writes below an ask after its command was withdrawn",
        "Answer 5",
        WRITES_UNASKED,
        of("S9"),
        _LED,
    ),
    Mutation("an answer is adopted by the names of members", "Adopt 1", BY_NAME, of("S9"), _LED),
    Mutation("half an answer is taken", "Adopt 1", HALF_TAKEN, of("S9"), _LED),
    Mutation("an older ask's answer is adopted", "Ask 1", OLDER_ADOPTED, of("S9"), _LED),
    Mutation(
        "an answer that gives a partition to two is adopted",
        "Adopt 4",
        NOT_VALIDATED,
        of("S2", "S9", "L5"),
        _LED,
    ),
    Mutation("failed leaders are not remembered", "Ask 5", FAILURES_FORGOTTEN, of("L5"), _LED),
    Mutation("an ask is made anew at each change", "Ask 1", ASKED_ANEW, of("S9"), _LED),
    Mutation("an ask without its command is waited for", "Ask 5", WAITS_IN_VAIN, of("L5"), _LED),
    Mutation("an assign of an older epoch is kept", "Rebalance 4", OLD_COMMANDS_KEPT, of("S9"), _LED),
    Mutation(
        "an answer's topics are not compared",
        "Adopt 3",
        TOPICS_NOT_COMPARED,
        of("S9", "L2"),
        _LED,
    ),
    Mutation(
        "acknowledging an assign moves the generation",
        "Answer 5",
        MOVES_THE_GENERATION,
        of("S6"),
        _LED,
    ),
    Mutation(
        "a leader's request is never read",
        "Answer 7",
        REQUESTS_UNREAD,
        of("L2", "S7", "S2"),
        _LED,
    ),
    Mutation(
        "a leader looks at topics only when a watch tells",
        "Answer 7",
        LOOKS_ONCE,
        of("L2", "S2"),
        _LED,
    ),
    Mutation(
        "a bounced static leader watches no topics",
        "Answer 7",
        NOT_TAKEN_UP,
        of("L2", "S2"),
        _LED,
    ),
    Mutation(
        "metadata that changes in place is not seen",
        "Ask 2",
        WITHOUT_DIGEST,
        of("L2", "S2"),
        _LED,
    ),
    Mutation(
        "a static member is asked about by its incarnation",
        "Ask 2",
        BY_INCARNATION,
        of("S9"),
        _LED,
    ),
)
