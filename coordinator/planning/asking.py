"""Client-side assignment in a turn: requests to the group's leader, and adoption of its answer. Pure.

Sources G12: no member stops before the answer is known. An ask changes nothing; generation and target
move when an answer is adopted, and from there stops and starts are those of every rebalance.

1. A pending ask is waited for, also while members change: a new ask at each change would never settle.
2. Its answer is adopted for the members still present, or its leader has failed and the next one is asked.
3. The group asks again when members, their metadata or topics differ from the adopted answer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from ..zk.backoff import Backoff
from ..zk.store import MAX_COMMIT_BYTES
from ..zk.znodes.group_state import CONSUMER, SEAT_PREFIX, Answer, Ask, AskMember, ClientSide, GroupState, Target
from ..zk.znodes.json_fields import MAX_COUNT, shortened
from ..zk.znodes.partitions import NONE, topics_of
from ..zk.znodes.paths import ask_name, ask_number
from ..zk.znodes.records import ASSIGN, ASSIGNMENT_FAILED, LONGEST_REASON, START_FETCHER, Command, Registration
from .answers import outdated_topic, verdict_on
from .membership import Membership
from .rebalance_history import changes_between
from .snapshot import MemberFacts, RequestView, Snapshot, SyncRequestView
from .target import TargetAssignment


@dataclass(frozen=True, slots=True)
class Asking:
    """Changes to assignment requests decided in one turn.

    :ivar assignment: the current target: the adopted answer's, or the group's previous one.
    :ivar client: the next `client` of `state`.
    :ivar is_adopted: whether an answer becomes the target in this turn.
    :ivar made: name and content of a request to create.
    :ivar assign: the command for its leader, or the one that is sent again.
    :ivar notices: `assignment-failed` commands, each with its member.
    :ivar obsolete: requests to remove.  :ivar superseded: those to remove once every member has a later one's command.
    :ivar answered: the `sync_request` that the new request answers.
    :ivar waits: why the group is not Stable; empty otherwise.
    :ivar has_failed: whether the last leader failed and no other has been asked yet.
    :ivar timers: seconds until the next timed action.
    :ivar reason: trigger of the adopted answer.
    """

    assignment: TargetAssignment = field(default_factory=TargetAssignment)
    client: ClientSide | None = None
    strategy: str = ""
    is_adopted: bool = False
    made: tuple[str, Ask] | None = None
    assign: tuple[str, Command] | None = None
    notices: tuple[tuple[str, Command], ...] = ()
    obsolete: tuple[RequestView, ...] = ()
    superseded: tuple[RequestView, ...] = ()
    answered: SyncRequestView | None = None
    waits: str = ""
    has_failed: bool = False
    timers: tuple[float, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A group in one turn, with values derived from its snapshot once.

    :ivar trigger: the turn's trigger.
    :ivar timeout_s: seconds that a leader has to answer.
    :ivar members: as an assignment request names them.
    """

    snapshot: Snapshot
    membership: Membership
    trigger: str
    timeout_s: float
    members: Mapping[str, AskMember]

    @property
    def before(self) -> ClientSide:
        """`client` of `state`; without one, every existing answer is outdated."""
        if self.snapshot.state.client is not None:
            return self.snapshot.state.client
        asks = self.snapshot.requests.asks
        return ClientSide(self.membership.agreed.protocol_type, floor=asks[-1].name if asks else "")

    def view(self, name: str) -> RequestView | None:
        return next((view for view in self.snapshot.requests.asks if view.name == name), None)

    @property
    def next_name(self) -> str:
        """The name of the next ask: above all asks in ZooKeeper, in `state` and in members' channels."""
        names = [view.name for view in self.snapshot.requests.asks]
        named = {view.ask for view in self.snapshot.members.channels.values()}
        known = (self.before.ask, self.before.failed_ask, self.before.floor)
        number = 1 + max(map(ask_number, (*names, *known)))
        if not ask_number(ask_name(number)):  # it could not be read: a stray znode leaves no room
            number = 1 + max(map(ask_number, known))
        while ask_name(number) in named:
            number += 1
        return ask_name(number)

    @property
    def out(self) -> RequestView | None:
        """The pending ask: neither adopted nor failed."""
        handled = max(map(ask_number, (self.before.ask, self.before.failed_ask, self.before.floor)))
        open_ones = [view for view in self.snapshot.requests.asks if ask_number(view.name) > handled]
        return open_ones[-1] if open_ones else None


FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
MOST_NOTICES = 10
"""Limit of `assignment-failed` commands in the channel of a member that does not read them."""

ROOM_BYTES = 8_000
"""Bytes of a multi reserved for its fence, reasons and holds, beside `state` and its companions."""

OUTDATED_AT_MOST = 5
"""Consecutive answers that may be for outdated topics; the next one counts as a failure of its leader."""


def group_of(snapshot: Snapshot, membership: Membership, trigger: str, timeout_s: float) -> Group:
    """A group in this turn."""
    members = {name: _ask_member(snapshot, name, one) for name, one in membership.everybody.items()}
    return Group(snapshot, membership, trigger, timeout_s, members)


def asking(group: Group) -> Asking:
    """Decide this turn's changes of assignment requests."""
    return with_obsolete_asks(group, _pending_ask(group) or _new_ask(group))


def postponed(group: Group, changes: Asking) -> Asking:
    """The same turn without an adoption: the group's consistent region takes a checkpoint first."""
    view = group.out
    if not changes.is_adopted or view is None or view.ask is None:
        return changes
    waits = f"the answer of {view.ask.leader} waits for a checkpoint of the region"
    return with_obsolete_asks(group, replace(unchanged(group, group.before), waits=waits))


def _ask_member(snapshot: Snapshot, consumer: str, one: Registration) -> AskMember:
    """A member in an ask. Its identity is its incarnation, or of a static one its seat, which outlives a bounce."""
    seat = snapshot.members.seats.get(consumer)
    identity = f"{SEAT_PREFIX}{seat.czxid:x}" if seat is not None and one.instance_id == consumer else one.incarnation
    return AskMember(identity, one.client.digest if one.client is not None else "", one.lease_ms)


# ---- the pending ask


def _pending_ask(group: Group) -> Asking | None:
    """The decision on the pending ask; None without one, or when it is void."""
    view = group.out
    if view is None or view.ask is None or not group.membership.everybody:
        return None
    if view.is_answered:
        return _decided(group, view, view.ask)
    if not _is_leader_alive(group, view.ask) or view.ask.protocol_type != group.membership.agreed.protocol_type:
        return None
    if view.age_s >= group.timeout_s:
        return _failed(group, view, view.ask, f"it has not answered for {group.timeout_s * 1000:.0f} ms")
    return _wait_for_answer(group, view, view.ask)


def _is_leader_alive(group: Group, ask: Ask) -> bool:
    """Whether an ask's leader is alive, in the incarnation that was asked, and still supports the protocol."""
    registration = group.membership.live.get(ask.leader)
    if registration is None or registration.client is None:
        return False
    return registration.incarnation == ask.incarnation and ask.protocol in registration.client.protocols


def _wait_for_answer(group: Group, view: RequestView, ask: Ask) -> Asking:
    """Wait for the leader. A command of another epoch, or one removed with it, is sent again; a missing command of
    this epoch was acknowledged without an answer."""
    sent = _assign_command(group, ask.leader, view.name)
    commands = group.snapshot.members.channels[ask.leader].commands
    existing = next((each.name for each in commands if each.command == sent), None)
    is_old = any(each.command is not None and each.command.ask == view.name for each in commands)
    if existing is None and not is_old and group.snapshot.state.epoch == group.snapshot.coordinator.epoch:
        return _failed(group, view, ask, "it has acknowledged its assign without an answer")
    tries = f", attempt {ask.attempt}" if ask.attempt > 1 else ""
    return replace(
        unchanged(group, group.before, {(ask.leader, existing)} if existing else set()),
        assign=None if existing else (ask.leader, sent),
        waits=f"{ask.leader} is asked for an assignment ({ask.protocol}{tries})",
        timers=(group.timeout_s - view.age_s,),
    )


