"""How each member of a group gets from what it runs to what it shall run. Pure.

A turn decides one step for each member, as Kafka's `CurrentAssignmentBuilder` does (KIP-848): what it must give up is
revoked first, then it gets what is free. The rules are those that a model of the protocol was checked with: what is
revoked first, which commands are withdrawn, and when a partition is free to be handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..zk.znodes.group_state import Mark, Target
from ..zk.znodes.partitions import NONE, PartitionSet, topics_of, united
from ..zk.znodes.records import DRAIN, START_FETCHER, STOP_FETCHER, Command
from ..zk.znodes.regions import Order
from .membership import Membership, is_exclusive, lease_ms
from .snapshot import ChannelView, SentCommand, Snapshot, wave_of
from .target import Wanted

STRAGGLER_AFTER_S = 0.5
"""From this age on, an unacknowledged command no longer holds up the rest of another member's start."""

Commands = tuple[tuple[str, Command], ...]
"""Commands to send, each with its consumer."""

Kept = Mapping[str, SentCommand]
"""Consumer -> the one command that still says what it must."""

Withdrawn = tuple[tuple[str, SentCommand], ...]
"""Commands to take back, each with its consumer."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a turn reconciles: the members of a group as they are, and as they shall be, in one generation."""

    snapshot: Snapshot
    membership: Membership
    want: Wanted
    generation: int
    is_eager: bool

    def command(self, name: str, option: str, **fields: Any) -> Command:
        """A command to a member, in its incarnation of the target."""
        return Command(
            option, self.snapshot.coordinator.epoch, self.generation, self.want.target[name].incarnation, **fields
        )


# ---- the steps of a member


@dataclass(frozen=True, slots=True)
class Step:
    """What a member does next: nothing, where it runs what it shall run, or its region has failed.

    A stop comes before anything else. A start has all that it shall run and that is free.

    :ivar due: the stop or start to send.  :ivar sent: the same, where it is sent and not acknowledged.
    :ivar blocked: partitions that it shall run and that are not free; None where it waits for nothing.
    """

    due: Command | None = None
    sent: SentCommand | None = None
    blocked: PartitionSet | None = None

    @property
    def option(self) -> str:
        """That of its command; empty without one."""
        command = self.due or self.sent
        return command.option if command is not None else ""


@dataclass(frozen=True, slots=True)
class Moves:
    """How a group gets from what runs to what is wanted.

    :ivar steps: consumer -> its step, for those to which the target is addressed.
    :ivar withdrawn: commands that are taken back.
    :ivar blocked_by: of a group without owners, what keeps every start back.
    :ivar timers: seconds until the steps may be others.
    :ivar drains: of a group in a consistent region: commands to contribute to the checkpoint that is open; `draining`
        are those that are sent.
    :ivar deferred: members whose next command waits for its pace.
    """

    steps: Mapping[str, Step]
    withdrawn: Withdrawn = ()
    blocked_by: str = ""
    timers: tuple[float, ...] = ()
    drains: Commands = ()
    draining: Kept = field(default_factory=dict)
    deferred: frozenset[str] = frozenset()

    @property
    def stops(self) -> Commands:
        """Stops to send."""
        return self._due(STOP_FETCHER)

    @property
    def starts(self) -> Commands:
        """Starts to send."""
        return self._due(START_FETCHER)

    def _due(self, option: str) -> Commands:
        due = ((name, step.due) for name, step in self.steps.items() if name not in self.deferred)
        return tuple((name, command) for name, command in due if command is not None and command.option == option)

    @property
    def kept(self) -> dict[str, SentCommand]:
        """The one command of a member that still says what it must."""
        return {name: step.sent for name, step in self.steps.items() if step.sent is not None}

    @property
    def waiting(self) -> dict[str, PartitionSet]:
        """Consumer -> what it cannot start yet, because it is not free."""
        return {name: step.blocked for name, step in self.steps.items() if step.blocked is not None}

    @property
    def are_stopping(self) -> bool:
        """Whether a member has to stop first."""
        return any(step.option == STOP_FETCHER for step in self.steps.values())

    @property
    def are_starting(self) -> bool:
        """Whether something is started, or still to be."""
        return bool(self.blocked_by or self.waiting) or any(s.option == START_FETCHER for s in self.steps.values())


