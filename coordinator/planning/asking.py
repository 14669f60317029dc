"""Client-side assignment in a turn: whether to ask, whom, and what becomes of the answer. Pure.

Seed 001 with one departure: nobody stops before the answer is known. An ask changes nothing; generation and target move
when an answer is adopted, and from there stops and starts are those of every rebalance.

1. An ask that is out is waited for, whatever changes meanwhile: asking anew at each change would never settle.
2. Its answer is adopted for those who are still there, or its leader has failed and the next one is asked.
3. The group is asked again when members, their metadata or topics differ from what the adopted answer was for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..membership import Membership
from ..snapshot import AskView, Snapshot, SyncRequestView
from ..target import Wanted
from ..zk.commands import ASSIGN, ASSIGNMENT_FAILED, Command
from ..zk.paths import ask_name, ask_number
from ..zk.records import Registration
from ..zk.state import ClientSide, Target
from ..zk.store import MAX_COMMIT_BYTES
from ..zk.sync import CONSUMER, MAX_REASON, Answer, Ask, AskMember
from .answers import outdated_topic, verdict_on

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
MAX_STATE_BYTES = MAX_COMMIT_BYTES - 64_000
"""What a target may take in `state`: reasons, marks and one command of a multi need their room beside it."""

OUTDATED_AT_MOST = 5
"""So many answers in a row may be for topics as they were before; the next one counts as a failure of its leader."""


@dataclass(frozen=True, slots=True)
class Asking:
    """What a turn does about asks.

    :ivar want: the target that holds: the adopted answer's, or the one that the group has.
    :ivar client: what `state` says of it afterwards.
    :ivar is_adopted: whether an answer becomes the target in this turn.
    :ivar made: the name and content of an ask to create.
    :ivar assign: the command for its leader, or the one that is sent again.
    :ivar notices: who is told that the assignment has failed.
    :ivar unneeded: asks to remove.  :ivar superseded: those to remove when every member has been told of a later one.
    :ivar answered: the request of a leader that the new ask is made for.
    :ivar waits: why the group is not Stable; empty when there is nothing to wait for.
    :ivar has_failed: whether the last leader failed and no other has been asked yet.
    :ivar timers: seconds until something of this is due.
    :ivar reason: what asked for the adopted answer.
    """

    want: Wanted
    client: ClientSide | None = None
    strategy: str = ""
    is_adopted: bool = False
    made: tuple[str, Ask] | None = None
    assign: tuple[str, Command] | None = None
    notices: tuple[tuple[str, Command], ...] = ()
    unneeded: tuple[AskView, ...] = ()
    superseded: tuple[AskView, ...] = ()
    answered: SyncRequestView | None = None
    waits: str = ""
    has_failed: bool = False
    timers: tuple[float, ...] = ()
    reason: str = ""

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is to come before the group can be Stable."""
        return bool(self.waits)


@dataclass(slots=True)
class _Group:
    """A group in one turn, with what is derived from its snapshot once."""

    snapshot: Snapshot
    who: Membership
    trigger: str
    timeout_s: float
    members: Mapping[str, AskMember] = field(default_factory=dict)

    @property
    def before(self) -> ClientSide:
        """What `state` says; where it says nothing, every answer that stands is of an earlier time."""
        if self.snapshot.state.client is not None:
            return self.snapshot.state.client
        asks = self.snapshot.asks
        return ClientSide(self.who.protocol_type, floor=asks[-1].name if asks else "")

    def view(self, name: str) -> AskView | None:
        return next((view for view in self.snapshot.asks if view.name == name), None)

    @property
    def newest(self) -> int:
        """The highest number of an ask that is known of."""
        names = [view.name for view in self.snapshot.asks]
        return max(map(ask_number, (*names, self.before.ask, self.before.failed_ask, self.before.floor)))

    @property
    def out(self) -> AskView | None:
        """The ask that has neither been adopted nor failed."""
        handled = max(map(ask_number, (self.before.ask, self.before.failed_ask, self.before.floor)))
        open_ones = [view for view in self.snapshot.asks if ask_number(view.name) > handled]
        return open_ones[-1] if open_ones else None


