"""Reconciles each member's current assignment with its target: one step a member and turn. Pure.

As Kafka's `CurrentAssignmentBuilder` (KIP-848): a member revokes partitions first, then starts the free ones. The
group's `MemberProtocol` decides which, and when: `partitions.py`, `barrier.py` or `stateful.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..zk.znodes.group_state import Target
from ..zk.znodes.partitions import NONE, PartitionSet, united
from ..zk.znodes.records import DRAIN, START_FETCHER, STOP_FETCHER, Command
from ..zk.znodes.regions import Order
from .membership import Membership
from .snapshot import ChannelView, MemberFacts, PartitionFacts, SentCommand, wave_of
from .target import TargetAssignment

Commands = tuple[tuple[str, Command], ...]
"""Commands to send, each with its consumer."""

Retained = Mapping[str, SentCommand]
"""Consumer -> its outstanding command that is still valid."""

Withdrawn = tuple[tuple[str, SentCommand], ...]
"""Commands to withdraw, each with its consumer."""

Desired = Mapping[str, Command | None]
"""Consumer -> its desired command, None where it runs its target."""


@dataclass(frozen=True, slots=True)
class Round:
    """The input of a reconciliation: a group's members as read, and their target in one generation."""

    epoch: int
    generation: int
    assignment: TargetAssignment
    membership: Membership
    members: MemberFacts
    partitions: PartitionFacts

    def command(self, name: str, option: str, **fields: Any) -> Command:
        """A command to a member, in its incarnation of the target."""
        return Command(option, self.epoch, self.generation, self.assignment.target[name].incarnation, **fields)

    def stop(self, name: str, partitions: PartitionSet, region: Order | None = None) -> Command:
        """The stop of `partitions` (sources D25). Without partitions it means all."""
        view = self.members.channels[name]
        named = NONE if partitions == view.running else partitions
        topics = dict(view.channel.topics) if view.channel else {}
        return self.command(name, STOP_FETCHER, partitions=named, topics=topics, region=region)


# ---- the steps of a member


@dataclass(frozen=True, slots=True)
class Step:
    """A member's next step: none where it runs its target, or its region has failed.

    A stop comes first. A start has all free partitions of the target.

    :ivar due: the stop or start to send.  :ivar sent: the outstanding one.
    :ivar blocked: target partitions that are not free; None where it waits for none.
    """

    due: Command | None = None
    sent: SentCommand | None = None
    blocked: PartitionSet | None = None

    @property
    def option(self) -> str:
        """The option of its command; empty without one."""
        command = self.due or self.sent
        return command.option if command is not None else ""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The steps of a group's members from their current assignment to the target.

    :ivar steps: consumer -> its step, for the addressed members.
    :ivar withdrawn: commands to withdraw.  :ivar blocked_by: why no member may start; empty without a reason.
    :ivar timers: seconds until the steps may change.
    :ivar drains: commands to contribute to the open checkpoint; `draining` are the outstanding ones.
    :ivar deferred: members whose next command waits for its pace.
    """

    steps: Mapping[str, Step]
    withdrawn: Withdrawn = ()
    blocked_by: str = ""
    timers: tuple[float, ...] = ()
    drains: Commands = ()
    draining: Retained = field(default_factory=dict)
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
    def retained(self) -> dict[str, SentCommand]:
        """Each member's outstanding command, if still valid."""
        return {name: step.sent for name, step in self.steps.items() if step.sent is not None}

    @property
    def waiting(self) -> dict[str, PartitionSet]:
        """Consumer -> its target partitions that are not free."""
        return {name: step.blocked for name, step in self.steps.items() if step.blocked is not None}

    @property
    def are_stopping(self) -> bool:
        """Whether any revocation is pending."""
        return any(step.option == STOP_FETCHER for step in self.steps.values())

    @property
    def are_starting(self) -> bool:
        """Whether any start is pending."""
        return bool(self.blocked_by or self.waiting) or any(s.option == START_FETCHER for s in self.steps.values())


# ---- the loop over the members


@dataclass(frozen=True, slots=True)
class Obstacles:
    """The obstacles to starts in this turn.

    :ivar taken: partitions that are not free.
    :ivar is_patient: whether a start waits until all its partitions are free.
    :ivar reason: why no member may start; empty without one.  :ivar timers: seconds until these may change.
    """

    taken: PartitionSet = NONE
    is_patient: bool = True
    reason: str = ""
    timers: tuple[float, ...] = ()