def _assign_command(group: Group, leader: str, ask: str) -> Command:
    state, incarnation = group.snapshot.state, group.membership.live[leader].incarnation
    return Command(ASSIGN, group.snapshot.coordinator.epoch, state.generation, incarnation, ask=ask)


def _decided(group: Group, view: RequestView, ask: Ask) -> Asking | None:
    """The answer adopted, or its leader's failure; None to ask the leader again, since topics have changed."""
    verdict = verdict_on(group.snapshot.group, view, group.snapshot.partitions.topics)
    if verdict.failure:
        return _failed(group, view, ask, verdict.failure)
    if not verdict.outdated:
        changes = _adopted(group, view, ask, verdict.left_out)
        too_large = _too_large(group, ask, changes)
        return _failed(group, view, ask, too_large) if too_large else changes
    if ask.outdated >= OUTDATED_AT_MOST:
        return _failed(group, view, ask, f"its answers are for other topics: {verdict.outdated}")
    return None


def _adopted(group: Group, view: RequestView, ask: Ask, left_out: Mapping[str, str]) -> Asking:
    """The leader's answer without departed members; omitted members are idle."""
    answer = view.answer
    target = {}
    for name, registration in sorted(group.membership.everybody.items()):
        asked = ask.members.get(name)
        if asked is not None and asked.identity == group.members[name].identity:
            entry = view.entries.get(name)
            threads = entry.threads if entry is not None else {}
            before = group.snapshot.state.target.get(name)
            # Until it has stopped it may run its part of an earlier answer.
            is_sent = before is not None and before.is_sent and before.incarnation == registration.incarnation
            has_state = entry is not None and bool(entry.member_state)
            target[name] = Target(registration.incarnation, threads, has_state, is_sent)
    assignment = TargetAssignment(
        {**unreadable(group.snapshot.state, group.snapshot.members, group.membership), **target},
        dict(sorted(answer.topics.items())) if answer is not None else {},
        left_out,
        view.name,
        ask.protocol_type != CONSUMER,
        unread_notices(group),
    )
    client = ClientSide(ask.protocol_type, view.name, answer is not None and answer.is_cooperative)
    differs = _differs(group, ask, answer) if answer is not None else ""
    return Asking(
        assignment,
        client,
        ask.protocol,
        is_adopted=True,
        waits=f"the next ask is due: {differs}" if differs else "",
        reason=ask.reason,
        timers=(0.0,),
    )


def _too_large(group: Group, ask: Ask, changes: Asking) -> str:
    """Why the target does not fit into `state`, or not beside an ask or a start; empty when it does."""
    assignment = changes.assignment
    state = group.snapshot.state
    after = replace(
        state,
        target=assignment.target,
        topics=assignment.topics,
        left_out=assignment.left_out,
        marks=tuple(group.membership.holds),
        reason=None,
    )
    size, room = len(after.to_bytes()), MAX_COMMIT_BYTES - ROOM_BYTES
    starts = (len(_start(assignment, target).to_bytes()) for target in assignment.target.values())
    beside = max(len(ask.to_bytes()), *starts, 0)
    if size + beside <= room:
        return ""
    return (
        f"the target takes {size} bytes, with an ask or a start beside it {size + beside}, and {room} fit into a multi"
    )


def _start(assignment: TargetAssignment, target: Target) -> Command:
    """The largest `start-fetcher` of a target."""
    topics = {topic: assignment.topics.get(topic, "") for topic in topics_of(target.partitions)}
    longest = 10**10
    return Command(START_FETCHER, longest, longest, target.incarnation, target.threads, NONE, topics, assignment.ask)