def without_asks(snapshot: Snapshot, want: Wanted) -> Asking:
    """What is left to do for a group whose strategy is the coordinator's: the asks of an earlier time go."""
    return Asking(want, unneeded=snapshot.asks, answered=snapshot.sync_request)


def asking(snapshot: Snapshot, who: Membership, trigger: str, timeout_s: float) -> Asking:
    """Decide what this turn does about asks.

    :param trigger: what asked for the turn.
    :param timeout_s: seconds that a leader has to answer.
    """
    group = _Group(snapshot, who, trigger, timeout_s)
    group.members = {name: _as_asked(snapshot, name, one) for name, one in who.everybody.items()}
    found = _about_the_one_that_is_out(group)
    if found is None:
        found = _about_a_new_one(group)
    return _tidied(group, found)


def identity(snapshot: Snapshot, consumer: str, registration: Registration) -> str:
    """Who a member is to an ask: its incarnation, or for a static member its seat, which outlives a bounce."""
    seat = snapshot.seats.get(consumer)
    if registration.instance_id == consumer and seat is not None:
        return f"seat-{seat.czxid:x}"
    return registration.incarnation


def _as_asked(snapshot: Snapshot, consumer: str, one: Registration) -> AskMember:
    digest = one.client.digest if one.client is not None else ""
    return AskMember(identity(snapshot, consumer, one), digest, one.lease_ms)


# ---- the ask that is out


def _about_the_one_that_is_out(group: _Group) -> Asking | None:
    """What becomes of the ask that is out; None when there is none, or it is no use any more."""
    view = group.out
    if view is None or view.ask is None or not group.who.everybody:
        return None
    if view.is_answered:
        return _judged(group, view, view.ask)
    if not _is_there(group, view.ask) or view.ask.protocol_type != group.who.protocol_type:
        return None
    if view.age_s >= group.timeout_s:
        return _failed(group, view, view.ask, f"it has not answered for {group.timeout_s * 1000:.0f} ms")
    return _waited_for(group, view, view.ask)


def _is_there(group: _Group, ask: Ask) -> bool:
    """Whether the leader of an ask lives, in the life that was asked, and still knows the protocol."""
    registration = group.who.live.get(ask.leader)
    if registration is None or registration.client is None:
        return False
    return registration.incarnation == ask.incarnation and ask.protocol in registration.client.protocols


def _waited_for(group: _Group, view: AskView, ask: Ask) -> Asking:
    """The leader has been asked; where its command is another epoch's, or went with one, it is asked again, for the
    same. Where it is gone though this coordinator has sent it, its leader has removed it without an answer."""
    sent = _assign_command(group, ask.leader, view.name)
    commands = group.snapshot.channels[ask.leader].commands
    stands = next((each.name for each in commands if each.command == sent), None)
    is_old = any(each.command is not None and each.command.ask == view.name for each in commands)
    if stands is None and not is_old and group.snapshot.state.epoch == group.snapshot.epoch:
        return _failed(group, view, ask, "it has acknowledged its assign without an answer")
    tries = f", attempt {ask.attempt}" if ask.attempt > 1 else ""
    return Asking(
        _kept(group, {(ask.leader, stands)} if stands else set()),
        group.before,
        group.snapshot.state.strategy,
        assign=None if stands else (ask.leader, sent),
        waits=f"{ask.leader} is asked for an assignment ({ask.protocol}{tries})",
        timers=(group.timeout_s - view.age_s,),
    )


def _assign_command(group: _Group, leader: str, ask: str) -> Command:
    state, incarnation = group.snapshot.state, group.who.live[leader].incarnation
    return Command(ASSIGN, group.snapshot.epoch, state.generation, incarnation, ask=ask)


