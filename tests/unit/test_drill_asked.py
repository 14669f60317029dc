"""Client-side assignment in the history of a drill: asks, failures, and when the group was Stable again."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.zk.znodes.group_state import COMPLETING, FAILED, STABLE, Ask, AskMember, ClientSide, GroupState, Target
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import ASSIGNMENT_FAILED, Command
from drills.evidence.fetch_intervals import AskSummary, asked, asks_of, holds
from drills.evidence.measurements import changes_of_members, replayed

Made = dict[str, Any]
GROUP = GroupPaths("g")
FIRST, SECOND = "ask-0000000001", "ask-0000000002"


def event(at: float, who: str, kind: str, /, **fields: Any) -> Made:
    return {"at": at, "who": who, "event": kind, **fields}


def commit(at: float, who: str, *ops: Made) -> Made:
    return event(at, who, "commit", zxid=round(10_000 * at), ops=list(ops))


def created(path: str, data: bytes = b"") -> Made:
    return {"op": "create", "path": path, "data": data.decode(), "ephemeral": False}


def deleted(path: str) -> Made:
    return {"op": "delete", "path": path}


def ask(name: str, leader: str, *members: str) -> Made:
    asked_for = {each: AskMember(each, "") for each in members}
    return created(
        GROUP.ask(name), Ask(protocol="drill", leader=leader, incarnation=leader, members=asked_for).to_bytes()
    )


def state(name: str, *members: str, ask: str = "", failed: str = "", generation: int = 1) -> Made:
    client = ClientSide("consumer", ask, failed_ask=failed, attempts=int(bool(failed)))
    found = GroupState(name, generation, target={each: Target(each, {}) for each in members}, client=client)
    return {"op": "set", "path": GROUP.state, "data": found.to_bytes().decode(), "version": 1}


def notice(consumer: str) -> Made:
    return created(GROUP.command(consumer, NOTICE), Command(ASSIGNMENT_FAILED, 1, 1, consumer, ask=FIRST).to_bytes())


NOTICE = "command-0000000007"


def begin(at: float, who: str, *numbers: int) -> Made:
    parts = {"t": {str(number): 0 for number in numbers}}
    return event(at, who, "begin", group="g", consumer=who.partition("#")[0], incarnation=who, partitions=parts)


def fetch(at: float, who: str, *numbers: int) -> Made:
    ranges = [{"topic": "t", "topic_id": "i", "partition": number, "first": 0, "next": 1} for number in numbers]
    return event(at, who, "fetch", consumer=who.partition("#")[0], incarnation=who, ranges=ranges)


@pytest.fixture
def failed() -> list[Made]:
    """The leader a is asked at 10 s and has failed at 12 s; b is asked at 12.3 s, and its answer adopted at 12.5 s."""
    return [
        event(0.0, "server", "run"),
        commit(0.8, "a#1", created(GROUP.channel("a"))),
        commit(0.9, "b#1", created(GROUP.channel("b"))),
        begin(1.0, "a#1", 0),
        begin(1.0, "b#1", 1),
        event(9.0, "server", "fault", kind="hang"),
        fetch(9.9, "b#1", 1),
        commit(10.0, "n#1", ask(FIRST, "a", "a", "b"), state(COMPLETING)),
        fetch(10.5, "b#1", 1),
        fetch(11.9, "b#1", 1),
        commit(12.0, "n#1", state(FAILED, failed=FIRST), notice("a"), notice("b")),
        commit(12.1, "b#1", deleted(GROUP.command("b", NOTICE))),
        commit(12.3, "n#1", ask(SECOND, "b", "a", "b"), state(COMPLETING, failed=FIRST)),
        fetch(12.4, "b#1", 1),
        commit(12.5, "n#1", state(STABLE, ask=SECOND, generation=2)),
        event(20.0, "server", "end"),
    ]


def test_ask_is_reported_with_its_outcome(failed: list[Made]) -> None:
    first, second = asks_of(failed)

    assert (first.leader, first.made, first.failed, first.adopted) == ("a", 10.0, 12.0, None)
    assert (second.leader, second.made, second.failed, second.adopted) == ("b", 12.3, None, 12.5)
    assert first.members == {"a", "b"}
    assert first.heard == {"b"}


def test_the_time_to_an_adoption_is_that_of_every_leader_that_was_asked(failed: list[Made]) -> None:
    found = asked(failed, holds(failed), 9.0)

    assert (found.asks, found.adopted, found.failed, found.repeated) == (2, 1, 1, 1)
    assert found.longest_s == pytest.approx(2.5)


def test_withdrawn_command_does_not_count_as_acknowledged(failed: list[Made]) -> None:
    withdrawn = [*failed[:-1], commit(13.0, "n#1", deleted(GROUP.command("a", NOTICE))), failed[-1]]
    acknowledged = [*failed[:-1], commit(13.0, "a#1", deleted(GROUP.command("a", NOTICE))), failed[-1]]

    assert asked(withdrawn, holds(withdrawn), 9.0).unheard == 1
    assert asked(acknowledged, holds(acknowledged), 9.0).unheard == 0


def test_silence_is_measured_on_partitions_that_no_leader_fetched(failed: list[Made]) -> None:
    only_first = [each for each in failed if not any(op["path"].endswith(SECOND) for op in each.get("ops", ()))]

    found = asked(only_first, holds(only_first), 9.0)

    assert found.silent_s == pytest.approx(20.0 - 12.4)  # never adopted: to the end
    assert found.longest_s == pytest.approx(10.0)
    assert found.adopted == 0


def test_partitions_revoked_before_an_adoption_count_and_those_it_revokes_do_not(failed: list[Made]) -> None:
    def halt(at: float) -> Made:
        return event(at, "b#1", "halt", group="g", consumer="b", incarnation="b#1", partitions={"t": [1]})

    def revoked(at: float) -> int | None:
        events = sorted([*failed, halt(at)], key=lambda each: float(each["at"]))
        return asked(events, holds(events), 9.0).revoked

    assert [revoked(at) for at in (9.5, 11.0, 12.4999, 12.6)] == [0, 1, 0, 0]


def test_nothing_is_reported_without_an_ask(failed: list[Made]) -> None:
    assert asked(failed, holds(failed), 13.0) == AskSummary()


def test_unreadable_asks_are_left_out(failed: list[Made]) -> None:
    broken = [*failed[:-1], commit(14.0, "hand", created(GROUP.ask("ask-0000000009"), b"no")), failed[-1]]

    assert [each.name for each in asks_of(broken)] == [FIRST, SECOND]


# ---- when a group was Stable again


@pytest.fixture
def killed() -> list[Made]:
    """Of a and b the first is killed at 10 s, its session ends at 12 s; c joins at 11 s; Stable without a at 13 s."""
    return [
        commit(1.0, "a#1", created(GROUP.id("a"))),
        commit(1.1, "b#1", created(GROUP.id("b"))),
        commit(2.0, "n#1", state(STABLE, "a", "b")),
        event(10.0, "server", "fault", kind="kill", process="a#1"),
        commit(11.0, "c#1", created(GROUP.id("c"))),
        event(12.0, "server", "closed", zxid=120_000, session=1, paths=[GROUP.id("a")]),
        commit(12.5, "n#1", state(COMPLETING, "b", "c")),
        commit(13.0, "n#1", state(STABLE, "b", "c")),
        event(20.0, "server", "end"),
    ]


def test_group_is_settled_when_stable_with_all_registered_and_no_dead_members(
    killed: list[Made],
) -> None:
    assert replayed(killed)[1] == pytest.approx(3.0)
    assert changes_of_members(replayed(killed)[0], 10.0) == 2


def test_takeover_of_a_name_is_no_change_of_members(killed: list[Made]) -> None:
    taken_over = commit(14.0, "b#2", deleted(GROUP.id("b")), created(GROUP.id("b")))

    assert changes_of_members(replayed([*killed, taken_over])[0], 10.0) == 2


@pytest.mark.parametrize("after", [("a", "b", "c"), ("b",), ("b", "c", "d")])
def test_group_that_never_settles_counts_to_the_end_of_the_run(killed: list[Made], after: tuple[str, ...]) -> None:
    killed[-2] = commit(13.0, "n#1", state(STABLE, *after))

    assert replayed(killed)[1] == pytest.approx(10.0)


def test_killed_coordinator_leaves_a_stable_group_settled(killed: list[Made]) -> None:
    killed[3]["process"] = "node-1#7"

    assert replayed(killed[:4])[1] == 0.0


def test_run_without_kills_has_nothing_to_settle(killed: list[Made]) -> None:
    killed[3]["kind"] = "pause"

    assert replayed(killed)[1] is None
