"""Client-side assignment in a turn: whether to ask, which leader, and the effect of its answer. Pure.

Seed 001 with one departure: no member stops before the answer is known. An ask changes nothing; generation and target
move when an answer is adopted, and from there stops and starts are those of every rebalance.

1. A pending ask is waited for, also while members change: a new ask at each change would never settle.
2. Its answer is adopted for the members still present, or its leader has failed and the next one is asked.
3. The group asks again when members, their metadata or topics differ from the adopted answer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..zk.store import MAX_COMMIT_BYTES
from ..zk.znodes.group_state import CONSUMER, SEAT_PREFIX, Answer, Ask, AskMember, ClientSide, Target
from ..zk.znodes.json_fields import MAX_COUNT, shortened
from ..zk.znodes.partitions import NONE, topics_of
from ..zk.znodes.records import ASSIGN, ASSIGNMENT_FAILED, MAX_REASON, START_FETCHER, Command, Registration
from .answers import outdated_topic, verdict_on
from .group import Asking as Asking
from .group import Group
from .kept import unchanged_target, unread_notices, unreadable, with_unneeded_asks
from .membership import Membership
from .snapshot import AskView, Snapshot
from .target import Wanted

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
MOST_NOTICES = 10
"""Limit of `assignment-failed` commands in the channel of a member that does not read them."""

ROOM_BYTES = 8_000
"""Bytes of a multi reserved for its fence, reasons and marks, beside `state` and its companions."""

OUTDATED_AT_MOST = 5
"""Consecutive answers that may be for outdated topics; the next one counts as a failure of its leader."""


EMPTIED = Asking(Wanted({}, {}, {}))


def without_asks(snapshot: Snapshot, assignment: Wanted) -> Asking:
    """What a group under the coordinator's strategies still does about asks: remove old ones."""
    return Asking(assignment, unneeded=snapshot.asks, answered=snapshot.sync_request)


def asking(snapshot: Snapshot, membership: Membership, trigger: str, timeout_s: float, is_held: bool = False) -> Asking:
    """Decide this turn's actions on asks.

    :param trigger: the turn's trigger.
    :param timeout_s: seconds that a leader has to answer.
    :param is_held: adopt no answer yet: the group's consistent region takes a checkpoint first.
    """
    group = Group(snapshot, membership, trigger, timeout_s, is_held=is_held)
    group.members = {name: _ask_member(snapshot, name, one) for name, one in membership.everybody.items()}
    found = _pending_ask(group)
    if found is None:
        found = _new_ask(group)
    return with_unneeded_asks(group, found)


def identity(snapshot: Snapshot, consumer: str, registration: Registration) -> str:
    """A member's identity in an ask: its incarnation, or for a static member its seat, which outlives a bounce."""
    seat = snapshot.seats.get(consumer)
    if registration.instance_id == consumer and seat is not None:
        return f"{SEAT_PREFIX}{seat.czxid:x}"
    return registration.incarnation


def _ask_member(snapshot: Snapshot, consumer: str, one: Registration) -> AskMember:
    digest = one.client.digest if one.client is not None else ""
    return AskMember(identity(snapshot, consumer, one), digest, one.lease_ms)


# ---- the pending ask


def _pending_ask(group: Group) -> Asking | None:
    """The decision on the pending ask; None without one, or when it is void."""
    view = group.out
    if view is None or view.ask is None or not group.membership.everybody:
        return None
    if view.is_answered:
        return _decided(group, view, view.ask)
    if not _is_leader_alive(group, view.ask) or view.ask.protocol_type != group.membership.protocol_type:
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


def _wait_for_answer(group: Group, view: AskView, ask: Ask) -> Asking:
    """The leader was asked. A command of another epoch, or one removed with it, is sent again for the same ask.
    A command of this epoch that is gone was removed by the leader, without an answer."""
    sent = _assign_command(group, ask.leader, view.name)
    commands = group.snapshot.channels[ask.leader].commands
    existing = next((each.name for each in commands if each.command == sent), None)
    is_old = any(each.command is not None and each.command.ask == view.name for each in commands)
    if existing is None and not is_old and group.snapshot.state.epoch == group.snapshot.epoch:
        return _failed(group, view, ask, "it has acknowledged its assign without an answer")
    tries = f", attempt {ask.attempt}" if ask.attempt > 1 else ""
    return Asking(
        unchanged_target(group, {(ask.leader, existing)} if existing else set()),
        group.before,
        group.snapshot.state.strategy,
        assign=None if existing else (ask.leader, sent),
        waits=f"{ask.leader} is asked for an assignment ({ask.protocol}{tries})",
        timers=(group.timeout_s - view.age_s,),
    )


def _assign_command(group: Group, leader: str, ask: str) -> Command:
    state, incarnation = group.snapshot.state, group.membership.live[leader].incarnation
    return Command(ASSIGN, group.snapshot.epoch, state.generation, incarnation, ask=ask)


def _decided(group: Group, view: AskView, ask: Ask) -> Asking | None:
    """The answer adopted, or its leader's failure; None to ask the leader again, since topics have changed."""
    verdict = verdict_on(group.snapshot.group, view, group.snapshot.topics)
    if verdict.failure:
        return _failed(group, view, ask, verdict.failure)
    if not verdict.outdated:
        found = _adopted(group, view, ask, verdict.left_out)
        if group.is_held:
            waits = f"the answer of {ask.leader} waits for a checkpoint of the region"
            return Asking(unchanged_target(group), group.before, group.snapshot.state.strategy, waits=waits)
        too_large = _too_large(group, ask, found)
        return _failed(group, view, ask, too_large) if too_large else found
    if ask.outdated >= OUTDATED_AT_MOST:
        return _failed(group, view, ask, f"its answers are for other topics: {verdict.outdated}")
    return None