def _judged(group: _Group, view: AskView, ask: Ask) -> Asking | None:
    """The answer adopted, or its leader's failure; None where the leader is to be asked again: topics have changed."""
    verdict = verdict_on(group.snapshot.group, view, group.snapshot.topics)
    if verdict.failure:
        return _failed(group, view, ask, verdict.failure)
    if not verdict.outdated:
        found = _adopted(group, view, ask, verdict.left_out)
        too_large = _too_large(group, found)
        return _failed(group, view, ask, too_large) if too_large else found
    if ask.outdated >= OUTDATED_AT_MOST:
        return _failed(group, view, ask, f"its answers are for other topics: {verdict.outdated}")
    return None


def _adopted(group: _Group, view: AskView, ask: Ask, left_out: Mapping[str, str]) -> Asking:
    """The leader's whole answer, less those who have gone; who was left out of it is idle."""
    answer = view.answer
    target = {}
    for name, registration in sorted(group.who.everybody.items()):
        asked = ask.members.get(name)
        if asked is not None and asked.identity == group.members[name].identity:
            entry = view.entries.get(name)
            threads = entry.threads if entry is not None else {}
            target[name] = Target(registration.incarnation, threads, entry is not None and bool(entry.member_state))
    want = Wanted(
        target,
        dict(sorted(answer.topics.items())) if answer is not None else {},
        left_out,
        view.name,
        ask.protocol_type != CONSUMER,
        _standing_notices(group),
    )
    client = ClientSide(ask.protocol_type, view.name, answer is not None and answer.is_cooperative)
    differs = _differs(group, ask, answer) if answer is not None else ""
    return Asking(
        want,
        client,
        ask.protocol,
        is_adopted=True,
        waits=f"the next ask is due: {differs}" if differs else "",
        reason=ask.reason,
        timers=(0.0,),
    )


def _too_large(group: _Group, found: Asking) -> str:
    """Why the target does not fit into `state`; empty when it does."""
    want = found.want
    after = replace(group.snapshot.state, target=want.target, topics=want.topics, left_out=want.left_out)
    size = len(after.to_bytes())
    return f"the target takes {size} bytes, and `state` may have {MAX_STATE_BYTES}" if size > MAX_STATE_BYTES else ""


def _failed(group: _Group, view: AskView, ask: Ask, why: str) -> Asking:
    """Rule 6: the group runs on, who waits for the answer is told, and the next leader is asked after a backoff."""
    before = group.before
    known = ask.members.get(ask.leader)
    failed = tuple(dict.fromkeys((*before.failed, *([known.identity] if known is not None else []))))
    client = replace(before, failed=failed, attempts=before.attempts + 1, failed_ask=view.name)
    reason = f"leader {ask.leader} ({ask.protocol}) failed: {why}"
    return Asking(
        _kept(group),
        client,
        group.snapshot.state.strategy,
        notices=_notices(group, ask, view.name, reason),
        waits=reason,
        has_failed=True,
        timers=(_backoff_s(client.attempts),),
    )


def _notices(group: _Group, ask: Ask, name: str, reason: str) -> tuple[tuple[str, Command], ...]:
    """`assignment-failed` for every member of the ask that lives."""
    epoch, generation = group.snapshot.epoch, group.snapshot.state.generation
    return tuple(
        (
            consumer,
            Command(ASSIGNMENT_FAILED, epoch, generation, one.incarnation, ask=name, reason=reason[:MAX_REASON]),
        )
        for consumer, one in sorted(group.who.live.items())
        if consumer in ask.members and ask.members[consumer].identity == group.members[consumer].identity
    )


def _backoff_s(attempts: int) -> float:
    return float(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(attempts - 1, 10)))


# ---- another one


def _about_a_new_one(group: _Group) -> Asking:
    before = group.before
    quiet = Asking(_kept(group), before, group.snapshot.state.strategy)
    if not group.who.everybody:
        return Asking(Wanted({}, {}, {}))
    reason = _why_ask(group)
    if not reason:
        return quiet
    if before.attempts and (left_s := _backoff_s(before.attempts) - group.snapshot.failed_age_s) > 0:
        failure = group.snapshot.state.reason or "the last assignment failed"
        return replace(quiet, waits=failure, has_failed=True, timers=(left_s,))
    leader, client = _leader(group)
    if not leader:
        return replace(quiet, waits="no member that lives can be asked for an assignment")
    return _asked(group, leader, client, reason)