def _failed(group: Group, view: RequestView, ask: Ask, why: str) -> Asking:
    """Rule 6: the group keeps running, waiting members are notified, and the next leader is asked after a backoff."""
    before = group.before
    known = ask.members.get(ask.leader)
    failed = tuple(dict.fromkeys((*before.failed, *([known.identity] if known is not None else []))))
    client = replace(before, failed=failed, attempts=min(before.attempts + 1, MAX_COUNT), failed_ask=view.name)
    reason = shortened(f"leader {ask.leader} ({ask.protocol}) failed: {why}", LONGEST_REASON)
    return replace(
        unchanged(group, client),
        notices=_notices(group, ask, view.name, reason),
        waits=reason,
        has_failed=True,
        timers=(_backoff_s(client.attempts),),
    )


def _notices(group: Group, ask: Ask, name: str, reason: str) -> tuple[tuple[str, Command], ...]:
    """`assignment-failed` for every live member of the ask."""
    channels, epoch = group.snapshot.members.channels, group.snapshot.coordinator.epoch
    generation = group.snapshot.state.generation
    return tuple(
        (consumer, Command(ASSIGNMENT_FAILED, epoch, generation, registration.incarnation, ask=name, reason=reason))
        for consumer, registration in sorted(group.membership.live.items())
        if consumer in ask.members
        and ask.members[consumer].identity == group.members[consumer].identity
        and sum(sent.option == ASSIGNMENT_FAILED for sent in channels[consumer].commands) < MOST_NOTICES
    )


def _backoff_s(attempts: int) -> float:
    return Backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S).after(attempts)


# ---- a new ask


def _new_ask(group: Group) -> Asking:
    before = group.before
    quiet = unchanged(group, before)
    if not group.membership.everybody:
        target = unreadable(group.snapshot.state, group.snapshot.members, group.membership)
        assignment = TargetAssignment(target, {}, {}, before.ask, needs_barrier=True)
        return replace(quiet, assignment=assignment) if target else Asking()
    reason = _ask_reason(group)
    if not reason:
        grown_s = group.snapshot.requests.grown_age_s
        return replace(quiet, timers=(group.timeout_s - grown_s,)) if grown_s else quiet
    if before.attempts and (left_s := _backoff_s(before.attempts) - group.snapshot.requests.failed_age_s) > 0:
        failure = group.snapshot.state.reason or "the last assignment failed"
        return replace(quiet, waits=failure, has_failed=True, timers=(left_s,))
    leader, client = _leader(group)
    if not leader:
        return replace(quiet, waits="no member that lives can be asked for an assignment")
    return _asked(group, leader, client, reason)


def _asked(group: Group, leader: str, client: ClientSide, reason: str) -> Asking:
    previous = group.out  # a void one
    name = group.next_name
    outdated = previous.ask.outdated + 1 if previous is not None and previous.ask and previous.answer else 0
    ask = Ask(
        group.membership.agreed.strategy,
        leader,
        group.membership.live[leader].incarnation,
        group.members,
        group.membership.agreed.protocol_type,
        min(client.attempts + 1, MAX_COUNT),
        shortened(reason, LONGEST_REASON),
        group.snapshot.coordinator.now_ms,
        min(outdated, MAX_COUNT),
    )
    size, room = len(ask.to_bytes()), MAX_COMMIT_BYTES - ROOM_BYTES - len(group.snapshot.state.to_bytes())
    if size > room:
        too_large = f"an ask of {len(group.members)} members takes {size} bytes, and {room} are left beside `state`"
        return replace(unchanged(group, client), waits=too_large, has_failed=True)
    return replace(
        unchanged(group, client),
        made=(name, ask),
        assign=(leader, _assign_command(group, leader, name)),
        answered=group.snapshot.requests.sync_request,
        waits=f"{leader} is asked for an assignment ({ask.protocol})",
        timers=(group.timeout_s,),
    )


