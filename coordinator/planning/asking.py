"""Client-side assignment in a turn: whether to ask, whom, and what becomes of the answer. Pure.

Seed 001 with one departure: nobody stops before the answer is known. An ask changes nothing; generation and target move
when an answer is adopted, and from there stops and starts are those of every rebalance.

1. An ask that is out is waited for, whatever changes meanwhile: asking anew at each change would never settle.
2. Its answer is adopted for those who are still there, or its leader has failed and the next one is asked.
3. The group is asked again when members, their metadata or topics differ from what the adopted answer was for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..membership import Membership
from ..snapshot import AskView, Snapshot
from ..target import Wanted
from ..zk.commands import ASSIGN, ASSIGNMENT_FAILED, MAX_REASON, START_FETCHER, Command
from ..zk.fields import shortened
from ..zk.partitions import NONE, by_topic
from ..zk.records import Registration
from ..zk.state import ClientSide, Target
from ..zk.store import MAX_COMMIT_BYTES
from ..zk.sync import CONSUMER, SEAT_PREFIX, Answer, Ask, AskMember
from .answers import outdated_topic, verdict_on
from .group import Asking as Asking
from .group import Group
from .kept import kept_as_it_is as _kept
from .kept import standing_notices, tidied, unreadable

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
MOST_NOTICES = 10
"""A member that reads no `assignment-failed` is sent so many of them, and no more."""

ROOM_BYTES = 8_000
"""Of a multi, for its fence, reasons and marks, beside `state` and what goes with it."""

OUTDATED_AT_MOST = 5
"""So many answers in a row may be for topics as they were before; the next one counts as a failure of its leader."""


EMPTIED = Asking(Wanted({}, {}, {}))


def without_asks(snapshot: Snapshot, want: Wanted) -> Asking:
    """What is left to do for a group whose strategy is the coordinator's: the asks of an earlier time go."""
    return Asking(want, unneeded=snapshot.asks, answered=snapshot.sync_request)


def asking(snapshot: Snapshot, who: Membership, trigger: str, timeout_s: float, is_held: bool = False) -> Asking:
    """Decide what this turn does about asks.

    :param trigger: what asked for the turn.
    :param timeout_s: seconds that a leader has to answer.
    :param is_held: an answer is not adopted yet: the group's consistent region takes a checkpoint first.
    """
    group = Group(snapshot, who, trigger, timeout_s, is_held=is_held)
    group.members = {name: _as_asked(snapshot, name, one) for name, one in who.everybody.items()}
    found = _about_the_one_that_is_out(group)
    if found is None:
        found = _about_a_new_one(group)
    return tidied(group, found)


def identity(snapshot: Snapshot, consumer: str, registration: Registration) -> str:
    """Who a member is to an ask: its incarnation, or for a static member its seat, which outlives a bounce."""
    seat = snapshot.seats.get(consumer)
    if registration.instance_id == consumer and seat is not None:
        return f"{SEAT_PREFIX}{seat.czxid:x}"
    return registration.incarnation


def _as_asked(snapshot: Snapshot, consumer: str, one: Registration) -> AskMember:
    digest = one.client.digest if one.client is not None else ""
    return AskMember(identity(snapshot, consumer, one), digest, one.lease_ms)


# ---- the ask that is out


def _about_the_one_that_is_out(group: Group) -> Asking | None:
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


def _is_there(group: Group, ask: Ask) -> bool:
    """Whether the leader of an ask lives, in the life that was asked, and still knows the protocol."""
    registration = group.who.live.get(ask.leader)
    if registration is None or registration.client is None:
        return False
    return registration.incarnation == ask.incarnation and ask.protocol in registration.client.protocols


def _waited_for(group: Group, view: AskView, ask: Ask) -> Asking:
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


def _assign_command(group: Group, leader: str, ask: str) -> Command:
    state, incarnation = group.snapshot.state, group.who.live[leader].incarnation
    return Command(ASSIGN, group.snapshot.epoch, state.generation, incarnation, ask=ask)


