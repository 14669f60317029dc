"""`groups list` and `describe` without ZooKeeper: states, orders, texts, and watch mode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from zk_group.coordinator.admin.groups import ShownAsk, ShownGroup, ShownMember, ShownPartition, by_holder, parse_states
from zk_group.coordinator.cli.groups import assignment_text, offered, state_message
from zk_group.coordinator.cli.watching import Shot, show
from zk_group.coordinator.zk.errors import ConnectionLost
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.znodes.group_state import (
    COMPLETING,
    DEAD,
    EMPTY,
    FAILED,
    GROUP_STATES,
    PREPARING,
    STABLE,
    Ask,
    AskMember,
    ClientProtocols,
    ClientSide,
    GroupState,
)
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import Registration


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Stable", {STABLE}),
        ("stable", {STABLE}),
        ("EMPTY, dead", {EMPTY, DEAD}),
        ("preparingrebalance,CompletingRebalance,", {PREPARING, COMPLETING}),
        ("stable,Stable", {STABLE}),
        ("", set(GROUP_STATES)),
        (" , ", set(GROUP_STATES)),
    ],
)
def test_states_are_read_in_upper_and_lower_case(text: str, wanted: set[str]) -> None:
    assert parse_states(text) == wanted


def test_assignment_is_ordered_by_number_and_not_by_digits() -> None:
    parts = [TopicPartition("topic2", 2), *(TopicPartition("topic1", number) for number in (10, 2, 0))]

    assert assignment_text(parts) == "topic1(0,2,10), topic2(2)"
    assert assignment_text([]) is None


def test_members_are_listed_by_partition_count_and_unassigned_partitions_last() -> None:
    def part(number: int, consumer: str | None = None, runner: str | None = None) -> ShownPartition:
        return ShownPartition(TopicPartition("t", number), "id", consumer, consumer, 0, None, runner)

    members = tuple(ShownMember(name, Registration("i", {"t": 1}), None, ()) for name in ("a", "b", "idle"))
    gone = ShownMember("gone", None, None, ())
    parts = (part(0), part(1, "b"), part(2, "b"), part(3, "a"), part(4, runner="gone"))

    found = by_holder(ShownGroup("g", GroupState(), (*members, gone), parts))

    assert [(holder, [each.partition.partition for each in some]) for holder, some in found.items()] == [
        ("b", [1, 2]),
        ("a", [3]),
        ("gone", [4]),
        ("idle", []),
        (None, [0]),
    ]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (EMPTY, "Consumer group 'g' has no active members."),
        (DEAD, "Consumer group 'g' has no active members."),
        (PREPARING, "Warning: Consumer group 'g' is rebalancing."),
        (COMPLETING, "Warning: Consumer group 'g' is rebalancing."),
        (FAILED, "Warning: Consumer group 'g' could not be rebalanced: why"),
        (STABLE, None),
    ],
)
def test_description_of_a_group_depends_on_its_state(state: str, message: str | None) -> None:
    assert state_message(ShownGroup("g", GroupState(state, reason="why"), (), ())) == message


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(ThreadRuntime, "sleep", lambda self, seconds: found.append(seconds))
    return found


def shots(*rows: int) -> Iterator[Shot]:
    for number in rows:
        yield Shot(("GROUP", "LOG-END-OFFSET"), [("g", number)], [f"note {number // 10}"])


def test_tables_are_shown_again_below_a_blank_line(naps: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    show(shots(1, 2, 13).__next__, "table", 0.5, 3)

    printed = capsys.readouterr()
    tables = [f"GROUP  LOG-END-OFFSET\ng{number:>20}\n" for number in (1, 2, 13)]
    assert printed.out == "\n".join(tables)
    assert printed.err == "note 0\nnote 1\n", "a changed note is printed again"
    assert naps == [0.5, 0.5]


def test_json_is_one_object_a_line(naps: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    show(shots(1, 2).__next__, "json", 1.0, 2)

    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["rows"] for each in found] == [[{"group": "g", "log_end_offset": number}] for number in (1, 2)]
    assert found[0]["notes"] == ["note 0"] and found[0]["at"].endswith("Z")


def test_brief_connection_loss_does_not_end_watch_mode(naps: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    one, two = shots(1, 2)

    show(Mock(side_effect=[one, ConnectionLost("no answer"), two]), "table", 1.0, 3)

    assert "PROBLEM\nno answer\n" in capsys.readouterr().out
    assert len(naps) == 2


def test_a_terminal_shows_the_last_table_in_place(
    naps: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    show(shots(1, 2).__next__, "table", 1.0, 2)

    printed = capsys.readouterr().out
    first, up, second = printed.index(f"g{1:>20}"), printed.index("\x1b[1A"), printed.index(f"g{2:>20}")
    assert first < up < second, "the cursor moves up, and the second table overwrites the first"
    assert printed.rstrip().removesuffix("\x1b[?25h").rstrip().endswith("note 0")


@pytest.mark.parametrize(
    ("pattern", "is_preferred", "wanted"),
    [
        ("static", True, "client: lag, sticky; coordinator: range"),
        ("static", False, "coordinator: range; client: lag, sticky"),
        ("client", True, "client: lag, sticky"),
    ],
)
def test_protocols_of_a_member_are_shown_in_order_of_preference(pattern: str, is_preferred: bool, wanted: str) -> None:
    client = ClientProtocols(("lag", "sticky"), is_preferred=is_preferred)

    assert offered(Registration("i", {"t": 1}, pattern, client=client)) == wanted
    assert offered(Registration("i", {"t": 1})) == "coordinator: range"


def test_an_ask_is_pending_until_it_is_adopted_or_has_failed() -> None:
    asks = tuple(ShownAsk(f"ask-000000000{number}", None) for number in (1, 2))

    def group(adopted: str, failed: str = "") -> ShownGroup:
        client = ClientSide("consumer", adopted, attempts=bool(failed), failed_ask=failed)
        return ShownGroup("g", GroupState(client=client), (), (), asks=asks)

    assert group("").pending == group("ask-0000000001").pending == asks[1]
    assert group("ask-0000000002").pending is None and group("ask-0000000001", "ask-0000000002").pending is None
    assert group("ask-0000000001").adopted == asks[0] and group("").adopted is None


@pytest.mark.parametrize(
    ("identity", "life", "leader"), [("life", "life", "a"), ("life", "another", None), ("seat-7", "another", "a")]
)
def test_a_group_is_led_by_the_incarnation_or_seat_that_was_asked(identity: str, life: str, leader: str | None) -> None:
    ask = Ask("lag", "a", "life", {"a": AskMember(identity, "")})
    member = ShownMember("a", Registration(life, {"t": 1}), None, ())
    state = GroupState(client=ClientSide("consumer", "ask-0000000001"))

    assert ShownGroup("g", state, (member,), (), asks=(ShownAsk("ask-0000000001", ask),)).leader == leader
    assert ShownGroup("g", state, (), (), asks=(ShownAsk("ask-0000000001", ask),)).leader is None
    assert ShownGroup("g", state, (member,), ()).leader is None


@pytest.mark.parametrize(
    ("offset", "end", "lag"), [(5, 8, 3), (5, 5, 0), (None, 8, None), (5, None, None), (5, 4, None), (5, 0, None)]
)
def test_lag_is_known_when_offset_and_log_end_are(offset: int | None, end: int | None, lag: int | None) -> None:
    assert ShownPartition(TopicPartition("t", 0), "id", None, None, offset).lag(end) == lag