def _leader(group: Group) -> tuple[str, ClientSide]:
    """Rule 2: the oldest member that has not failed; when all have, the first again. Age is the seat's for static ones.

    Until an answer is adopted, members newer than an unanswered ask are not asked: a member that dies whenever it is
    asked, and rejoins as another, would be asked for ever.
    """
    snapshot, before = group.snapshot, _with_departed_leader(group)
    asked = _without_answer(group)
    members = {one.identity for one in asked.members.values()} if asked is not None else None

    def standing(name: str) -> tuple[int, str]:
        seat = snapshot.members.seats.get(name)
        has_seat = seat is not None and group.membership.live[name].instance_id == name
        return (seat.czxid if has_seat and seat is not None else snapshot.members.registered[name].czxid), name

    in_order = sorted(group.membership.live, key=standing)
    able = [
        name
        for name in in_order
        if (identity := group.members[name].identity) not in before.failed and (members is None or identity in members)
    ]
    if able:
        return able[0], before
    return (in_order[0] if in_order else ""), replace(before, failed=())


def _without_answer(group: Group) -> Ask | None:
    """The last ask, where nothing was adopted since: it failed, or is void."""
    view = group.out or (group.view(group.before.failed_ask) if group.before.attempts else None)
    return view.ask if view is not None else None


def _with_departed_leader(group: Group) -> ClientSide:
    """A departed leader without an answer counts as failed; no notice is needed."""
    view, before = group.out, group.before
    if view is None or view.ask is None or view.is_answered or view.ask.leader not in view.ask.members:
        return before
    departed = view.ask.members[view.ask.leader].identity
    return replace(before, failed=tuple(dict.fromkeys((*before.failed, departed))))


def _ask_reason(group: Group) -> str:
    """Rule 3: how the group differs from the adopted answer's view; empty without a difference.

    An ask without an adopted answer is always followed by another.
    """
    if (asked := _without_answer(group)) is not None:
        return asked.reason or "the last ask brought no answer"
    view = group.view(group.before.ask)
    if view is None or view.ask is None or view.answer is None:
        return group.trigger or "no answer has been adopted"
    if differs := _differs(group, view.ask, view.answer):
        return differs
    if idle := sorted(group.membership.live.keys() - group.snapshot.state.target.keys()):
        return f"joined {idle[0]}"
    return group.snapshot.requests.sync_request.reason if group.snapshot.requests.sync_request is not None else ""


def _differs(group: Group, ask: Ask, answer: Answer) -> str:
    """How the group differs from an answer's view; empty without a difference."""
    both = ask.members, group.members
    asked, now = ({name: (one.identity, one.digest) for name, one in each.items()} for each in both)
    if changed := changes_between(asked, now):
        return changed
    if (ask.protocol_type, ask.protocol) != (group.membership.agreed.protocol_type, group.membership.agreed.strategy):
        return f"protocol {group.membership.agreed.strategy}"
    topics = group.snapshot.partitions.topics
    if outdated := outdated_topic(answer, topics, but_grown=True):
        return outdated
    # Added partitions are the leader's business, which may wait for more, up to a timeout.
    return outdated_topic(answer, topics) if group.snapshot.requests.grown_age_s >= group.timeout_s else ""


def unchanged(group: Group, client: ClientSide, commands: Set[tuple[str, str]] = frozenset()) -> Asking:
    """The unchanged target; a static member's entry is for its current incarnation."""
    state, before = group.snapshot.state, group.before
    target = {name: _for_incarnation(group, name, one) for name, one in (state.target or sent_starts(group)).items()}
    left_out = {name: why for name, why in state.left_out.items() if name in state.topics}
    retained = unread_notices(group) | commands
    needs_barrier = before.protocol_type != CONSUMER
    assignment = TargetAssignment(target, state.topics, left_out, before.ask, needs_barrier, retained)
    return Asking(assignment, client, state.strategy)