def _judged(group: Group, view: AskView, ask: Ask) -> Asking | None:
    """The answer adopted, or its leader's failure; None where the leader is to be asked again: topics have changed."""
    verdict = verdict_on(group.snapshot.group, view, group.snapshot.topics)
    if verdict.failure:
        return _failed(group, view, ask, verdict.failure)
    if not verdict.outdated:
        found = _adopted(group, view, ask, verdict.left_out)
        if group.is_held:
            waits = f"the answer of {ask.leader} waits for a checkpoint of the region"
            return Asking(_kept(group), group.before, group.snapshot.state.strategy, waits=waits)
        too_large = _too_large(group, ask, found)
        return _failed(group, view, ask, too_large) if too_large else found
    if ask.outdated >= OUTDATED_AT_MOST:
        return _failed(group, view, ask, f"its answers are for other topics: {verdict.outdated}")
    return None


def _adopted(group: Group, view: AskView, ask: Ask, left_out: Mapping[str, str]) -> Asking:
    """The leader's whole answer, less those who have gone; who was left out of it is idle."""
    answer = view.answer
    target = {}
    for name, registration in sorted(group.who.everybody.items()):
        asked = ask.members.get(name)
        if asked is not None and asked.identity == group.members[name].identity:
            entry = view.entries.get(name)
            threads = entry.threads if entry is not None else {}
            before = group.snapshot.state.target.get(name)
            # Until it has stopped it may run what an earlier answer gave it.
            is_sent = before is not None and before.is_sent and before.incarnation == registration.incarnation
            has_state = entry is not None and bool(entry.member_state)
            target[name] = Target(registration.incarnation, threads, has_state, is_sent)
    want = Wanted(
        {**unreadable(group.snapshot, group.who), **target},
        dict(sorted(answer.topics.items())) if answer is not None else {},
        left_out,
        view.name,
        ask.protocol_type != CONSUMER,
        standing_notices(group),
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


def _too_large(group: Group, ask: Ask, found: Asking) -> str:
    """Why the target does not fit into `state`, or not beside an ask or a start; empty when it does."""
    want = found.want
    state = group.snapshot.state
    after = replace(
        state, target=want.target, topics=want.topics, left_out=want.left_out, marks=tuple(group.who.marks), reason=None
    )
    size, room = len(after.to_bytes()), MAX_COMMIT_BYTES - ROOM_BYTES
    starts = (len(_start(want, target).to_bytes()) for target in want.target.values())
    beside = max(len(ask.to_bytes()), *starts, 0)
    if size + beside <= room:
        return ""
    return (
        f"the target takes {size} bytes, with an ask or a start beside it {size + beside}, and {room} fit into a multi"
    )


def _start(want: Wanted, target: Target) -> Command:
    """The largest `start-fetcher` that a target may bring."""
    topics = {topic: want.topics.get(topic, "") for topic in by_topic(target.partitions)}
    longest = 10**10
    return Command(START_FETCHER, longest, longest, target.incarnation, target.threads, NONE, topics, want.ask)


def _failed(group: Group, view: AskView, ask: Ask, why: str) -> Asking:
    """Rule 6: the group runs on, who waits for the answer is told, and the next leader is asked after a backoff."""
    before = group.before
    known = ask.members.get(ask.leader)
    failed = tuple(dict.fromkeys((*before.failed, *([known.identity] if known is not None else []))))
    client = replace(before, failed=failed, attempts=before.attempts + 1, failed_ask=view.name)
    reason = shortened(f"leader {ask.leader} ({ask.protocol}) failed: {why}", MAX_REASON)
    return Asking(
        _kept(group),
        client,
        group.snapshot.state.strategy,
        notices=_notices(group, ask, view.name, reason),
        waits=reason,
        has_failed=True,
        timers=(_backoff_s(client.attempts),),
    )


def _notices(group: Group, ask: Ask, name: str, reason: str) -> tuple[tuple[str, Command], ...]:
    """`assignment-failed` for every member of the ask that lives."""
    epoch, generation = group.snapshot.epoch, group.snapshot.state.generation
    return tuple(
        (
            consumer,
            Command(ASSIGNMENT_FAILED, epoch, generation, one.incarnation, ask=name, reason=reason),
        )
        for consumer, one in sorted(group.who.live.items())
        if consumer in ask.members
        and ask.members[consumer].identity == group.members[consumer].identity
        and _unread(group, consumer) < MOST_NOTICES
    )


def _unread(group: Group, consumer: str) -> int:
    commands = group.snapshot.channels[consumer].commands
    return sum(sent.command is not None and sent.command.option == ASSIGNMENT_FAILED for sent in commands)


def _backoff_s(attempts: int) -> float:
    return float(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(attempts - 1, 10)))