def moves(now: Round) -> Moves:
    """The step of each member that is due now (seed 000, `rebalance` 4.1 and 4.2)."""
    revoked = {name: _to_revoke(now, name) for name in addressed(now)}
    kept, withdrawn = sort_commands(now, lambda view, sent: _still_right(now, view, sent, revoked))
    taken = taken_partitions(now)
    is_patient = not _straggles(now, revoked, kept, withdrawn)
    return Moves(
        {name: _step(now, name, revoked[name], kept.get(name), taken, is_patient) for name in revoked},
        withdrawn,
        timers=tuple(STRAGGLER_AFTER_S - sent.age_s for sent in kept.values() if sent.age_s < STRAGGLER_AFTER_S),
    )


def _step(
    now: Round, name: str, revoked: PartitionSet, sent: SentCommand | None, taken: PartitionSet, is_patient: bool
) -> Step:
    """What a member does now.

    :param sent: the command that still says it.  :param taken: partitions that are not free.
    :param is_patient: whether all that it shall run is started at once.
    """
    if sent is not None:
        return Step(sent=sent)
    if revoked:
        return Step(stop(now, name, revoked))
    view, wanted = now.snapshot.members.channels[name], now.want.target[name].partitions
    missing = wanted - view.running
    has_heard = has_settled(view, wanted, now.generation, now.is_eager) and not _has_unheard_state(now, view)
    if has_heard and not missing:
        return Step()
    blocked = missing & taken
    if blocked and (is_patient or blocked == missing):
        return Step(blocked=blocked)
    return Step(_start(now, name, view.running | (missing - blocked)), blocked=blocked or None)


def addressed(now: Round) -> list[str]:
    """The live members to whose current incarnation the target is addressed; a newcomer waits for the next answer."""
    target, live = now.want.target, now.membership.live
    return [name for name in sorted(live) if name in target and target[name].incarnation == live[name].incarnation]


def has_settled(view: ChannelView, wanted: PartitionSet, generation: int, is_eager: bool) -> bool:
    """Whether a member has nothing more to hear of this generation.

    It has applied its command, or (unless the strategy is eager) it keeps exactly its assignment of an earlier one.
    """
    channel = view.channel
    if channel is None:
        return False
    return channel.generation == generation or (not is_eager and channel.generation > 0 and view.running == wanted)


def _to_revoke(now: Round, name: str) -> PartitionSet:
    """What a member must give up before anything else: all for an eager strategy, else what it cannot keep."""
    snapshot, want = now.snapshot, now.want
    view = snapshot.members.channels[name]
    channel = view.channel
    if channel is None:
        return NONE
    if now.is_eager and channel.generation != now.generation:
        return view.running
    other_life = {part for part in view.running if channel.topics.get(part.topic) != want.topics.get(part.topic)}
    # A claim makes owners only of what is new to the consumer: what has lost its owner is given up, to get one again.
    is_new = channel.generation != now.generation
    unowned = view.running - snapshot.partitions.owners if is_new else NONE
    moved = _to_other_threads(now, name) if is_new else NONE
    given_up = view.running - want.target[name].partitions
    return given_up | frozenset(other_life) | unowned | moved


def with_pauses(now: Round, found: Moves) -> Moves:
    """`found` without commands that a member has had several times, until their pause is over."""
    due = {
        name: pause_s
        for name, command in (*found.stops, *found.starts)
        if (pause_s := now.snapshot.members.channels[name].paced.get(wave_of(command), 0.0)) > 0
    }
    return replace(found, deferred=frozenset(due), timers=(*found.timers, *due.values())) if due else found


def _to_other_threads(now: Round, name: str) -> PartitionSet:
    """What a member runs in another of its threads than it shall: its owner znode names the thread, so it is stopped
    and started as if it went to another member."""
    running, on_thread = now.snapshot.members.channels[name].running, now.snapshot.partitions.on_thread
    return frozenset(
        part
        for thread, parts in now.want.target[name].threads.items()
        for part in parts & running
        if on_thread.get(part, thread) != thread
    )


# ---- commands that are out


def sort_commands(now: Round, is_right: Callable[[ChannelView, SentCommand], bool]) -> tuple[Kept, Withdrawn]:
    """The one command of each member that still says what it must, and the others, which are withdrawn."""
    kept: dict[str, SentCommand] = {}
    withdrawn = []
    for name, view in sorted(now.snapshot.members.channels.items()):
        for sent in view.commands:
            if (name, sent.name) in now.want.kept:
                continue
            if name not in kept and is_right(view, sent):
                kept[name] = sent
            else:
                withdrawn.append((name, sent))
    return kept, tuple(withdrawn)