def _for_incarnation(group: Group, name: str, target: Target) -> Target:
    """A member's target, for its current incarnation where it has come back to its seat."""
    registration = group.membership.everybody.get(name)
    if (
        registration is None
        or registration.instance_id != name
        or name not in group.snapshot.members.seats
        or registration.incarnation == target.incarnation
    ):
        return target
    return replace(target, incarnation=registration.incarnation, is_sent=False)


def unreadable(state: GroupState, facts: MemberFacts, membership: Membership) -> dict[str, Target]:
    """Members of a group without owners that were sent a start and whose registration cannot be read.

    They stay in the target: a process that takes over a name outside of it would wait for no lease.
    """
    client = state.client
    if client is None or client.protocol_type == CONSUMER:
        return {}
    targets = {}
    for name, target in state.target.items():
        channel = facts.channel_of(name)
        is_unread = name in facts.registered and name not in membership.everybody
        is_its_life = channel is not None and channel.is_live and channel.incarnation == target.incarnation
        if target.is_sent and is_unread and is_its_life:
            targets[name] = target
    return targets


def sent_starts(group: Group) -> dict[str, Target]:
    """Members that were sent a start in a group without owners, by their channels, where the target was lost."""
    if group.before.protocol_type == CONSUMER:
        return {}
    channels = {name: group.snapshot.members.channels[name].channel for name in group.membership.live}
    return {name: Target(one.incarnation, {}, is_sent=True) for name, one in channels.items() if one and one.ask}


def _sent_notices(group: Group) -> list[tuple[str, str, Command]]:
    """Unread `assignment-failed` commands, each with its member and its znode's name."""
    live = group.membership.live
    return [
        (name, sent.name, sent.command)
        for name, view in sorted(group.snapshot.members.channels.items())
        for sent in view.commands
        if sent.command is not None
        and sent.command.option == ASSIGNMENT_FAILED
        and name in live
        and sent.command.incarnation == live[name].incarnation
    ]


def unread_notices(group: Group) -> frozenset[tuple[str, str]]:
    """`assignment-failed` commands of this epoch: they stay, also when others follow."""
    epoch = group.snapshot.coordinator.epoch
    return frozenset((name, sent) for name, sent, command in _sent_notices(group) if command.epoch == epoch)


def with_obsolete_asks(group: Group, changes: Asking) -> Asking:
    """Add obsolete requests: all but the adopted, the pending and the last failed one, and, until every member has the
    new target, those whose entries a start may name."""
    client = changes.client
    names = {client.ask, client.failed_ask} if client is not None else set()
    if changes.made is None and not changes.is_adopted and group.out is not None and changes.waits:
        names.add(group.out.name)
    old = [view for view in group.snapshot.requests.asks if view.name not in names]
    adopted = ask_number(client.ask) if client is not None else 0
    readable = _readable_asks(group)
    was_adopted = [v for v in old if v.answer is not None and ask_number(v.name) < adopted and v.name in readable]
    obsolete = tuple(view for view in old if view not in was_adopted)
    answered = changes.answered if client is not None else group.snapshot.requests.sync_request
    return replace(
        changes,
        obsolete=obsolete,
        superseded=tuple(was_adopted),
        answered=answered,
        notices=(*_resent_notices(group), *changes.notices),
    )


def _readable_asks(group: Group) -> set[str]:
    """Asks whose entries a member may still read; a group that is never Stable keeps no others."""
    views = group.snapshot.members.channels.values()
    sent = {each.command.ask for view in views for each in view.commands if each.command is not None}
    return sent | {view.ask for view in views}


def _resent_notices(group: Group) -> tuple[tuple[str, Command], ...]:
    """`assignment-failed` commands of an earlier epoch: withdrawn with the others, and sent again."""
    epoch, generation = group.snapshot.coordinator.epoch, group.snapshot.state.generation
    return tuple(
        (name, replace(command, epoch=epoch, generation=generation))
        for name, _, command in _sent_notices(group)
        if command.epoch != epoch
    )