def _asked(group: _Group, leader: str, client: ClientSide, reason: str) -> Asking:
    previous = group.out  # one that is of no use any more
    name = ask_name(group.newest + 1)
    outdated = previous.ask.outdated + 1 if previous is not None and previous.ask and previous.answer else 0
    ask = Ask(
        group.who.strategy,
        leader,
        group.who.live[leader].incarnation,
        group.members,
        group.who.protocol_type,
        client.attempts + 1,
        reason[:MAX_REASON],
        group.snapshot.now_ms,
        outdated,
    )
    return Asking(
        _kept(group),
        client,
        group.snapshot.state.strategy,
        made=(name, ask),
        assign=(leader, _assign_command(group, leader, name)),
        answered=group.snapshot.sync_request,
        waits=f"{leader} is asked for an assignment ({ask.protocol})",
        timers=(group.timeout_s,),
    )


def _leader(group: _Group) -> tuple[str, ClientSide]:
    """Rule 2: of longest standing, and has not failed; when all have, the first again. A seat counts, not its lives.

    Who came after an ask that brought no answer is not asked before one is adopted: else a member that dies whenever it
    is asked, and comes back as another, would be asked for ever.
    """
    snapshot, before = group.snapshot, _with_the_gone(group)
    asked = _without_answer(group)
    members = {one.identity for one in asked.members.values()} if asked is not None else None

    def standing(name: str) -> tuple[int, str]:
        seat = snapshot.seats.get(name)
        has_seat = seat is not None and group.who.live[name].instance_id == name
        return (seat.czxid if has_seat and seat is not None else snapshot.members[name].czxid), name

    in_order = sorted(group.who.live, key=standing)
    able = [
        name
        for name in in_order
        if (identity := group.members[name].identity) not in before.failed and (members is None or identity in members)
    ]
    if able:
        return able[0], before
    return (in_order[0] if in_order else ""), replace(before, failed=())


def _without_answer(group: _Group) -> Ask | None:
    """The last ask, where nothing has been adopted since: it failed, or is of no use any more."""
    view = group.out or (group.view(group.before.failed_ask) if group.before.attempts else None)
    return view.ask if view is not None else None


def _with_the_gone(group: _Group) -> ClientSide:
    """A leader that is gone without an answer counts as one that has failed; nobody need hear of it."""
    view, before = group.out, group.before
    if view is None or view.ask is None or view.is_answered or view.ask.leader not in view.ask.members:
        return before
    gone = view.ask.members[view.ask.leader].identity
    return replace(before, failed=tuple(dict.fromkeys((*before.failed, gone))))


def _why_ask(group: _Group) -> str:
    """Rule 3: in what the group differs from what the adopted answer was for; empty when in nothing.

    An ask without an answer that was adopted is followed by another, whatever it was made for.
    """
    if (asked := _without_answer(group)) is not None:
        return asked.reason or "the last ask brought no answer"
    view = group.view(group.before.ask)
    if view is None or view.ask is None or view.answer is None:
        return group.trigger or "no answer has been adopted"
    if differs := _differs(group, view.ask, view.answer):
        return differs
    if idle := sorted(group.who.live.keys() - group.snapshot.state.target.keys()):
        return f"joined {idle[0]}"
    return group.snapshot.sync_request.reason if group.snapshot.sync_request is not None else ""


def _differs(group: _Group, ask: Ask, answer: Answer) -> str:
    """In what the group differs from what an answer was for; empty when in nothing."""
    if changed := _changed(ask.members, group.members):
        return changed
    if (ask.protocol_type, ask.protocol) != (group.who.protocol_type, group.who.strategy):
        return f"protocol {group.who.strategy}"
    return outdated_topic(answer, group.snapshot.topics)


def _changed(asked: Mapping[str, AskMember], now: Mapping[str, AskMember]) -> str:
    joined = sorted(name for name, one in now.items() if name not in asked or asked[name].identity != one.identity)
    left = sorted(asked.keys() - now.keys())
    changed = sorted(n for n, one in now.items() if n in asked and n not in joined and asked[n].digest != one.digest)
    said = [
        f"{what} {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for what, names in (("joined", joined), ("left", left), ("changed", changed))
        if names
    ]
    return "; ".join(said)