def sort_wanted(now: Round, wanted: Mapping[str, Command | None]) -> tuple[Kept, Withdrawn]:
    """The same, where a member is to have one command at most: consumer -> that."""
    return sort_commands(now, lambda view, sent: sent.command is not None and sent.command == wanted.get(view.consumer))


def step_of(command: Command | None, sent: SentCommand | None, blocked: PartitionSet | None) -> Step:
    """The step of a member that is to have `command`, and has it where it is `sent`.

    :param blocked: what a start waits for.
    """
    if command is None or command.option == DRAIN:
        return Step()
    if sent is not None:
        return Step(sent=sent)
    return Step(command) if command.option == STOP_FETCHER or blocked is None else Step(blocked=blocked)


def _still_right(now: Round, view: ChannelView, sent: SentCommand, to_revoke: Mapping[str, PartitionSet]) -> bool:
    command, channel, revoked = sent.command, view.channel, to_revoke.get(view.consumer)
    if command is None or channel is None or revoked is None:
        return False
    order = now.snapshot.coordinator.epoch, now.generation, channel.incarnation
    if (command.epoch, command.generation, command.incarnation) != order:
        return False
    if command.option == STOP_FETCHER:
        # Of a large one that is applied in several commits, what it has stopped by now counts no more.
        named = command.partitions & view.running if command.partitions else view.running
        return bool(revoked) and named == revoked
    if command.option != START_FETCHER or command.ask != now.want.ask:
        return False
    target = now.want.target[view.consumer].partitions
    is_news = bool(command.started - view.running) or channel.generation != now.generation
    is_news = is_news or _has_unheard_state(now, view)
    same_topics = all(now.want.topics.get(topic) == topic_id for topic, topic_id in command.topics.items())
    return not revoked and same_topics and is_news and view.running <= command.started <= target


# ---- commands to send


def stop(now: Round, name: str, partitions: PartitionSet, region: Order | None = None) -> Command:
    """Seed 000, `rebalance` 4.1. Without partitions it means all."""
    view = now.snapshot.members.channels[name]
    named = NONE if partitions == view.running else partitions
    topics = dict(view.channel.topics) if view.channel else {}
    return now.command(name, STOP_FETCHER, partitions=named, topics=topics, region=region)


def _start(now: Round, name: str, partitions: PartitionSet) -> Command:
    """Seed 000, `rebalance` 4.2."""
    target = now.want.target[name]
    threads = {thread: parts & partitions for thread, parts in target.threads.items() if parts & partitions}
    topics = {topic: now.want.topics[topic] for topic in topics_of(partitions)}
    return now.command(name, START_FETCHER, threads=threads, topics=topics, ask=now.want.ask)


def _has_unheard_state(now: Round, view: ChannelView) -> bool:
    """Whether an answer has a member state for it that it has not received: that is sent with any partitions."""
    has_state = now.want.target[view.consumer].has_state
    return has_state and view.channel is not None and view.channel.ask != now.want.ask


def taken_partitions(now: Round) -> PartitionSet:
    """Partitions that are not free to be handed on.

    A channel runs it (unless this turn ends that incarnation, which is written before any start), a start
    that names it is out (one that this turn withdraws counts), an eviction's lease covers it, or its owner is there.
    """
    ends = {end.view.consumer: end for end in now.membership.ends}
    taken: list[PartitionSet] = []
    for name, view in now.snapshot.members.channels.items():
        if name not in ends:
            taken.append(view.running)
        running = view.running if name in now.membership.live else NONE
        starts = (sent.command for sent in view.commands if sent.command is not None)
        taken += [command.started - running for command in starts if command.option == START_FETCHER]
    taken += [mark.partitions for mark in now.membership.marks]
    removed: PartitionSet = united(end.owners for end in ends.values())
    return united([*taken, now.snapshot.partitions.owners - removed])


def _straggles(now: Round, revoked: Mapping[str, PartitionSet], kept: Kept, withdrawn: Withdrawn) -> bool:
    """Whether a member keeps the group waiting for long: then the others start with what is free.

    Also where nothing that this turn knows of will free it: its holder cannot be read, or an owner znode is in the way.
    """
    late = any(sent.age_s >= STRAGGLER_AFTER_S for sent in kept.values())
    is_being_freed = any(revoked.values()) or bool(withdrawn) or bool(now.membership.ends)
    is_unknown = any(view.channel is None for view in now.snapshot.members.channels.values())
    is_deferred = any(now.snapshot.members.channels[name].paced for name in revoked)
    return late or bool(now.membership.marks) or is_unknown or is_deferred or not is_being_freed