# ---- another one


def _about_a_new_one(group: Group) -> Asking:
    before = group.before
    quiet = Asking(_kept(group), before, group.snapshot.state.strategy)
    if not group.who.everybody:
        target = unreadable(group.snapshot, group.who)
        return replace(quiet, want=Wanted(target, {}, {}, before.ask, is_exclusive=True)) if target else EMPTIED
    reason = _why_ask(group)
    if not reason:
        grown_s = group.snapshot.grown_age_s
        return replace(quiet, timers=(group.timeout_s - grown_s,)) if grown_s else quiet
    if before.attempts and (left_s := _backoff_s(before.attempts) - group.snapshot.failed_age_s) > 0:
        failure = group.snapshot.state.reason or "the last assignment failed"
        return replace(quiet, waits=failure, has_failed=True, timers=(left_s,))
    leader, client = _leader(group)
    if not leader:
        return replace(quiet, waits="no member that lives can be asked for an assignment")
    return _asked(group, leader, client, reason)


def _asked(group: Group, leader: str, client: ClientSide, reason: str) -> Asking:
    previous = group.out  # one that is of no use any more
    name = group.next_name
    outdated = previous.ask.outdated + 1 if previous is not None and previous.ask and previous.answer else 0
    ask = Ask(
        group.who.strategy,
        leader,
        group.who.live[leader].incarnation,
        group.members,
        group.who.protocol_type,
        client.attempts + 1,
        shortened(reason, MAX_REASON),
        group.snapshot.now_ms,
        outdated,
    )
    size, room = len(ask.to_bytes()), MAX_COMMIT_BYTES - ROOM_BYTES - len(group.snapshot.state.to_bytes())
    if size > room:
        too_large = f"an ask of {len(group.members)} members takes {size} bytes, and {room} are left beside `state`"
        return Asking(_kept(group), client, group.snapshot.state.strategy, waits=too_large, has_failed=True)
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


def _leader(group: Group) -> tuple[str, ClientSide]:
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


def _without_answer(group: Group) -> Ask | None:
    """The last ask, where nothing has been adopted since: it failed, or is of no use any more."""
    view = group.out or (group.view(group.before.failed_ask) if group.before.attempts else None)
    return view.ask if view is not None else None


def _with_the_gone(group: Group) -> ClientSide:
    """A leader that is gone without an answer counts as one that has failed; nobody need hear of it."""
    view, before = group.out, group.before
    if view is None or view.ask is None or view.is_answered or view.ask.leader not in view.ask.members:
        return before
    gone = view.ask.members[view.ask.leader].identity
    return replace(before, failed=tuple(dict.fromkeys((*before.failed, gone))))


def _why_ask(group: Group) -> str:
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


def _differs(group: Group, ask: Ask, answer: Answer) -> str:
    """In what the group differs from what an answer was for; empty when in nothing."""
    if changed := _changed(ask.members, group.members):
        return changed
    if (ask.protocol_type, ask.protocol) != (group.who.protocol_type, group.who.strategy):
        return f"protocol {group.who.strategy}"
    if outdated := outdated_topic(answer, group.snapshot.topics, but_grown=True):
        return outdated
    # Partitions that were added are the leader's business, which may wait for more; but not for ever.
    return outdated_topic(answer, group.snapshot.topics) if group.snapshot.grown_age_s >= group.timeout_s else ""


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