def _adopted(group: Group, view: AskView, ask: Ask, left_out: Mapping[str, str]) -> Asking:
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
    assignment = Wanted(
        {**unreadable(group.snapshot, group.membership), **target},
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


def _too_large(group: Group, ask: Ask, found: Asking) -> str:
    """Why the target does not fit into `state`, or not beside an ask or a start; empty when it does."""
    assignment = found.assignment
    state = group.snapshot.state
    after = replace(
        state,
        target=assignment.target,
        topics=assignment.topics,
        left_out=assignment.left_out,
        marks=tuple(group.membership.marks),
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


def _start(assignment: Wanted, target: Target) -> Command:
    """The largest `start-fetcher` of a target."""
    topics = {topic: assignment.topics.get(topic, "") for topic in topics_of(target.partitions)}
    longest = 10**10
    return Command(START_FETCHER, longest, longest, target.incarnation, target.threads, NONE, topics, assignment.ask)


def _failed(group: Group, view: AskView, ask: Ask, why: str) -> Asking:
    """Rule 6: the group keeps running, the waiting members are notified, the next leader is asked after a backoff."""
    before = group.before
    known = ask.members.get(ask.leader)
    failed = tuple(dict.fromkeys((*before.failed, *([known.identity] if known is not None else []))))
    client = replace(before, failed=failed, attempts=min(before.attempts + 1, MAX_COUNT), failed_ask=view.name)
    reason = shortened(f"leader {ask.leader} ({ask.protocol}) failed: {why}", MAX_REASON)
    return Asking(
        unchanged_target(group),
        client,
        group.snapshot.state.strategy,
        notices=_notices(group, ask, view.name, reason),
        waits=reason,
        has_failed=True,
        timers=(_backoff_s(client.attempts),),
    )


def _notices(group: Group, ask: Ask, name: str, reason: str) -> tuple[tuple[str, Command], ...]:
    """`assignment-failed` for every live member of the ask."""
    epoch, generation = group.snapshot.epoch, group.snapshot.state.generation
    return tuple(
        (
            consumer,
            Command(ASSIGNMENT_FAILED, epoch, generation, one.incarnation, ask=name, reason=reason),
        )
        for consumer, one in sorted(group.membership.live.items())
        if consumer in ask.members
        and ask.members[consumer].identity == group.members[consumer].identity
        and _unread(group, consumer) < MOST_NOTICES
    )


def _unread(group: Group, consumer: str) -> int:
    commands = group.snapshot.channels[consumer].commands
    return sum(sent.command is not None and sent.command.option == ASSIGNMENT_FAILED for sent in commands)


def _backoff_s(attempts: int) -> float:
    return float(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(attempts - 1, 10)))


# ---- a new ask


def _new_ask(group: Group) -> Asking:
    before = group.before
    quiet = Asking(unchanged_target(group), before, group.snapshot.state.strategy)
    if not group.membership.everybody:
        target = unreadable(group.snapshot, group.membership)
        return replace(quiet, assignment=Wanted(target, {}, {}, before.ask, is_exclusive=True)) if target else EMPTIED
    reason = _ask_reason(group)
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
    previous = group.out  # a void one
    name = group.next_name
    outdated = previous.ask.outdated + 1 if previous is not None and previous.ask and previous.answer else 0
    ask = Ask(
        group.membership.strategy,
        leader,
        group.membership.live[leader].incarnation,
        group.members,
        group.membership.protocol_type,
        min(client.attempts + 1, MAX_COUNT),
        shortened(reason, MAX_REASON),
        group.snapshot.now_ms,
        min(outdated, MAX_COUNT),
    )
    size, room = len(ask.to_bytes()), MAX_COMMIT_BYTES - ROOM_BYTES - len(group.snapshot.state.to_bytes())
    if size > room:
        too_large = f"an ask of {len(group.members)} members takes {size} bytes, and {room} are left beside `state`"
        return Asking(unchanged_target(group), client, group.snapshot.state.strategy, waits=too_large, has_failed=True)
    return Asking(
        unchanged_target(group),
        client,
        group.snapshot.state.strategy,
        made=(name, ask),
        assign=(leader, _assign_command(group, leader, name)),
        answered=group.snapshot.sync_request,
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
        seat = snapshot.seats.get(name)
        has_seat = seat is not None and group.membership.live[name].instance_id == name
        return (seat.czxid if has_seat and seat is not None else snapshot.members[name].czxid), name

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
    return group.snapshot.sync_request.reason if group.snapshot.sync_request is not None else ""


def _differs(group: Group, ask: Ask, answer: Answer) -> str:
    """How the group differs from an answer's view; empty without a difference."""
    if changed := _changed(ask.members, group.members):
        return changed
    if (ask.protocol_type, ask.protocol) != (group.membership.protocol_type, group.membership.strategy):
        return f"protocol {group.membership.strategy}"
    if outdated := outdated_topic(answer, group.snapshot.topics, but_grown=True):
        return outdated
    # Added partitions are the leader's business, which may wait for more, up to a timeout.
    return outdated_topic(answer, group.snapshot.topics) if group.snapshot.grown_age_s >= group.timeout_s else ""


def _changed(asked: Mapping[str, AskMember], now: Mapping[str, AskMember]) -> str:
    joined = sorted(name for name, one in now.items() if name not in asked or asked[name].identity != one.identity)
    left = sorted(asked.keys() - now.keys())
    changed = sorted(n for n, one in now.items() if n in asked and n not in joined and asked[n].digest != one.digest)
    changes = [
        f"{what} {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for what, names in (("joined", joined), ("left", left), ("changed", changed))
        if names
    ]
    return "; ".join(changes)
