"""What a turn's plan writes, as lines of text: see `turns.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zk_group.coordinator.planning.membership import Termination
from zk_group.coordinator.planning.plan import Plan
from zk_group.coordinator.planning.regional import RegionStep
from zk_group.coordinator.planning.snapshot import SentCommand, Snapshot
from zk_group.coordinator.zk.znodes.group_state import Ask, ClientSide, Mark, Rebalance, Target
from zk_group.coordinator.zk.znodes.partitions import PartitionSet
from zk_group.coordinator.zk.znodes.records import (
    ASSIGN,
    ASSIGNMENT_FAILED,
    DRAIN,
    START_FETCHER,
    STOP_FETCHER,
    UNKNOWN_MEMBER_ID,
    Command,
)

COMMANDS = {"start": START_FETCHER, "stop": STOP_FETCHER, "assign": ASSIGN, "failed": ASSIGNMENT_FAILED, "drain": DRAIN}
RECORD = {
    "started": "started_ms",
    "stopped": "stopped_ms",
    "finished": "finished_ms",
    "standing": "standing_since_ms",
    "silent": "silent_since_ms",
    "standstill": "standstill_ms",
    "assignment": "assignment_ms",
    "attempts": "attempts",
    "by": "replaced_by",
}
"""Options of a history record -> its fields."""
WORDS = {option: word for word, option in COMMANDS.items()}


def written(before: Snapshot, found: Plan, is_timed: bool) -> list[str]:
    """The lines of a plan: the state, its changes, and the znodes beside it."""
    state = found.state
    lines = [f"{name} fetched {ms} ms ago" for name, ms in before.history.silences.items()]
    lines += [f"{name} is back after a fetch {ms} ms ago" for name, ms in before.history.returned.items()]
    head = _head(found, found.changes(before.state))
    lines.append(" ".join(head) + (f": {state.reason}" if state.reason is not None else ""))
    if state.target != before.state.target:
        lines.append(f"target {'; '.join(_target(*each) for each in sorted(state.target.items())) or 'none'}")
    lines += [_mark(each) for each in state.marks]
    lines += [f"left out {what}: {why}" for what, why in state.left_out.items()]
    if state.region is not None and state.region != before.state.region:
        lines.append(f"group of {state.region.name} ready={state.region.ready} away={_list(state.region.away)}")
    if state.client != before.state.client:
        lines.append(_client(state.client))
    lines += [_end(end) for end in found.terminations]
    lines += [f"give up seat {each.instance}" for each in found.given_up]
    lines += [f"withdraw {_sent(*each)}" for each in found.withdrawn]
    if found.asking.made is not None:
        lines.append(_ask(*found.asking.made))
    lines += _commands(before.state.generation, found)
    if found.asking.answered is not None:
        lines.append("answer the request")
    if found.removed_asks:
        lines.append(f"remove asks {' '.join(_number(each.name) for each in found.removed_asks)}")
    if found.rebalance is not None and is_timed:
        lines.append(_rebalance(found.rebalance))
    if found.replaced is not None and is_timed:
        lines.append(f"replaced {_rebalance(found.replaced)}")
    if found.region is not None:
        lines.append(_region(found.region))
    if found.forgotten:
        lines.append(f"forget {_list(found.forgotten)}")
    return _shortened(lines)


def _shortened(lines: list[str]) -> list[str]:
    """A reason that has been given is `likewise`."""
    known, found = set(), []
    for what, colon, reason in (line.partition(": ") for line in lines):
        found.append(f"{what}: likewise" if reason in known else what + colon + reason)
        known |= {reason} - {""}
    return found


def _commands(before: int, found: Plan) -> list[str]:
    """The commands, those that say the same in one line; without that of an ask made just now, when it fits."""
    given: dict[str, list[tuple[str, str]]] = {}
    for name, command in found.commands:
        target = found.state.target.get(name)
        is_whole = target is not None and command.option == START_FETCHER and command.threads == target.threads
        same = _said(name, command, "of its target" if is_whole else "")
        given.setdefault(same, []).append((name, _said(name, command)))
    lines = [
        f"{_list(name for name, _ in some)} {same if len({text for _, text in some}) > 1 else some[0][1]}"
        for same, some in given.items()
    ]
    made, assign = found.asking.made, found.asking.assign
    if made is None:
        return lines
    if assign is None:
        return [*lines, "the leader gets no command"]
    name, command = assign
    expected = Command(ASSIGN, found.state.epoch, command.generation, made[1].incarnation, ask=made[0])
    is_usual = assign == (made[1].leader, expected) and command.generation in (found.state.generation, before)
    return [one for one in lines if one != _command(name, command)] if is_usual else lines


def _head(found: Plan, is_written: bool) -> Iterable[str]:
    yield f"{found.state.epoch}/{found.state.generation} {found.state.state} {found.state.strategy}".rstrip()
    if not is_written:
        yield "kept"
    if found.is_new_generation:
        yield "new"
    if found.asking.has_failed:
        yield "leader-failed"
    if found.again_s is not None:
        yield f"again={round(found.again_s, 3)}"


def _list(some: Iterable[object]) -> str:
    return ",".join(map(str, some)) or "-"


def _parts(name: str, given: Mapping[str, PartitionSet]) -> str:
    if given.keys() <= {f"{name}-0"}:
        return _list(sorted(given.get(f"{name}-0", ())))
    return " ".join(f"{thread}:{_list(sorted(some))}" for thread, some in sorted(given.items()))


def _number(name: str) -> str:
    return str(int(name.removeprefix("ask-"))) if name else "-"


def _target(name: str, one: Target) -> str:
    return f"{name} {one.incarnation} {_parts(name, one.threads)}{' sent' if one.is_sent else ''}"


def _mark(one: Mark) -> str:
    marked = f"mark {one.consumer} {one.incarnation} {_list(sorted(one.partitions))} lease={one.lease_ms}"
    since = f" since={one.since_ms}" if one.since_ms is not None else ""
    return marked + since + (f": {one.reason}" if one.reason else "")


def _client(one: ClientSide | None) -> str:
    if one is None:
        return "leaders none"
    some = {"ask": one.ask, "failed_ask": one.failed_ask, "floor": one.floor}
    options = [f"{key}={_number(name)}" for key, name in some.items() if name]
    options += ["cooperative"] if one.is_cooperative else []
    failed = [f"failed={_list(one.failed)}"] if one.failed else []
    attempts = [f"attempts={one.attempts}"] if one.attempts else []
    return " ".join(["leaders", one.protocol_type, *options, *failed, *attempts])


def _command(name: str, one: Command) -> str:
    return f"{name} {_said(name, one)}"


def _said(name: str, one: Command, some: str = "") -> str:
    some = some or (_parts(name, one.threads) if one.option == START_FETCHER else _list(sorted(one.partitions)))
    words = ["gets", WORDS[one.option], f"{one.epoch}/{one.generation}"]
    words += [some] if one.option in (START_FETCHER, STOP_FETCHER) else []
    words += [f"life={one.incarnation}"] if one.incarnation != f"{name}-1" else []
    words += [f"ask={_number(one.ask)}"] if one.ask else []
    return " ".join(words) + (f": {one.reason}" if one.reason else "")


def _region(step: RegionStep) -> str:
    after = step.after
    words = ["region", step.name, after.state, f"reset={after.reset}", f"groups={_list(after.groups)}"]
    words += [f"{group} begins at checkpoint {number}" for group, number in after.first.items()]
    words += [f"waits for checkpoint {step.held_for}"] if step.held_for else []
    words += ["touched"] if step.is_touched else []
    words += [f"aborts {step.aborted}"] if step.aborted else []
    return " ".join(words)


def _end(one: Termination) -> str:
    what = f"{'evict' if one.evicted else 'end'} {one.view.consumer} owners={_list(sorted(one.owners))}"
    seat = f" seat={one.seat.instance}" if one.seat is not None else ""
    error = f" {one.error}" if one.error != UNKNOWN_MEMBER_ID else ""
    return f"{what}{seat}{error}: {one.reason}"


def _sent(name: str, sent: SentCommand) -> str:
    number = int(sent.name.removeprefix("command-"))
    return f"number {number}: {_command(name, sent.command) if sent.command is not None else name}"


def _ask(name: str, one: Ask) -> str:
    members = _list(
        each if its.identity == f"{each}-1" else f"{each}:{its.identity}" for each, its in sorted(one.members.items())
    )
    words = ["make", "ask", _number(name), one.protocol, one.leader, f"members={members}"]
    words += [f"attempt={one.attempt}"] if one.attempt > 1 else []
    words += [f"outdated={one.outdated}"] if one.outdated else []
    words.append(f"digest={_list(dict.fromkeys(each.digest for each in one.members.values()))}")
    words.append(f"lease={_list(dict.fromkeys(each.lease_ms for each in one.members.values()))}")
    return " ".join(words) + f": {one.reason}"


def _rebalance(one: Rebalance) -> str:
    known = ((key, getattr(one, name)) for key, name in RECORD.items())
    options = "".join(f" {key}={value}" for key, value in known if value is not None and (value or key != "started"))
    return f"record {one.epoch}/{one.generation}{options}: {one.trigger}"