class MemberProtocol(ABC):
    """Decides the next command of each member: one at most is outstanding."""

    @abstractmethod
    def desired(self, now: Round, name: str) -> Command | None:
        """The desired command of a member: a stop first, then a start of its target, then a drain."""

    def accepts(self, now: Round, view: ChannelView, sent: SentCommand, desired: Command | None) -> bool:
        """Whether an outstanding command in a readable channel may stand for the desired one."""
        return sent.command == desired

    def obstacles(self, now: Round, desired: Desired, retained: Retained, withdrawn: Withdrawn) -> Obstacles:
        """The obstacles to starts."""
        return Obstacles(taken_partitions(now))

    def start(self, now: Round, name: str, command: Command, obstacles: Obstacles) -> Step:
        """The step of a member whose start is due: all at once."""
        blocked = (command.started - now.members.channels[name].running) & obstacles.taken
        return Step(blocked=blocked) if blocked else Step(command)

    def recorded(self, now: Round, starts: Commands) -> Mapping[str, Target]:
        """The target as `state` has it, after these starts."""
        return now.assignment.target


def reconcile(now: Round, protocol: MemberProtocol) -> Reconciliation:
    """The step of each member that is due now (sources D25, D26)."""
    desired = {name: protocol.desired(now, name) for name in addressed(now)}
    retained, withdrawn = _sorted_commands(now, protocol, desired)
    obstacles = protocol.obstacles(now, desired, retained, withdrawn)
    drains = [name for name, command in desired.items() if command is not None and command.option == DRAIN]
    return Reconciliation(
        {name: _step(now, protocol, name, command, retained.get(name), obstacles) for name, command in desired.items()},
        withdrawn,
        obstacles.reason,
        obstacles.timers,
        tuple((name, command) for name in drains if name not in retained and (command := desired[name]) is not None),
        {name: retained[name] for name in drains if name in retained},
    )


def _step(
    now: Round,
    protocol: MemberProtocol,
    name: str,
    command: Command | None,
    sent: SentCommand | None,
    obstacles: Obstacles,
) -> Step:
    """The next step of a member.

    :param sent: its outstanding command that is still valid.
    """
    if sent is not None and sent.option != DRAIN:
        return Step(sent=sent)
    if command is None or command.option == DRAIN:
        return Step()
    return Step(command) if command.option == STOP_FETCHER else protocol.start(now, name, command, obstacles)


def _sorted_commands(now: Round, protocol: MemberProtocol, desired: Desired) -> tuple[Retained, Withdrawn]:
    """Each member's outstanding command, if still valid, and the others, which are withdrawn."""
    retained: dict[str, SentCommand] = {}
    withdrawn = []
    for name, view in sorted(now.members.channels.items()):
        for sent in view.commands:
            if (name, sent.name) in now.assignment.retained:
                continue
            is_valid = name in desired and sent.command is not None
            if name not in retained and is_valid and protocol.accepts(now, view, sent, desired[name]):
                retained[name] = sent
            else:
                withdrawn.append((name, sent))
    return retained, tuple(withdrawn)


def addressed(now: Round) -> list[str]:
    """The live members to whose current incarnation the target is addressed; a newcomer waits for the next answer."""
    target, live = now.assignment.target, now.membership.live
    return [name for name in sorted(live) if name in target and target[name].incarnation == live[name].incarnation]


def with_pauses(now: Round, found: Reconciliation) -> Reconciliation:
    """`found` without commands that were sent several times, until their pause is over."""
    due = {
        name: pause_s
        for name, command in (*found.stops, *found.starts)
        if (pause_s := now.members.channels[name].compliance.paced.get(wave_of(command), 0.0)) > 0
    }
    return replace(found, deferred=frozenset(due), timers=(*found.timers, *due.values())) if due else found


def taken_partitions(now: Round) -> PartitionSet:
    """Partitions that are not free.

    A channel runs it (unless this turn ends that incarnation, which is written before any start), a start of it is
    outstanding (a withdrawn one counts), an eviction hold covers it, or its owner znode exists.
    """
    terminations = {end.view.consumer: end for end in now.membership.terminations}
    taken: list[PartitionSet] = []
    for name, view in now.members.channels.items():
        if name not in terminations:
            taken.append(view.running)
        running = view.running if name in now.membership.live else NONE
        starts = (sent.command for sent in view.commands if sent.command is not None)
        taken += [command.started - running for command in starts if command.option == START_FETCHER]
    taken += [hold.partitions for hold in now.membership.holds]
    removed: PartitionSet = united(end.owners for end in terminations.values())
    return united([*taken, now.partitions.owners - removed])