# ---- groups without owners (a protocol type other than `consumer`): only the channels prevent double execution. A new
# answer stops every member that was sent anything of an earlier one, and none starts before all have stopped or their
# lease has expired.

UNKNOWN = "unknown"


def mark_replaced(snapshot: Snapshot, membership: Membership) -> None:
    """Mark the members that were sent a start and whose name another process has taken: they may not know it yet.

    Where `state` was lost, one mark covers all members.
    """
    if not is_exclusive(snapshot):
        return
    known = {(mark.consumer, mark.incarnation) for mark in membership.marks}
    runs = any(view.ask for view in snapshot.members.channels.values())
    if snapshot.state.client is None and runs and all(consumer != UNKNOWN for consumer, _ in known):
        life, lease = f"epoch-{snapshot.coordinator.epoch}", snapshot.coordinator.longest_lease_ms
        membership.mark(Mark(UNKNOWN, life, NONE, lease, "the state was lost"))
    for name, before in sorted(snapshot.state.target.items()):
        if before.is_sent and _is_taken_over(snapshot, name, before) and (name, before.incarnation) not in known:
            why = "another process has taken its name"
            membership.mark(Mark(name, before.incarnation, NONE, lease_ms(snapshot, name), why))


def with_sent(
    snapshot: Snapshot, target: Mapping[str, Target], starts: Iterable[tuple[str, Command]]
) -> Mapping[str, Target]:
    """The target with the members that are sent a start in this turn; ended and marked members lose theirs."""
    sent = {name for name, _ in starts}
    return {
        name: replace(one, is_sent=name in sent or (one.is_sent and not _is_over(snapshot, name, one)))
        for name, one in target.items()
    }


def _is_over(snapshot: Snapshot, name: str, one: Target) -> bool:
    channel = snapshot.members.channel_of(name)
    return channel is None or channel.ended is not None or channel.incarnation != one.incarnation


def _is_taken_over(snapshot: Snapshot, name: str, before: Target) -> bool:
    channel = snapshot.members.channel_of(name)
    return channel is None or channel.incarnation != before.incarnation


def exclusive_moves(now: Round) -> Moves:
    """The step of each member that is due now: all stop before any starts."""
    wanted = {name: _wanted(now, name) for name in addressed(now)}
    kept, withdrawn = sort_wanted(now, wanted)
    to_stop = [name for name, command in wanted.items() if command is not None and command.option == STOP_FETCHER]
    is_due = any(command is not None for name, command in wanted.items() if name not in {*to_stop, *kept})
    blocked_by = _blocked_by(now, to_stop, withdrawn) if is_due else ""
    blocked = NONE if blocked_by else None
    steps = {name: step_of(command, kept.get(name), blocked) for name, command in wanted.items()}
    return Moves(steps, withdrawn, blocked_by)


def _wanted(now: Round, name: str) -> Command | None:
    """A stop where an earlier answer is run, a start where none is, None where it is this one."""
    runs = now.snapshot.members.channels[name].ask
    if not now.want.ask or runs == now.want.ask:
        return None
    return now.command(name, STOP_FETCHER) if runs else now.command(name, START_FETCHER, ask=now.want.ask)


def _blocked_by(now: Round, to_stop: Sequence[str], withdrawn: Withdrawn) -> str:
    """What keeps every start back; empty when nothing does."""
    if to_stop:
        return f"{min(to_stop)} has not stopped yet"
    if now.membership.marks:
        return f"the lease of {now.membership.marks[0].consumer} may still run"
    if any(end.view.ask for end in now.membership.ends):
        return "an incarnation is being ended"
    pending = [name for name, sent in withdrawn if sent.option == START_FETCHER]
    if pending:
        return f"a start of {pending[0]} is being withdrawn"
    ended = {end.view.consumer for end in now.membership.ends}
    for name, view in sorted(now.snapshot.members.channels.items()):
        if view.channel is None:
            return f"the channel of {name} cannot be read"
        if name not in ended and view.channel.is_live and view.ask not in ("", now.want.ask):
            return f"{name} runs what an earlier assignment gave it"
    return ""