# ---- what holds, and what goes


def _kept(group: _Group, commands: set[tuple[str, str]] | None = None) -> Wanted:
    """The target as it is; a static member's is meant for the life that it is in."""
    state = group.snapshot.state
    target = {name: _in_its_life(group, name, one) for name, one in (state.target or still_told(group)).items()}
    left_out = {name: why for name, why in state.left_out.items() if name in state.topics}
    client = group.before
    kept = frozenset(commands or ()) | _standing_notices(group)
    is_exclusive = client.protocol_type != CONSUMER
    return Wanted(target, state.topics, left_out, client.ask, is_exclusive, kept)


def _in_its_life(group: _Group, name: str, one: Target) -> Target:
    """What a member has in the target, meant for the life that it is in, where it has come back to its seat."""
    now = group.who.everybody.get(name)
    if now is None or now.instance_id != name or name not in group.snapshot.seats or now.incarnation == one.incarnation:
        return one
    return replace(one, incarnation=now.incarnation, is_sent=False)


def still_told(group: _Group) -> dict[str, Target]:
    """Who was told to run something without owners, by channels, where the target that said so is lost."""
    if group.before.protocol_type == CONSUMER:
        return {}
    channels = {name: group.snapshot.channels[name].channel for name in group.who.live}
    return {name: Target(one.incarnation, {}, is_sent=True) for name, one in channels.items() if one and one.ask}


def _standing_notices(group: _Group) -> frozenset[tuple[str, str]]:
    """`assignment-failed` that nobody has read yet: it is told whatever has come since."""
    return frozenset(
        (name, sent.name)
        for name, view in group.snapshot.channels.items()
        for sent in view.commands
        if sent.command is not None
        and sent.command.option == ASSIGNMENT_FAILED
        and name in group.who.live
        and sent.command.incarnation == group.who.live[name].incarnation
        and sent.command.epoch == group.snapshot.epoch
    )


def _tidied(group: _Group, found: Asking) -> Asking:
    """Which asks nobody needs: not the adopted one, the one that is out, the last one that failed, and, until every
    member has been told of the new target, those whose entries a start may name."""
    client = found.client
    names = {client.ask, client.failed_ask} if client is not None else set()
    if found.made is None and not found.is_adopted and group.out is not None and found.waits:
        names.add(group.out.name)
    old = [view for view in group.snapshot.asks if view.name not in names]
    adopted = ask_number(client.ask) if client is not None else 0
    told = _told_of(group)
    was_adopted = [v for v in old if v.answer is not None and ask_number(v.name) < adopted and v.name in told]
    unneeded = tuple(view for view in old if view not in was_adopted)
    answered = found.answered if client is not None else group.snapshot.sync_request
    return replace(
        found,
        unneeded=unneeded,
        superseded=tuple(was_adopted),
        answered=answered,
        notices=found.notices or _told_again(group),
    )


def _told_of(group: _Group) -> set[str]:
    """Asks whose entries somebody may still read; a group that is never Stable keeps no others."""
    views = group.snapshot.channels.values()
    sent = {each.command.ask for view in views for each in view.commands if each.command is not None}
    return sent | {view.channel.ask for view in views if view.channel is not None}


def _told_again(group: _Group) -> tuple[tuple[str, Command], ...]:
    """`assignment-failed` of an earlier epoch that nobody has read: it is withdrawn with the others, and sent anew."""
    return tuple(
        (name, replace(sent.command, epoch=group.snapshot.epoch, generation=group.snapshot.state.generation))
        for name, view in sorted(group.snapshot.channels.items())
        for sent in view.commands[-1:]
        if sent.command is not None
        and sent.command.option == ASSIGNMENT_FAILED
        and sent.command.epoch != group.snapshot.epoch
        and name in group.who.live
        and sent.command.incarnation == group.who.live[name].incarnation
    )
